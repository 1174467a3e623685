#include "tensorflow_patches/glue/extras/scatter_in_place.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow_patches/glue/extras/rows_ahead.h"
#include "tensorflow_patches/glue/kernels/apply_kernel.h"
#include "tensorflow_patches/glue/runtime/extras.h"
#include "tensorflow_patches/glue/runtime/runtime.h"

namespace tfmpi {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Var;

namespace {

constexpr int kHandle = 0, kIndices = 1, kUpdates = 2;  // inputs

// Whether to run the stock kernel on blocks of rows. Not if it would divide the rows among threads;
// nor if it would reject an input, because the error would name the block's position or shape.
bool InBlocks(OpKernelContext* context, const Tensor& table) {
  const Tensor& indices = context->input(kIndices);
  if (!EnabledExtras().rows_ahead) return false;
  if (context->device()->tensorflow_cpu_worker_threads()->num_threads != 1 || indices.dims() != 1 ||
      indices.NumElements() <= kBlockOfRows || table.dims() == 0 || table.NumElements() == 0) {
    return false;
  }
  TensorShape expected = table.shape();
  expected.set_dim(0, indices.NumElements());
  return context->input(kUpdates).shape() == expected && AreRows(indices, table.dim_size(0));
}

}  // namespace

bool ScatterInPlace::Serves(const OpKernelConstruction& construction) {
  return tensorflow::DataTypeCanUseMemcpy(construction.input_type(kUpdates));
}

ScatterInPlace::ScatterInPlace(OpKernelConstruction* construction, std::unique_ptr<OpKernel> stock)
    : OpKernel(construction), stock_(std::move(stock)) {}

void ScatterInPlace::Run(OpKernelContext* context, Tensor handle, const Tensor& table) {
  if (!InBlocks(context, table)) return RunOnInputs(stock_.get(), context, {{kHandle, &handle}});
  const int64_t rows = context->input(kIndices).NumElements();
  for (int64_t begin = 0; begin < rows && context->status().ok(); begin += kBlockOfRows) {
    const int64_t end = std::min(begin + kBlockOfRows, rows);
    Tensor indices = context->input(kIndices).Slice(begin, end);
    Tensor updates = context->input(kUpdates).Slice(begin, end);
    TouchRows(table, indices);
    RunOnInputs(stock_.get(), context,
                {{kHandle, &handle}, {kIndices, &indices}, {kUpdates, &updates}});
  }
}

void ScatterInPlace::Compute(OpKernelContext* context) {
  tensorflow::core::RefCountPtr<Var> variable;
  OP_REQUIRES_OK(context,
                 LookupResource(context, tensorflow::HandleFromInput(context, kHandle), &variable));
  {
    const tsl::mutex_lock lock(*variable->mu());
    Tensor* const value = variable->tensor();
    if (!variable->copy_on_read_mode.load() && variable->is_initialized && value->IsInitialized() &&
        value->dtype() == context->input_dtype(kUpdates)) {
      if (!value->RefCountIsOne()) {
        Tensor copy;
        OP_REQUIRES_OK(context, context->allocate_temp(value->dtype(), value->shape(), &copy));
        std::memcpy(Data(copy), Data(*value), value->TotalBytes());
        *value = copy;
      }
      // The stock kernel locks the variable that it gets and sets its mode, so it gets another
      // variable with the same memory.
      const tensorflow::core::RefCountPtr<Var> alias(new Var(value->dtype()));
      *alias->tensor() = *value;
      alias->is_initialized = true;
      alias->copy_on_read_mode.store(true);
      alias->Ref();  // held by the handle
      Tensor handle(tensorflow::DT_RESOURCE, TensorShape({}));
      handle.scalar<tensorflow::ResourceHandle>()() =
          tensorflow::ResourceHandle::MakeRefCountingHandle(alias.get(),
                                                            context->device()->attributes().name());
      return Run(context, handle, *value);
    }
  }
  Tensor table;
  {
    const tsl::tf_shared_lock lock(*variable->mu());
    table = *variable->tensor();
  }
  Run(context, context->input(kHandle), table);
}

}  // namespace tfmpi
