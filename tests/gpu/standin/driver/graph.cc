// The driver's functions for graphs, which run their nodes in the order of creation.
//
// Conditional nodes run their body once, because a kernel would have to decide.

#include "device/operations.h"

using namespace standin;  // NOLINT: this file is the interface of that namespace

namespace {

// An executable graph shares its nodes: changes through one are visible in the other.
struct Executable {
  Graph* graph;
};

// Nodes whose handles a program has, and their graphs.
struct Made {
  std::mutex mutex;
  std::map<void*, Graph*> graphs;
};
Made& made() {
  static auto* all = new Made;
  return *all;
}

Result AddNode(void** handle, void* graph, Operation run) {
  auto node = std::make_shared<Node>(Node{std::move(run)});
  *handle = node.get();
  static_cast<Graph*>(graph)->nodes.push_back(std::move(node));
  return kSuccess;
}

Operation KernelOperation() {
  return [] { Add(kKernels); };
}

}  // namespace

STANDIN_API Result cuGraphCreate(void** graph, unsigned) {
  *graph = new Graph;
  return kSuccess;
}

// Kept, because executables and captures may still use it.
STANDIN_API Result cuGraphDestroy(void*) { return kSuccess; }

STANDIN_API Result cuGraphAddKernelNode_v2(void** node, void* graph, const void*, size_t,
                                           const void*) {
  return AddNode(node, graph, KernelOperation());
}
STANDIN_API Result cuGraphAddKernelNode(void** node, void* graph, const void*, size_t,
                                        const void*) {
  return AddNode(node, graph, KernelOperation());
}
STANDIN_API Result cuGraphAddEmptyNode(void** node, void* graph, const void*, size_t) {
  return AddNode(node, graph, nullptr);
}
STANDIN_API Result cuGraphAddMemcpyNode(void** node, void* graph, const void*, size_t,
                                        const Copy3D* copy, void*) {
  return AddNode(node, graph, RowsOperation(*copy));
}
STANDIN_API Result cuGraphAddMemsetNode(void** node, void* graph, const void*, size_t,
                                        const Fill* fill, void*) {
  return AddNode(node, graph, FillOperation(*fill));
}
STANDIN_API Result cuGraphAddHostNode(void** node, void* graph, const void*, size_t,
                                      void* const* function_and_argument) {
  const auto function = reinterpret_cast<HostFunction>(function_and_argument[0]);
  return AddNode(node, graph,
                 [function, argument = function_and_argument[1]] { function(argument); });
}
STANDIN_API Result cuGraphAddChildGraphNode(void** node, void* graph, const void*, size_t,
                                            void* child) {
  const Result result = AddNode(node, graph, nullptr);
  static_cast<Node*>(*node)->body = new Graph();
  static_cast<Node*>(*node)->body->nodes = static_cast<Graph*>(child)->nodes;
  return result;
}
STANDIN_API Result cuGraphChildGraphNodeGetGraph(void* node, void** graph) {
  *graph = static_cast<Node*>(node)->body;
  return kSuccess;
}

namespace {

// As in the driver's union of parameters: the kind, and from byte 16 on the parameters.
struct NodeParameters {
  int kind;
  int reserved[3];
  union {
    int64_t all[29];
    struct {
      uint64_t handle;
      int kind;
      unsigned size;
      void** bodies;
      void* context;
    } conditional;
    struct {
      int flags, reserved;
      void* context;
      Copy3D copy;
    } copy;
    Fill fill;
    struct {
      void* graph;
      int ownership;
    } child;
  };
  int64_t reserved_too;
};

constexpr int kKernelNode = 0, kCopyNode = 1, kFillNode = 2, kChildNode = 4, kEmptyNode = 5;
constexpr int kConditionalNode = 13;

}  // namespace

