#include "tensorflow_patches/glue/variables/initial_broadcast.h"

#include <utility>

#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow_patches/glue/runtime/runtime.h"

namespace tfmpi {
namespace {

using tensorflow::HandleFromInput;
using tensorflow::LookupResource;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using Variable = tensorflow::core::RefCountPtr<tensorflow::Var>;

// Sets `value` to the variable's tensor if nothing else holds its memory, else to a new tensor.
absl::Status ReceiveInto(OpKernelContext* context, int input, Tensor* value) {
  bool unshared = false;
  if (context->input_is_ref(input)) {
    *value = Tensor();  // which may hold the memory, so that RefCountIsOne would be false
    const tensorflow::TensorValue& ref = context->params()->inputs[input];
    tensorflow::mutex_lock lock(*ref.mutex_if_ref);
    unshared = ref.tensor->RefCountIsOne();
    *value = *ref.tensor;
  } else {
    Variable variable;
    TF_RETURN_IF_ERROR(LookupResource(context, HandleFromInput(context, input), &variable));
    *value = Tensor();
    tensorflow::mutex_lock lock(*variable->mu());
    unshared = variable->tensor()->RefCountIsOne();
    *value = *variable->tensor();
  }
  if (unshared) return absl::OkStatus();
  Tensor fresh;
  const absl::Status status = context->allocate_temp(value->dtype(), value->shape(), &fresh);
  if (status.ok()) *value = fresh;
  return status;
}

absl::Status WriteState(OpKernelContext* context, int input, const Tensor& value) {
  if (context->input_is_ref(input)) {
    context->replace_ref_input(input, value, /*lock_held=*/false);
    return absl::OkStatus();
  }
  Variable variable;
  TF_RETURN_IF_ERROR(LookupResource(context, HandleFromInput(context, input), &variable));
  tensorflow::mutex_lock lock(*variable->mu());
  *variable->tensor() = value;
  return absl::OkStatus();
}

}  // namespace

std::string RefVariableName(const tensorflow::NodeDef& node) {
  const std::string input =
      node.input_size() == 0 ? node.name() : node.input(0).substr(0, node.input(0).find(':'));
  std::vector<std::string> states;
  if (tensorflow::TryGetNodeAttr(node, kStates, &states) && states.size() == 1 &&
      states[0] == HandleKey("", input, kOfSession)) {
    return input;
  }
  std::vector<std::string> colocation;
  if (tensorflow::TryGetNodeAttr(node, "_class", &colocation)) {
    for (const std::string& location : colocation) {
      if (location.compare(0, 5, "loc:@") == 0) return location.substr(5);
    }
  }
  return input;
}

std::string StateKey(OpKernelContext* context, int input, const std::string& ref_variable) {
  const tensorflow::SessionMetadata* session = context->session_metadata();
  const std::string scope =
      session != nullptr ? VariableNames::Get().Scope(session->version()) : "";
  if (context->input_is_ref(input)) return HandleKey("", ref_variable, scope);
  const tensorflow::ResourceHandle& handle = HandleFromInput(context, input);
  return HandleKey(handle.container(), handle.name(), scope);
}

bool IsState(OpKernelContext* context, int input) {
  return context->input_is_ref(input) || context->input_dtype(input) == tensorflow::DT_RESOURCE;
}

bool ReadState(OpKernelContext* context, int input, Tensor* value) {
  if (context->input_is_ref(input)) {
    *value = context->mutable_input(input, /*lock_held=*/false);
    return value->IsInitialized();
  }
  Variable variable;
  if (!LookupResource(context, HandleFromInput(context, input), &variable).ok()) return false;
  tensorflow::tf_shared_lock lock(*variable->mu());
  *value = *variable->tensor();
  return variable->is_initialized;
}

void InitialBroadcast::AddBroadcasts(OpKernelContext* context, const std::string& ref_variable,
                                     VariableUse* use, RequestGroup* group) {
  bool synchronized = false;
  for (int input = 0; input < context->num_inputs(); ++input) {
    if (!IsState(context, input)) continue;
    // Of ref inputs only the first, the variable, has a name here. What holds for it holds for its
    // slots.
    if (input == 0 || !context->input_is_ref(input)) {
      const std::string key = StateKey(context, input, ref_variable);
      synchronized = VariableNames::Get().TestAndMarkSynchronized(key);
      if (!synchronized) use->synchronized.push_back(key);
    }
    if (synchronized) continue;
    // An input without a value, or of an unsupported type, is left to the stock kernel. The name
    // does not contain the kind of op: which of two kinds comes first may differ by rank.
    AddBroadcast(context, input, "start of " + use->name + " input " + std::to_string(input), group)
        .IgnoreError();
  }
}

absl::Status InitialBroadcast::AddBroadcast(OpKernelContext* context, int input,
                                            const std::string& request_name, RequestGroup* group) {
  // Read before the rank: the rank of an earlier generation must not be used in this one.
  const uint64_t generation = GetEngine()->published().generation();
  rank_ = GetEngine()->topology().rank;
  Tensor value;
  DataType dtype;
  if (!ReadState(context, input, &value) || !ToCoreType(value.dtype(), &dtype)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "'", request_name, "' has no value, or a dtype that is not supported between ranks"));
  }
  if (rank_ != 0) TF_RETURN_IF_ERROR(ReceiveInto(context, input, &value));
  Request request = RequestFor(OpKind::kBroadcast, request_name, dtype, value);
  request.output = Data(value);
  request.generation = generation;
  group->Add(std::move(request));
  received_.push_back({input, value});
  return absl::OkStatus();
}

absl::Status InitialBroadcast::Write(OpKernelContext* context) {
  absl::Status status;
  for (const Received& received : received_) {
    if (status.ok() && rank_ != 0) status = WriteState(context, received.input, received.value);
  }
  received_.clear();  // before the stock kernel, which copies a variable if something else holds it
  return status;
}

}  // namespace tfmpi
