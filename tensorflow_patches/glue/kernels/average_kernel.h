// The average of many tensors over the ranks, as one op.
//
// In graphs the op is a stock IdentityN with private attributes (python/_src/average/carrier.py
// creates it; decorators.cc installs this kernel), so the graph also loads in stock TensorFlow, as
// an identity. In eager code it is the op TfMpiAverage. The last input is a float32 scalar, the
// weight of this rank's tensors. TensorFlow calls ComputeAsync on an inter-op thread; the kernel
// ends on TensorFlow's runner (request_group.h).

#ifndef TFMPI_GLUE_KERNELS_AVERAGE_KERNEL_H_
#define TFMPI_GLUE_KERNELS_AVERAGE_KERNEL_H_

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_patches/core/reduction/average_plan.h"

namespace tfmpi {

// The attributes of an average node.
struct AverageSpec {
  std::vector<std::string> names;  // by tensor, the same on all ranks
  std::vector<DataType> dtypes;

  // Whether an IdentityN is an average, dense or sparse.
  static bool IsMarked(const tensorflow::NodeDef& node);
  // For a dense average. Fails if a tensor's type cannot be averaged.
  static absl::Status Read(const tensorflow::NodeDef& node, AverageSpec* spec);
};

// The tensors' names, from a marked IdentityN or an op of ours; empty if it lacks the attributes.
std::vector<std::string> AverageNames(const tensorflow::NodeDef& node);
// The error of such a node.
absl::Status MissingAttributesError();
// Sets `core` to the type of tensor `name`. Fails, with that name, if it cannot be averaged.
absl::Status CheckCanAverage(const std::string& name, tensorflow::DataType type, DataType* core);
// The suffix of request names in the session that runs this step; empty without a scope.
std::string SessionSuffix(tensorflow::OpKernelContext* context);
// Fails if input number `input` is not a float32 scalar, and during constant folding.
absl::Status CheckWeightInput(tensorflow::OpKernelContext* context, int input);
// Ok if `weight` is finite and not negative. `name`: the first tensor's, for the error.
absl::Status CheckWeight(float weight, const std::string& name);

// Returns true once per name in this process: ranks compare only their first gradients.
bool IsFirstAverage(const std::string& name);

class AverageKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit AverageKernel(tensorflow::OpKernelConstruction* construction);

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override;

 private:
  // The plan for the shapes of this step's inputs. Its names are those in `spec_`, with the suffix
  // of the session that runs the step.
  std::shared_ptr<const AveragePlan> PlanFor(tensorflow::OpKernelContext* context);
  // Allocates the outputs and sets where requests read and write: `buffers` by tensor, `outputs` by
  // entry.
  absl::Status Allocate(tensorflow::OpKernelContext* context, const AveragePlan& plan,
                        std::vector<Request::Buffers>* buffers, std::vector<void*>* outputs) const;
  // Allocates the outputs of one entry in one block of memory, `data`, in wire form.
  absl::Status AllocateTogether(tensorflow::OpKernelContext* context,
                                const AveragePlan::Entry& entry, void** data) const;

  AverageSpec spec_;

  std::mutex mutex_;
  std::string suffix_;                       // of plan_'s names; guarded by mutex_, like plan_
  std::shared_ptr<const AveragePlan> plan_;  // of the previous step
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_KERNELS_AVERAGE_KERNEL_H_
