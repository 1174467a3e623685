#include "tensorflow_patches/glue/registration/decorators.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/observability/timeline.h"
#include "tensorflow_patches/glue/extras/scatter_in_place.h"
#include "tensorflow_patches/glue/extras/synchronous_update.h"
#include "tensorflow_patches/glue/kernels/apply_kernel.h"
#include "tensorflow_patches/glue/kernels/apply_ops.h"
#include "tensorflow_patches/glue/kernels/average_kernel.h"
#include "tensorflow_patches/glue/kernels/sparse_apply_kernel.h"
#include "tensorflow_patches/glue/kernels/sparse_average_kernel.h"
#include "tensorflow_patches/glue/runtime/extras.h"
#include "tensorflow_patches/glue/runtime/runtime.h"
#include "tensorflow_patches/glue/xla/compiled_average.h"
#include "tensorflow_patches/glue/xla/compiled_scatter.h"

namespace tfmpi {
namespace {

using tensorflow::KernelDef;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::kernel_factory::OpKernelFactory;

std::string SparseReason(const tensorflow::NodeDef& node) {
  return "cannot average this sparse gradient over ranks inside a compiled function: '" +
         node.name() + "' (" + node.op() +
         ") would apply only this rank's rows. Drop jit_compile=True, make the gradient "
         "dense with tf.convert_to_tensor(gradient), or run with TF_MPI_ENABLE=0";
}

std::string UncompiledReason(const tensorflow::NodeDef& node) {
  return "'" + node.name() +
         "' was traced to average a sparse gradient in a compiled function, but runs outside of "
         "one. Trace the step in the context in which it runs, or run with TF_MPI_ENABLE=0";
}

std::string DeviceReason(const OpKernelConstruction& construction) {
  return "'" + construction.def().name() + "' averages gradients over ranks, but is placed on " +
         construction.device_type().type_string() +
         ", which this release does not support. Place it on the CPU with tf.device('CPU:0'), or "
         "run with TF_MPI_ENABLE=0";
}

constexpr std::string_view kXlaCpu = "XLA_CPU_JIT", kXlaGpu = "XLA_GPU_JIT";

bool IsOn(const OpKernelConstruction& construction, std::string_view device) {
  return construction.device_type().type_string() == device;
}

bool IsCompiled(const OpKernelConstruction& construction) {
  return IsOn(construction, kXlaCpu) || IsOn(construction, kXlaGpu);
}

using Stock = std::unique_ptr<OpKernel>;
// Returns a kernel that wraps or replaces `stock`; or null, and then leaves `stock` alone.
using Maker = OpKernel* (*)(OpKernelConstruction* construction, Stock& stock);

const ApplyOp& ApplyOpOf(const OpKernelConstruction& construction) {
  return *FindApplyOp(construction.def().op());
}

OpKernel* MakeApply(OpKernelConstruction* construction, Stock& stock) {
  return new ApplyKernel(construction, ApplyOpOf(*construction), std::move(stock));
}

OpKernel* MakeSparseApply(OpKernelConstruction* construction, Stock& stock) {
  return new SparseApplyKernel(construction, ApplyOpOf(*construction), std::move(stock));
}

OpKernel* MakeCompiledApply(OpKernelConstruction* construction, Stock& stock) {
  if (!IsCompiled(*construction)) {
    return new RefusingKernel(construction, DeviceReason(*construction));
  }
  return new CompiledApplyKernel(construction, ApplyOpOf(*construction), std::move(stock));
}

OpKernel* Refuse(OpKernelConstruction* construction, Stock&) {
  return new RefusingKernel(construction, DeviceReason(*construction));
}

OpKernel* RefuseSparse(OpKernelConstruction* construction, Stock&) {
  return new RefusingKernel(construction, SparseReason(construction->def()));
}

// An IdentityN, which is an average if its attributes say so. A sparse one has two forms:
// SparseAverageKernel::IsMarked in uncompiled steps, CompiledAverageKernel::HasRows in compiled
// ones. Each is refused in the other kind of step.
OpKernel* MakeAverage(OpKernelConstruction* construction, Stock& stock) {
  const tensorflow::NodeDef& node = construction->def();
  if (!AverageSpec::IsMarked(node)) return nullptr;
  const bool sparse = SparseAverageKernel::IsMarked(node);
  if (IsCompiled(*construction)) {
    if (sparse) return RefuseSparse(construction, stock);
    return new CompiledAverageKernel(construction);
  }
  const bool gpu = IsOn(*construction, tensorflow::DEVICE_GPU);
  if (!gpu && !IsOn(*construction, tensorflow::DEVICE_CPU)) return Refuse(construction, stock);
  if (CompiledAverageKernel::HasRows(node)) {
    return new RefusingKernel(construction, UncompiledReason(node));
  }
  if (sparse) return new SparseAverageKernel(construction);
  return new AverageKernel(construction);
}

OpKernel* MakeSynchronousUpdate(OpKernelConstruction* construction, Stock& stock) {
  if (!SynchronousUpdate::Serves(*construction)) return nullptr;
  return new SynchronousUpdate(construction, ApplyOpOf(*construction), std::move(stock));
}

OpKernel* MakeScatterInPlace(OpKernelConstruction* construction, Stock& stock) {
  if (!ScatterInPlace::Serves(*construction)) return nullptr;
  return new ScatterInPlace(construction, std::move(stock));
}

OpKernel* MakeCompiledScatter(OpKernelConstruction* construction, Stock& stock) {
  if (!IsOn(*construction, kXlaCpu)) return nullptr;
  return new CompiledScatter(construction, std::move(stock));
}

// Stand for the names of all dense, or all sparse, optimizer ops of apply_ops.h.
constexpr std::string_view kDense = "dense", kSparse = "sparse";

// kOthers: any other device, such as a plug-in's.
enum class Devices { kAll, kCpu, kGpu, kXla, kOthers };

struct Decorator {
  std::string_view ops;  // names separated by |, or kDense or kSparse
  Devices devices;
  Maker make;
  bool Extras::*extra = nullptr;  // null: part of averaging itself
  bool traced = false;            // also on a single rank, if a trace or statistics are recorded
};

constexpr Decorator kDecorators[] = {
    {"IdentityN", Devices::kAll, MakeAverage},
    {kDense, Devices::kCpu, MakeSynchronousUpdate, &Extras::synchronous_updates},
    {kDense, Devices::kCpu, MakeApply, nullptr, /*traced=*/true},
    {kSparse, Devices::kCpu, MakeSparseApply},
    {kDense, Devices::kGpu, MakeApply, nullptr, /*traced=*/true},
    {kSparse, Devices::kGpu, MakeSparseApply},
    {kDense, Devices::kOthers, Refuse},
    {kSparse, Devices::kOthers, Refuse},
    {kDense, Devices::kXla, MakeCompiledApply},
    {kSparse, Devices::kXla, RefuseSparse},
    {"ResourceScatterAdd|ResourceScatterSub|ResourceScatterUpdate", Devices::kCpu,
     MakeScatterInPlace, &Extras::scatter_in_place},
    {"ResourceScatterAdd|ResourceScatterSub", Devices::kXla, MakeCompiledScatter,
     &Extras::compiled_scatter},
};

bool IsAmong(std::string_view name, std::string_view names) {
  while (true) {
    const size_t end = names.find('|');
    if (names.substr(0, end) == name) return true;
    if (end == std::string_view::npos) return false;
    names.remove_prefix(end + 1);
  }
}

Devices DevicesOf(const KernelDef& kernel) {
  const std::string& device = kernel.device_type();
  if (device == tensorflow::DEVICE_CPU) return Devices::kCpu;
  if (device == tensorflow::DEVICE_GPU) return Devices::kGpu;
  return device.compare(0, 4, "XLA_") == 0 ? Devices::kXla : Devices::kOthers;
}

bool IsFor(const Decorator& decorator, const KernelDef& kernel) {
  if (decorator.devices != Devices::kAll && decorator.devices != DevicesOf(kernel)) return false;
  if (decorator.ops != kDense && decorator.ops != kSparse)
    return IsAmong(kernel.op(), decorator.ops);
  const ApplyOp* const op = FindApplyOp(kernel.op());
  return op != nullptr && op->sparse == (decorator.ops == kSparse);
}

class DecoratingFactory : public OpKernelFactory {
 public:
  DecoratingFactory(std::vector<const Decorator*> decorators,
                    std::unique_ptr<OpKernelFactory> stock)
      : decorators_(std::move(decorators)), stock_(std::move(stock)) {}

