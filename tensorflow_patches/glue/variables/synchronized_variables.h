// The variables that were synchronized when a kernel ran on them, so that its next run need not
// look them up. A kernel's own; thread-safe.

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
  // Whether the last one that was added is this step's, its input 0.
  bool Holds(tensorflow::OpKernelContext* context) const;
  // `name`: as on every rank.
  void Add(tensorflow::OpKernelContext* context, const std::string& name);
  // For traces: the last one's name, the kernel's if there is none; empty while nothing is
  // recorded.
  std::string TraceName(const tensorflow::OpKernel& kernel) const;

 private:
  struct Variable {
    std::string name;
    std::string handle;  // its handle's name and container, unless it is a ref
    std::string container;
  };

  std::atomic<const Variable*> last_{nullptr};  // read by every step, so no lock
  std::mutex mutex_;
  std::vector<std::unique_ptr<const Variable>> all_;  // guarded by mutex_; one of a variable
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_VARIABLES_SYNCHRONIZED_VARIABLES_H_
