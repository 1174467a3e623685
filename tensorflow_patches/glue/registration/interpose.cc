// The one point through which every kernel of TensorFlow passes: registration.
//
// This library is loaded before TensorFlow's own, so the definition below is the one that all of
// the stock binary's registrations bind to. It runs before this library's static constructors, on
// the thread that loads TensorFlow: nothing here may need a static that is not
// constant-initialised.

#include "tensorflow_patches/glue/registration/interpose.h"

#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_patches/core/observability/timeline.h"
#include "tensorflow_patches/glue/extras/scatter_kernel.h"
#include "tensorflow_patches/glue/kernels/apply_kernel.h"
#include "tensorflow_patches/glue/kernels/apply_ops.h"
#include "tensorflow_patches/glue/kernels/average_kernel.h"
#include "tensorflow_patches/glue/kernels/sparse_apply_kernel.h"
#include "tensorflow_patches/glue/kernels/sparse_average_kernel.h"
#include "tensorflow_patches/glue/kernels/update_kernel.h"
#include "tensorflow_patches/glue/runtime/runtime.h"
#include "tensorflow_patches/glue/xla/compiled_average.h"

namespace tfmpi {
namespace {

using tensorflow::KernelDef;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::kernel_factory::OpKernelFactory;
using tensorflow::kernel_factory::OpKernelRegistrar;

std::atomic<int64_t> g_seen{0};
std::atomic<int64_t> g_decorated{0};

std::string SparseReason(const tensorflow::NodeDef& node) {
  return "sparse gradients are not averaged over ranks inside compiled functions, and '" +
         node.name() + "' (" + node.op() +
         ") would train each rank's rows on its own. Drop jit_compile=True, make the gradient "
         "dense with tf.convert_to_tensor(gradient), or run with TF_MPI_ENABLE=0";
}

std::string UncompiledReason(const tensorflow::NodeDef& node) {
  return "'" + node.name() +
         "' averages a sparse gradient as a compiled function does, and runs outside of one. Trace "
         "the step where it runs, or run with TF_MPI_ENABLE=0";
}

std::string DeviceReason(const OpKernelConstruction& construction) {
  return "'" + construction.def().name() + "' averages gradients over ranks, and is placed on " +
         construction.device_type().type_string() +
         "; this release averages on the CPU only. Place the optimizer there with "
         "tf.device('CPU:0'), or run with TF_MPI_ENABLE=0";
}

bool IsCompiledForCpu(const OpKernelConstruction& construction) {
  return construction.device_type().type_string() == "XLA_CPU_JIT";
}

class DecoratingFactory : public OpKernelFactory {
 public:
  DecoratingFactory(const ApplyOp& op, bool compiled, std::unique_ptr<OpKernelFactory> stock)
      : op_(op), compiled_(compiled), stock_(std::move(stock)) {}

  OpKernel* Create(OpKernelConstruction* construction) override {
    std::unique_ptr<OpKernel> stock(stock_->Create(construction));
    const Engine* const engine = GetEngine();
    if (engine == nullptr || stock == nullptr || !construction->status().ok())
      return stock.release();
    // One rank averages nothing and pays nothing, unless it was asked for a trace.
    if (engine->topology().size == 1 && (compiled_ || op_.sparse || Recording() == 0)) {
      return stock.release();
    }
    if (compiled_ || op_.sparse) {
      if (!compiled_) return new SparseApplyKernel(construction, op_, std::move(stock));
      if (op_.sparse) return new RefusingKernel(construction, SparseReason(construction->def()));
      if (!IsCompiledForCpu(*construction)) {
        return new RefusingKernel(construction, DeviceReason(*construction));
      }
      return new CompiledApplyKernel(construction, op_, std::move(stock));
    }
    if (UpdateKernel::Serves(*construction)) {
      return new UpdateKernel(construction, std::string(op_.gradient), std::move(stock));
    }
    return new ApplyKernel(construction, op_, std::move(stock));
  }

 private:
  const ApplyOp& op_;
  const bool compiled_;
  const std::unique_ptr<OpKernelFactory> stock_;
};

// IdentityN, which is an average where it says so.
class AverageFactory : public OpKernelFactory {
 public:
  explicit AverageFactory(std::unique_ptr<OpKernelFactory> stock) : stock_(std::move(stock)) {}

