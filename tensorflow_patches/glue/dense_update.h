// A large dense Apply whose average and update are one operation of the ranks of a node.
//
// Each rank averages its share of the gradient, piece by piece, and updates its share of the
// variable and the slots while the average is in its caches; the others copy what came out. The
// average is never written to memory and read again, and each element is updated by one rank, by
// the stock kernel: the bits are those of every rank's updating all of them.
//
// The Apply kernel makes one per execution, on an inter-op thread, adds it to a group, and asks for
// its status when that has ended. The engine calls the rest on the communication thread. What
// somebody still reads, as the gradient of another layer's weights may, stays as it is: the new
// values go to other memory, which becomes the variable's at the end.

#ifndef TFMPI_GLUE_DENSE_UPDATE_H_
#define TFMPI_GLUE_DENSE_UPDATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow_patches/core/state_access.h"
#include "tensorflow_patches/core/timeline.h"
#include "tensorflow_patches/glue/request_group.h"

namespace tfmpi {

// TF_MPI_DENSE_UPDATE.
enum class DenseUpdates : int32_t { kAuto = 0, kEvery = 1, kDivided = 2 };

class DenseUpdate : public StateAccess {
 public:
  // Of the process; set before kernels run.
  static void SetMode(DenseUpdates mode);

  // Whether ops of this node may be divided at all. Refs may not, nor what asks for the variable's
  // lock (use_locking): it cannot be held while peers are waited for.
  static bool MayServe(const tensorflow::OpKernelConstruction& construction);
  // Whether this execution is: the same on all ranks, if the gradient and the variable are.
  static bool Serves(tensorflow::OpKernelContext* context, const tensorflow::Tensor& gradient,
                     const Topology& topology);

  // `stock`'s input number `gradient` is the gradient. Both outlive this.
  DenseUpdate(tensorflow::OpKernel* stock, tensorflow::OpKernelContext* context, int gradient);

  // Under the name `name`; `variable` names it for traces. This object outlives the group.
  void AddTo(RequestGroup* group, const std::string& name, const std::string& variable);
  // When the group has ended well: not ok if the stock kernel has failed.
  const absl::Status& status() const { return status_; }

  // Variables whose update was divided, by the process so far.
  static int64_t Divided();

  std::vector<char*> Begin() override;
  void Update(size_t begin, size_t end, const void* average) override;
  void End() override;

 private:
  // A state input: the variable, or a slot.
  struct State {
    int input = 0;
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    tensorflow::Tensor before;  // its value, which nobody else holds if `after` is the same memory
    tensorflow::Tensor after;
    // What the stock kernel sees in place of the variable: some of its elements.
    tensorflow::core::RefCountPtr<tensorflow::Var> part;
    tensorflow::Tensor handle;  // to `part`
  };

  absl::Status Lock(const State& state);
  absl::Status Open(State* state);
  void RunOn(size_t begin, size_t end, const void* average);

  tensorflow::OpKernel* const stock_;
  tensorflow::OpKernelContext* const context_;
  const int gradient_input_;
  tensorflow::Tensor gradient_;
  std::vector<State> states_;
  absl::Status status_;
  std::string variable_;
  std::optional<Span> span_;  // from Begin to End

  // The stock kernel's, from Begin to End.
  tensorflow::Tensor average_;
  absl::InlinedVector<tensorflow::TensorValue, 8> inputs_;
  std::unique_ptr<tensorflow::OpKernelContext::Params> params_;
  std::unique_ptr<tensorflow::OpKernelContext> part_context_;
};

}  // namespace tfmpi

#endif  // TFMPI_GLUE_DENSE_UPDATE_H_
