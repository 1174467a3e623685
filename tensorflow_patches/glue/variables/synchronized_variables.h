// The variables that were synchronized when a kernel ran on them, so that it need not look up one
// that it updates again. Owned by a kernel; thread-safe.

#ifndef TFMPI_GLUE_VARIABLES_SYNCHRONIZED_VARIABLES_H_
#define TFMPI_GLUE_VARIABLES_SYNCHRONIZED_VARIABLES_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"

namespace tfmpi {

class SynchronizedVariables {
 public:
  // Whether this step's input 0 is the variable added last; for a ref, whether any was added.
  bool Holds(tensorflow::OpKernelContext* context) const;
  // `name`: the same on every rank.
  void Add(tensorflow::OpKernelContext* context, const std::string& name);
  // For traces: the name of the variable added last, else the kernel's; "" if nothing is recorded.
  std::string TraceName(const tensorflow::OpKernel& kernel) const;

 private:
  struct Variable {
    std::string name;
    std::string handle;  // name and container of its handle, unless it is a ref
    std::string container;
  };

  std::atomic<const Variable*> last_{nullptr};  // read by every step, so no lock
  std::mutex mutex_;
  // Guarded by mutex_. One per variable; kept, since a step may still read a former last_.
  std::vector<std::unique_ptr<const Variable>> all_;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_VARIABLES_SYNCHRONIZED_VARIABLES_H_
