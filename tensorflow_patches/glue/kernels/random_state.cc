// An op for ranks that each draw only their own rows of a batch: returns the position that a random
// op of a single process would have reached in its sequence of numbers.
//
// A stateful random op has a generator that advances by 256 steps of 128 bits for each number it
// draws (GuardedPhiloxRandom::ReserveRandomOutputs). This op has the same generator and advances it
// by the numbers of the whole batch, on every rank; a stateless op then draws this rank's numbers
// (python/_src/random/philox.py).

#include <cstdint>
#include <mutex>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/random/philox_random.h"

namespace tfmpi {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::random::PhiloxRandom;
using tensorflow::shape_inference::InferenceContext;

constexpr int64_t kStepsPerNumber = 256;

// Each node has its own kernel, and so its own sequence, like the op that it replaces. `numbers`:
// how many the whole batch draws. `counter`: the lower word first. The seeds must not both be 0:
// the stock op then draws random seeds, whereas this one would have a fixed key.
REGISTER_OP("TfMpiRandomState")
    .Input("numbers: int64")
    .Output("key: uint64")
    .Output("counter: uint64")
    .Attr("seed: int")
    .Attr("seed2: int")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->Vector(1));
      context->set_output(1, context->Vector(2));
      return absl::OkStatus();
    });

class RandomStateKernel : public tensorflow::OpKernel {
 public:
  explicit RandomStateKernel(OpKernelConstruction* context) : OpKernel(context) {
    int64_t seed, seed2;
    OP_REQUIRES_OK(context, context->GetAttr("seed", &seed));
    OP_REQUIRES_OK(context, context->GetAttr("seed2", &seed2));
    generator_ = PhiloxRandom(static_cast<uint64_t>(seed), static_cast<uint64_t>(seed2));
  }

  void Compute(OpKernelContext* context) override {
    Tensor* key;
    Tensor* counter;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({1}), &key));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({2}), &counter));
    PhiloxRandom::ResultType position;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      position = generator_.counter();
      generator_.Skip(static_cast<uint64_t>(context->input(0).scalar<int64_t>()()) *
                      kStepsPerNumber);
    }
    key->vec<uint64_t>()(0) = Join(generator_.key()[0], generator_.key()[1]);
    counter->vec<uint64_t>()(0) = Join(position[0], position[1]);
    counter->vec<uint64_t>()(1) = Join(position[2], position[3]);
  }

 private:
  static uint64_t Join(uint32_t low, uint32_t high) {
    return (static_cast<uint64_t>(high) << 32) | low;
  }

  std::mutex mutex_;
  PhiloxRandom generator_;  // `mutex_` guards its counter; its key never changes
};

REGISTER_KERNEL_BUILDER(Name("TfMpiRandomState").Device(tensorflow::DEVICE_CPU), RandomStateKernel);

}  // namespace
}  // namespace tfmpi
