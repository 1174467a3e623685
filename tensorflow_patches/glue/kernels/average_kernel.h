// The average of many tensors over the ranks, as one op.
//
// In graphs the op is a stock IdentityN that carries private attributes
// (python/_src/average/averaging.py makes it; decorators.cc puts this kernel in its place), so that
// the graph loads in stock TensorFlow, as an identity. In eager code it is the op TfMpiAverage. The
// last input is a float32 scalar, the weight of this rank's tensors. TensorFlow calls ComputeAsync
// on an inter-op thread; the rest is request_group.h's.

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

// What is averaged, read from a node's attributes.
struct AverageSpec {
  std::vector<std::string> names;  // of the engine's requests, one per tensor
  std::vector<DataType> dtypes;

  // True for an IdentityN that is an average.
  static bool IsMarked(const tensorflow::NodeDef& node);
  // Of a marked IdentityN or a TfMpiAverage. Fails for what cannot be averaged, with its name.
  static absl::Status Read(const tensorflow::NodeDef& node, AverageSpec* spec);
};

// The names of the requests of a marked IdentityN, or of an op with these attributes; none if it
// lacks them.
std::vector<std::string> AverageNames(const tensorflow::NodeDef& node);
// Fails for what cannot be averaged, with its name.
absl::Status CheckAveraged(const std::string& name, tensorflow::DataType type, DataType* core);
// What is added to a request's name in the session that runs it.
std::string SessionSuffix(tensorflow::OpKernelContext* context);
// Fails where no average can run, and for an input that is no weight.
absl::Status CheckWeightInput(tensorflow::OpKernelContext* context, int input);
// The weight that input number `input` holds; fails where no average can run, and for a bad weight.
absl::Status ReadWeight(tensorflow::OpKernelContext* context, int input, const std::string& name,
                        float* weight);
// The same; on a GPU, if it lies there, only where.
absl::Status ReadWeight(tensorflow::OpKernelContext* context, int input, const std::string& name,
                        AveragePlan::Weight* weight);

// Ok if `weight` is finite and not negative.
absl::Status CheckWeight(float weight, const std::string& name);

// True once per name in this process: only first gradients are compared between ranks.
bool IsFirstAverage(const std::string& name);

class AverageKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit AverageKernel(tensorflow::OpKernelConstruction* construction);

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override;

 private:
  // Those of `spec_`, with the suffix of the session that runs the step.
  std::vector<std::string> Names(const std::string& suffix) const;
  // For the shapes of this step's inputs.
  std::shared_ptr<const AveragePlan> PlanFor(tensorflow::OpKernelContext* context);
  // Sets the outputs, and where requests read and write: `buffers` by tensor, `outputs` by entry.
  absl::Status Allocate(tensorflow::OpKernelContext* context, const AveragePlan& plan,
                        std::vector<Request::Buffers>* buffers, std::vector<void*>* outputs) const;
  // The outputs of one entry in one block of memory, `data`, as they lie on the wire.
  absl::Status AllocateTogether(tensorflow::OpKernelContext* context,
                                const AveragePlan::Entry& entry, void** data) const;

  AverageSpec spec_;

  std::mutex mutex_;
  std::string suffix_;                       // of plan_'s names; guarded by mutex_, as plan_
  std::shared_ptr<const AveragePlan> plan_;  // of the last step
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_KERNELS_AVERAGE_KERNEL_H_
