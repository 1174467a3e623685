#include "tensorflow_patches/glue/variables/synchronized_variables.h"

#include <algorithm>
#include <utility>

#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow_patches/core/observability/timeline.h"

namespace tfmpi {

using tensorflow::HandleFromInput;
using tensorflow::OpKernelContext;

bool SynchronizedVariables::Holds(OpKernelContext* context) const {
  const Variable* const last = last_.load(std::memory_order_acquire);
  if (last == nullptr || context->input_is_ref(0)) return last != nullptr;
  const tensorflow::ResourceHandle& handle = HandleFromInput(context, 0);
  return handle.name() == last->handle && handle.container() == last->container;
}

void SynchronizedVariables::Add(OpKernelContext* context, const std::string& name) {
  auto variable = std::make_unique<Variable>();
  variable->name = name;
  if (!context->input_is_ref(0)) {
    const tensorflow::ResourceHandle& handle = HandleFromInput(context, 0);
    variable->handle = handle.name();
    variable->container = handle.container();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const auto known = std::find_if(all_.begin(), all_.end(), [&](const auto& other) {
    return other->name == variable->name && other->handle == variable->handle &&
           other->container == variable->container;
  });
  const Variable* const last = known == all_.end() ? variable.get() : known->get();
  if (last == variable.get()) all_.push_back(std::move(variable));
  last_.store(last, std::memory_order_release);
}

std::string SynchronizedVariables::TraceName(const tensorflow::OpKernel& kernel) const {
  if (Recording() == 0) return "";
  const Variable* const last = last_.load(std::memory_order_acquire);
  return last != nullptr ? last->name : kernel.name();
}

}  // namespace tfmpi