STANDIN_API Result cuGraphAddNode_v2(void** node, void* graph, const void*, const void*, size_t,
                                     NodeParameters* parameters) {
  switch (parameters->kind) {
    case kKernelNode:
      return AddNode(node, graph, KernelOperation());
    case kCopyNode:
      return AddNode(node, graph, RowsOperation(parameters->copy.copy));
    case kFillNode:
      return AddNode(node, graph, FillOperation(parameters->fill));
    case kEmptyNode:
      return AddNode(node, graph, nullptr);
    case kChildNode:
      return cuGraphAddChildGraphNode(node, graph, nullptr, 0, parameters->child.graph);
    case kConditionalNode: {
      const Result result = AddNode(node, graph, nullptr);
      auto** bodies = new void*[parameters->conditional.size];
      for (unsigned i = 0; i < parameters->conditional.size; ++i) bodies[i] = new Graph;
      static_cast<Node*>(*node)->body = static_cast<Graph*>(bodies[0]);
      parameters->conditional.bodies = bodies;
      return result;
    }
    default:
      return Unsupported("cuGraphAddNode of this kind");
  }
}
STANDIN_API Result cuGraphAddNode(void** node, void* graph, const void* dependencies, size_t count,
                                  NodeParameters* parameters) {
  return cuGraphAddNode_v2(node, graph, dependencies, nullptr, count, parameters);
}
STANDIN_API Result cuGraphConditionalHandleCreate(uint64_t* handle, void*, void*, unsigned,
                                                  unsigned) {
  *handle = 1;
  return kSuccess;
}
STANDIN_API Result cuGraphKernelNodeSetAttribute(void*, int, const void*) { return kSuccess; }
STANDIN_API Result cuGraphNodeGetType(void*, int* kind) {
  *kind = kKernelNode;
  return kSuccess;
}

namespace {

// Each node depends on the previous one.
Result List(const std::vector<void*>& found, void** nodes, size_t* count) {
  for (size_t i = 0; nodes != nullptr && i < found.size() && i < *count; ++i) nodes[i] = found[i];
  *count = found.size();
  return kSuccess;
}

// The node `step` after (or before) `node`, or null.
std::vector<void*> Beside(void* node, int step) {
  std::lock_guard<std::mutex> lock(made().mutex);
  const auto found = made().graphs.find(node);
  if (found == made().graphs.end()) return {};
  const auto& all = found->second->nodes;
  for (int i = 0; i < static_cast<int>(all.size()); ++i) {
    if (all[i].get() != node) continue;
    if (i + step < 0 || i + step >= static_cast<int>(all.size())) return {};
    return {all[i + step].get()};
  }
  return {};
}

std::vector<void*> Known(Graph* graph) {
  std::lock_guard<std::mutex> lock(made().mutex);
  std::vector<void*> all;
  for (const auto& node : graph->nodes) {
    made().graphs[node.get()] = graph;
    all.push_back(node.get());
  }
  return all;
}

}  // namespace

STANDIN_API Result cuGraphGetNodes(void* graph, void** nodes, size_t* count) {
  return List(Known(static_cast<Graph*>(graph)), nodes, count);
}
STANDIN_API Result cuGraphGetRootNodes(void* graph, void** nodes, size_t* count) {
  std::vector<void*> all = Known(static_cast<Graph*>(graph));
  if (all.size() > 1) all.resize(1);
  return List(all, nodes, count);
}
STANDIN_API Result cuGraphNodeGetDependentNodes(void* node, void** nodes, size_t* count) {
  return List(Beside(node, 1), nodes, count);
}
STANDIN_API Result cuGraphNodeGetDependentNodes_v2(void* node, void** nodes, void*, size_t* count) {
  return List(Beside(node, 1), nodes, count);
}
STANDIN_API Result cuGraphNodeGetDependencies(void* node, void** nodes, size_t* count) {
  return List(Beside(node, -1), nodes, count);
}