  OpKernel* Create(OpKernelConstruction* construction) override {
    const Engine* const engine = GetEngine();
    if (engine == nullptr || engine->topology().size == 1 ||
        !AverageSpec::IsMarked(construction->def())) {
      return stock_->Create(construction);
    }
    const bool sparse = SparseAverageKernel::IsMarked(construction->def());
    if (IsCompiledForCpu(*construction)) {
      if (sparse) return new RefusingKernel(construction, SparseReason(construction->def()));
      return new CompiledAverageKernel(construction);
    }
    if (construction->device_type() == tensorflow::DeviceType(tensorflow::DEVICE_CPU)) {
      if (CompiledAverageKernel::HasRows(construction->def())) {
        return new RefusingKernel(construction, UncompiledReason(construction->def()));
      }
      if (sparse) return new SparseAverageKernel(construction);
      return new AverageKernel(construction);
    }
    return new RefusingKernel(construction, DeviceReason(*construction));
  }

 private:
  const std::unique_ptr<OpKernelFactory> stock_;
};

class ScatterFactory : public OpKernelFactory {
 public:
  explicit ScatterFactory(std::unique_ptr<OpKernelFactory> stock) : stock_(std::move(stock)) {}

  OpKernel* Create(OpKernelConstruction* construction) override {
    std::unique_ptr<OpKernel> stock(stock_->Create(construction));
    if (GetEngine() == nullptr || stock == nullptr || !construction->status().ok() ||
        !ScatterKernel::Serves(*construction)) {
      return stock.release();
    }
    return new ScatterKernel(construction, std::move(stock));
  }

 private:
  const std::unique_ptr<OpKernelFactory> stock_;
};

// While a cluster is compiled for the CPU.
template <typename Kernel>
class CompiledRowsFactory : public OpKernelFactory {
 public:
  explicit CompiledRowsFactory(std::unique_ptr<OpKernelFactory> stock) : stock_(std::move(stock)) {}

  OpKernel* Create(OpKernelConstruction* construction) override {
    std::unique_ptr<OpKernel> stock(stock_->Create(construction));
    const Engine* const engine = GetEngine();
    if (engine == nullptr || engine->topology().size == 1 || stock == nullptr ||
        !construction->status().ok() || !IsCompiledForCpu(*construction)) {
      return stock.release();
    }
    return new Kernel(construction, std::move(stock));
  }

 private:
  const std::unique_ptr<OpKernelFactory> stock_;
};

using RegisterFunction = void (*)(OpKernelRegistrar*, const KernelDef*, absl::string_view,
                                  std::unique_ptr<OpKernelFactory>);

// The definition in libtensorflow_framework, which this one hides.
RegisterFunction StockRegister() {
  static const auto function = reinterpret_cast<RegisterFunction>(dlsym(
      RTLD_NEXT,
      "_ZN10tensorflow14kernel_factory17OpKernelRegistrar12InitInternalEPKNS_9KernelDefESt17basic_"
      "string_viewIcSt11char_traitsIcEESt10unique_ptrINS0_15OpKernelFactoryESt14default_deleteISA_"
      "EE"));
  return function;
}

}  // namespace

int64_t RegistrationsSeen() { return g_seen; }
int64_t RegistrationsDecorated() { return g_decorated; }

std::unique_ptr<OpKernelFactory> MaybeDecorate(const KernelDef& kernel,
                                               std::unique_ptr<OpKernelFactory> factory) {
  ++g_seen;
  if (kernel.op() == "IdentityN") {
    ++g_decorated;
    return std::make_unique<AverageFactory>(std::move(factory));
  }
  const bool compiled = std::string_view(kernel.device_type()).find("XLA_") == 0;
  if (compiled && CompiledScatterKernel::Serves(kernel.op())) {
    ++g_decorated;
    return std::make_unique<CompiledRowsFactory<CompiledScatterKernel>>(std::move(factory));
  }
  if (kernel.device_type() == "CPU" && ScatterKernel::Serves(kernel.op())) {
    ++g_decorated;
    return std::make_unique<ScatterFactory>(std::move(factory));
  }
  const ApplyOp* const op = FindApplyOp(kernel.op());
  if (op == nullptr) return factory;
  if (!compiled && kernel.device_type() != "CPU") return factory;
  ++g_decorated;
  return std::make_unique<DecoratingFactory>(*op, compiled, std::move(factory));
}

void RegisterStock(OpKernelRegistrar* registrar, const KernelDef* kernel, absl::string_view name,
                   std::unique_ptr<OpKernelFactory> factory) {
  StockRegister()(registrar, kernel, name, std::move(factory));
}

}  // namespace tfmpi

namespace tensorflow {
namespace kernel_factory {

// Takes ownership of `kernel_def`, as the stock definition does.
__attribute__((visibility("default"))) void OpKernelRegistrar::InitInternal(
    const KernelDef* kernel_def, absl::string_view kernel_class_name,
    std::unique_ptr<OpKernelFactory> factory) {
  factory = tfmpi::MaybeDecorate(*kernel_def, std::move(factory));
  tfmpi::RegisterStock(this, kernel_def, kernel_class_name, std::move(factory));
}

}  // namespace kernel_factory
}  // namespace tensorflow
