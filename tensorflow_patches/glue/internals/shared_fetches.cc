#include "tensorflow_patches/glue/internals/shared_fetches.h"

#include <algorithm>
#include <vector>

#include "tensorflow/c/tf_tensor_internal.h"

namespace tfmpi {
namespace {

struct Shared {
  bool on = false;
  std::vector<const void*> lone_variables;  // the memory of each
};
thread_local Shared t_shared;

// Whether exactly one other tensor holds all of this memory, and TensorFlow has allocated it:
// memory that a script has fed belongs to the script.
bool IsHeldOnceMore(const tensorflow::Tensor& tensor) {
  tensorflow::TensorBuffer* const buffer = tensorflow::TensorCApi::Buffer(tensor);
  return buffer != nullptr && buffer->root_buffer() == buffer && buffer->OwnsMemory() &&
         buffer->RefCount() == 2;
}

}  // namespace

void ShareFetches(bool share) { t_shared = {share, {}}; }

bool IsLoneVariable(const void* data) {
  const std::vector<const void*>& lone = t_shared.lone_variables;
  return std::find(lone.begin(), lone.end(), data) != lone.end();
}

}  // namespace tfmpi

namespace tensorflow {

// As in libtensorflow_framework, except on threads that share fetches.
__attribute__((visibility("default"))) bool TensorInterface::CanMove() const {
  if (tensor_.RefCountIsOne()) return true;
  if (!tfmpi::t_shared.on) return false;
  if (tfmpi::IsHeldOnceMore(tensor_)) {
    tfmpi::t_shared.lone_variables.push_back(TensorCApi::Buffer(tensor_)->data());
  }
  return true;
}

}  // namespace tensorflow
