#include "tensorflow_patches/glue/extras/synchronous_update.h"

#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow_patches/core/observability/timeline.h"
#include "tensorflow_patches/glue/variables/initial_broadcast.h"
#include "tensorflow_patches/glue/variables/variable_names.h"

namespace tfmpi {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

namespace {

std::atomic<int64_t> g_updated{0};

}  // namespace

int64_t SynchronousUpdate::Updated() { return g_updated; }

bool SynchronousUpdate::Serves(const OpKernelConstruction& construction) {
  const tensorflow::NodeDef& node = construction.def();
  std::vector<std::string> keys;
  if (!IsAveraged(node) || !tensorflow::TryGetNodeAttr(node, kStates, &keys)) return false;
  const std::string of_session = HandleKey("", "", kOfSession);
  const std::string& scope = VariableNames::ThreadScope();
  for (std::string& key : keys) {
    // The key of a graph's variable gets the scope of the session that creates this kernel.
    if (key.compare(0, of_session.size(), of_session) != 0) continue;
    const bool ref = tensorflow::IsRefType(construction.input_type(0));
    const std::string name = ref ? RefVariableName(node) : key.substr(of_session.size());
    if (scope.empty()) return false;
    key = HandleKey("", name, scope);
  }
  return VariableNames::Get().AreSynchronized(keys);
}

SynchronousUpdate::SynchronousUpdate(OpKernelConstruction* construction, const ApplyOp& op,
                                     std::unique_ptr<OpKernel> stock)
    : OpKernel(construction), stock_(std::move(stock)), node_(construction, op, *stock_) {}

void SynchronousUpdate::Compute(OpKernelContext* context) {
  ApplyKernel::CountApplied();
  g_updated.fetch_add(1, std::memory_order_relaxed);
  if (!synchronized_.Holds(context)) OP_REQUIRES_OK(context, Synchronize(context));
  const std::string traced = synchronized_.TraceName(*this);
  const Span span(Stage::kApply, traced, context->input(node_.gradient).TotalBytes());
  stock_->Compute(context);  // it has the same node and inputs as this kernel
}

// Called in the first execution, and when it gets another variable, as it may in a loaded function.
// Fails instead of waiting for other ranks: they may wait for work that only this thread would run.
absl::Status SynchronousUpdate::Synchronize(OpKernelContext* context) {
  std::vector<std::string> keys;
  for (int input = 0; input < context->num_inputs(); ++input) {
    // Of ref inputs only the first, the variable, has a name here. What holds for it holds for its
    // slots.
    if (IsState(context, input) && (input == 0 || !context->input_is_ref(input))) {
      keys.push_back(StateKey(context, input, node_.ref_variable));
    }
  }
  VariableNames& names = VariableNames::Get();
  const std::string variable = names.Name(keys[0]);
  if (!names.AreSynchronized(keys)) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", name(), "' (", def().op(),
                     ") was created for variables that are synchronized between the ",
                     "ranks, but is now used to update '", variable,
                     "', and that variable or one of its slots is ",
                     "not known to be synchronized. Train it in a function or graph of its own"));
  }
  synchronized_.Add(context, variable);
  return absl::OkStatus();
}

}  // namespace tfmpi
