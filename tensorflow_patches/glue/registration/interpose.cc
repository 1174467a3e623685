// Interposes on the registration of TensorFlow's kernels.
//
// TensorFlow's libraries are loaded as dependencies of this one, which comes first when symbols are
// looked up, so all registrations of the stock binary call the definition below. It runs on the
// thread that loads TensorFlow. The constructors of the dependencies, which register kernels, run
// before those of this library: nothing here may use a global that is not constant-initialized.

#include "tensorflow_patches/glue/registration/interpose.h"

#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <utility>

#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_patches/glue/registration/decorators.h"

namespace tfmpi {
namespace {

using tensorflow::KernelDef;
using tensorflow::kernel_factory::OpKernelFactory;
using tensorflow::kernel_factory::OpKernelRegistrar;

std::atomic<int64_t> g_seen{0};
std::atomic<int64_t> g_decorated{0};

using RegisterFunction = void (*)(OpKernelRegistrar*, const KernelDef*, absl::string_view,
                                  std::unique_ptr<OpKernelFactory>);

// The definition in libtensorflow_framework, which ours hides.
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

std::unique_ptr<OpKernelFactory> CountAndDecorate(const KernelDef& kernel,
                                                  std::unique_ptr<OpKernelFactory> factory) {
  const OpKernelFactory* const stock = factory.get();
  std::unique_ptr<OpKernelFactory> decorated = Decorate(kernel, std::move(factory));
  ++g_seen;
  g_decorated += decorated.get() != stock;
  return decorated;
}

}  // namespace tfmpi

namespace tensorflow {
namespace kernel_factory {

// Takes ownership of `kernel_def`, as the stock definition does.
__attribute__((visibility("default"))) void OpKernelRegistrar::InitInternal(
    const KernelDef* kernel_def, absl::string_view kernel_class_name,
    std::unique_ptr<OpKernelFactory> factory) {
  tfmpi::StockRegister()(this, kernel_def, kernel_class_name,
                         tfmpi::CountAndDecorate(*kernel_def, std::move(factory)));
}

}  // namespace kernel_factory
}  // namespace tensorflow