STANDIN_API Result cuGraphInstantiate(void** executable, void* graph, uint64_t) {
  *executable = new Executable{static_cast<Graph*>(graph)};
  return kSuccess;
}
STANDIN_API Result cuGraphInstantiateWithFlags(void** executable, void* graph, uint64_t flags) {
  return cuGraphInstantiate(executable, graph, flags);
}
STANDIN_API Result cuGraphExecDestroy(void* executable) {
  delete static_cast<Executable*>(executable);
  return kSuccess;
}
STANDIN_API Result cuGraphExecUpdate_v2(void* executable, void* graph, void*) {
  static_cast<Executable*>(executable)->graph = static_cast<Graph*>(graph);
  return kSuccess;
}
STANDIN_API Result cuGraphExecKernelNodeSetParams_v2(void*, void*, const void*) { return kSuccess; }
STANDIN_API Result cuGraphExecMemcpyNodeSetParams(void*, void* node, const Copy3D* copy, void*) {
  static_cast<Node*>(node)->run = RowsOperation(*copy);
  return kSuccess;
}
STANDIN_API Result cuGraphExecMemsetNodeSetParams(void*, void* node, const Fill* fill, void*) {
  static_cast<Node*>(node)->run = FillOperation(*fill);
  return kSuccess;
}
STANDIN_API Result cuGraphExecChildGraphNodeSetParams(void*, void* node, void* child) {
  static_cast<Node*>(node)->body->nodes = static_cast<Graph*>(child)->nodes;
  return kSuccess;
}
STANDIN_API Result cuGraphNodeSetEnabled(void*, void*, unsigned) { return kSuccess; }
STANDIN_API Result cuGraphUpload(void*, void*) { return kSuccess; }
STANDIN_API Result cuGraphDebugDotPrint(void*, const char*, unsigned) { return kSuccess; }

STANDIN_API Result cuGraphLaunch(void* executable, void* handle) {
  if (CurrentContext() == nullptr) return kInvalidContext;
  Stream* stream = StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  Add(kGraphs);
  Trace("graph of %zu nodes on stream %zu",
        static_cast<Executable*>(executable)->graph->nodes.size(), size_t{stream->id});
  // A copy of the present parameters, because a program may change them while it runs.
  auto nodes = std::make_shared<Graph>();
  for (const auto& node : static_cast<Executable*>(executable)->graph->nodes) {
    nodes->nodes.push_back(std::make_shared<Node>(*node));
  }
  stream->Push([nodes] { nodes->Run(); });
  return kSuccess;
}

STANDIN_API Result cuStreamBeginCapture_v2(void* handle, int) {
  Stream* stream = StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  stream->BeginCapture(new Graph);
  return kSuccess;
}
STANDIN_API Result cuStreamBeginCaptureToGraph(void* handle, void* graph, const void*, const void*,
                                               size_t, int) {
  Stream* stream = StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  stream->BeginCapture(static_cast<Graph*>(graph));
  return kSuccess;
}
STANDIN_API Result cuStreamEndCapture(void* handle, void** graph) {
  Stream* stream = StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  *graph = stream->EndCapture();
  return *graph != nullptr ? kSuccess : 900;
}
STANDIN_API Result cuStreamIsCapturing(void* handle, int* status) {
  Stream* stream = CurrentContext() == nullptr ? nullptr : StreamOf(handle);
  *status = stream != nullptr && stream->capturing() != nullptr ? 1 : 0;
  return kSuccess;
}
STANDIN_API Result cuStreamGetCaptureInfo_v2(void* handle, int* status, uint64_t* id, void** graph,
                                             const void*** dependencies, size_t* count) {
  Stream* stream = StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  Graph* capturing = stream->capturing();
  *status = capturing != nullptr ? 1 : 0;
  if (id != nullptr) *id = reinterpret_cast<uint64_t>(capturing);
  if (graph != nullptr) *graph = capturing;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (count != nullptr) *count = 0;
  return kSuccess;
}
STANDIN_API Result cuStreamGetCaptureInfo(void* handle, int* status, uint64_t* id) {
  return cuStreamGetCaptureInfo_v2(handle, status, id, nullptr, nullptr, nullptr);
}
STANDIN_API Result cuThreadExchangeStreamCaptureMode(int* mode) {
  *mode = 0;
  return kSuccess;
}
