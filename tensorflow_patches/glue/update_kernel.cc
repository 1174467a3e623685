#include "tensorflow_patches/glue/update_kernel.h"

#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow_patches/core/timeline.h"
#include "tensorflow_patches/glue/apply_kernel.h"
#include "tensorflow_patches/glue/request_group.h"
#include "tensorflow_patches/glue/start_in_step.h"
#include "tensorflow_patches/glue/variable_names.h"

namespace tfmpi {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

namespace {

std::atomic<int64_t> g_updated{0};

}  // namespace

int64_t UpdateKernel::Updated() { return g_updated; }

bool UpdateKernel::Serves(const tensorflow::NodeDef& node) {
  std::vector<std::string> states;
  return IsAveraged(node) && tensorflow::TryGetNodeAttr(node, "_tf_mpi_states", &states) &&
         VariableNames::Get().AreInStep(states);
}

UpdateKernel::UpdateKernel(OpKernelConstruction* construction, const std::string& gradient,
                           std::unique_ptr<OpKernel> stock)
    : OpKernel(construction), stock_(std::move(stock)) {
  int end = 0;
  OP_REQUIRES_OK(construction, stock_->InputRange(gradient, &gradient_, &end));
  ref_variable_ = RefVariableName(def());
  request_suffix_ = RequestSuffix(def());
}

void UpdateKernel::Compute(OpKernelContext* context) {
  ApplyKernel::CountApplied();
  g_updated.fetch_add(1, std::memory_order_relaxed);
  if (!settled_.Holds(context)) OP_REQUIRES_OK(context, Settle(context));
  const std::string traced = Recording() == 0 ? "" : settled_.LastName();
  const Span span(Stage::kApply, traced, context->input(gradient_).TotalBytes());
  stock_->Compute(context);  // its node is this kernel's, and so are its inputs
}

// The first time; or the graph was given another variable than the one it was made for, as a loaded
// function may be. That one is brought in step while this thread waits.
absl::Status UpdateKernel::Settle(OpKernelContext* context) {
  const VariableUse use =
      VariableNames::Get().Use(StateKey(context, 0, ref_variable_), request_suffix_);
  if (use.first_apply) {
    Engine* const engine = GetEngine();
    // Its end must not wait for this thread, which may be the only one that runs closures.
    auto group =
        std::make_unique<RequestGroup>(engine, context->cancellation_manager(),
                                       [](const std::function<void()>& closure) { closure(); });
    StartInStep start;
    start.AddBroadcasts(context, use.name, ref_variable_, engine->topology().rank, group.get());
    if (!start.empty()) {
      absl::Notification ended;
      absl::Status received;
      RequestGroup::Submit(std::move(group), "'" + use.name + "' was brought in step",
                           [&received, &ended](const absl::Status& status) {
                             received = status;
                             ended.Notify();
                           });
      ended.WaitForNotification();
      if (received.ok()) received = start.Write(context);
      if (!received.ok()) return received;
    }
  }
  settled_.Add(context, use.name);
  return absl::OkStatus();
}

}  // namespace tfmpi