  OpKernel* Create(OpKernelConstruction* construction) override {
    Stock stock(stock_->Create(construction));
    const Engine* const engine = GetEngine();
    if (engine == nullptr || stock == nullptr || !construction->status().ok()) {
      return stock.release();
    }
    const bool alone = engine->topology().size == 1;
    for (const Decorator* const decorator : decorators_) {
      // A single rank averages nothing and must cost nothing.
      if (alone && !(decorator->traced && Recording() != 0)) continue;
      if (decorator->extra != nullptr && !(EnabledExtras().*(decorator->extra))) continue;
      if (OpKernel* const kernel = decorator->make(construction, stock)) return kernel;
    }
    return stock.release();
  }

 private:
  const std::vector<const Decorator*> decorators_;
  const std::unique_ptr<OpKernelFactory> stock_;
};

}  // namespace

std::unique_ptr<OpKernelFactory> Decorate(const KernelDef& kernel,
                                          std::unique_ptr<OpKernelFactory> stock) {
  std::vector<const Decorator*> decorators;
  for (const Decorator& decorator : kDecorators) {
    if (IsFor(decorator, kernel)) decorators.push_back(&decorator);
  }
  if (decorators.empty()) return stock;
  return std::make_unique<DecoratingFactory>(std::move(decorators), std::move(stock));
}

}  // namespace tfmpi
