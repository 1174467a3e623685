#include "tensorflow_patches/glue/xla/compiled_call.h"

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorflow_patches/glue/kernels/average_kernel.h"
#include "tensorflow_patches/glue/xla/compiled_call_gpu.h"
#include "tensorflow_patches/glue/xla/compiled_requests.h"
#include "tensorflow_patches/glue/xla/compiled_slices.h"

// From xla/ffi/ffi_api.h, which needs LLVM headers that the wheel does not include. The linker
// checks that the function exists; RegisterCompiledCall checks the version of the API that it
// returns.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace tfmpi {
namespace {

namespace ffi = xla::ffi;

ffi::Error ToFfi(const absl::Status& status) {
  if (status.ok()) return ffi::Error::Success();
  return ffi::Error(static_cast<ffi::ErrorCode>(status.code()), std::string(status.message()));
}

absl::Status AddRequests(std::string_view joined, const Operands& operands, Duplicates duplicates,
                         std::vector<SparseGradient>* sparse, RequestGroup* group) {
  const absl::StatusOr<std::shared_ptr<const CallPlan>> plan = PlanFor(joined, operands);
  if (!plan.ok()) return plan.status();
  const float weight = *operands.weight().as<float>();
  const std::string first = FirstName(joined);
  TF_RETURN_IF_ERROR(CheckWeight(weight, first));
  TF_RETURN_IF_ERROR(AddAll((*plan)->sparse_names, operands, weight, duplicates, sparse, group));
  if ((*plan)->dense != nullptr) {
    AddDense(*(*plan)->dense, operands, {weight, nullptr}, IsFirstAverage(first), group);
  }
  *operands.rets[operands.weight_index()].as<float>() = 0;
  CountGradients(static_cast<int64_t>(operands.weight_index() - sparse->size()));
  return absl::OkStatus();
}

// In a forked child: its own data is the average, as with one rank.
ffi::Future PassOn(const Operands& operands) {
  for (size_t i = 0; i < operands.weight_index(); ++i) {
    const Operand& from = operands.args[i];
    const Operand& to = operands.rets[i];
    if (from.data == to.data) continue;
    std::memcpy(to.data, from.data, from.bytes);
    // The unused capacity of sparse gradients: the indices become -1.
    std::memset(to.as<char>() + from.bytes, 0xff, to.bytes - from.bytes);
  }
  *operands.rets[operands.weight_index()].as<float>() = 0;
  for (size_t i = 0; i < operands.num_sparse; ++i) {
    operands.counts()->as<int64_t>()[i] = operands.args[2 * i].dims[0];
  }
  ffi::Promise promise;
  ffi::Future future(promise);
  promise.SetAvailable();
  return future;
}

ffi::Future Average(ffi::RemainingArgs args, ffi::RemainingRets rets, std::string_view joined,
                    int64_t num_sparse, int64_t duplicates) {
  const Operands operands(args, rets, static_cast<size_t>(num_sparse));
  if (GetEngine() == nullptr) return PassOn(operands);
  const auto sparse = std::make_shared<std::vector<SparseGradient>>(operands.num_sparse);
  ffi::Promise promise;
  ffi::Future future(promise);
  // XLA continues on the thread that sets the promise, so it must be one that may block.
  auto group =
      std::make_unique<RequestGroup>(GetEngine(), /*cancellation=*/nullptr, RunOnOwnThread);
  const absl::Status added =
      AddRequests(joined, operands, static_cast<Duplicates>(duplicates), sparse.get(), group.get());
  if (!added.ok()) {
    promise.SetError(ToFfi(added));
    return future;
  }
  RequestGroup::Submit(std::move(group), /*what=*/"",
                       [promise, sparse](const absl::Status& ended) mutable {
                         const absl::Status written = ended.ok() ? WriteAll(*sparse) : ended;
                         if (written.ok()) {
                           promise.SetAvailable();
                         } else {
                           promise.SetError(ToFfi(written));
                         }
                       });
  return future;
}

XLA_FFI_DEFINE_HANDLER(kAverageHandler, Average,
                       ffi::Ffi::Bind()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<std::string_view>("names")
                           .Attr<int64_t>("num_sparse")
                           .Attr<int64_t>("duplicates"));

// `stream`: XLA's stream, on which everything is enqueued.
ffi::Error AverageOnGpu(void* stream, ffi::RemainingArgs args, ffi::RemainingRets rets,
                        std::string_view joined, int64_t num_sparse, int64_t duplicates) {
  const Operands operands(args, rets, static_cast<size_t>(num_sparse));
  return ToFfi(AverageOnStream(stream, operands, joined, static_cast<Duplicates>(duplicates)));
}

XLA_FFI_DEFINE_HANDLER(kAverageOnGpuHandler, AverageOnGpu,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<void*>>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<std::string_view>("names")
                           .Attr<int64_t>("num_sparse")
                           .Attr<int64_t>("duplicates"));

// Zeroes the unused rows of a sparse gradient. `found`, one int64: the number of used rows, which
// come first. EmitZeroUnusedRows (compiled_average.cc) determines the shapes and dtypes.
ffi::Error ZeroUnusedRows(ffi::AnyBuffer values, ffi::AnyBuffer found,
                          ffi::Result<ffi::AnyBuffer> result) {
  const size_t bytes = values.size_bytes();
  const auto capacity = static_cast<size_t>(values.dimensions()[0]);
  const size_t written =
      capacity == 0 ? 0 : bytes / capacity * static_cast<size_t>(*found.typed_data<int64_t>());
  char* const into = static_cast<char*>(result->untyped_data());
  if (into != values.untyped_data()) std::memcpy(into, values.untyped_data(), written);
  std::memset(into + written, 0, bytes - written);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(
    kZeroHandler, ZeroUnusedRows,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

// Mirror::Return has zeroed them already: only copies.
ffi::Error ZeroUnusedRowsOnGpu(void* stream, ffi::AnyBuffer values, ffi::AnyBuffer /*found*/,
                               ffi::Result<ffi::AnyBuffer> result) {
  return ToFfi(CopyValuesOnStream(stream, Operand(values), Operand(*result)));
}

XLA_FFI_DEFINE_HANDLER(kZeroOnGpuHandler, ZeroUnusedRowsOnGpu,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<void*>>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>());

}  // namespace

absl::Status RegisterCompiledCall(std::string_view name, std::string_view platform,
                                  XLA_FFI_Handler* handler) {
  const XLA_FFI_Api* const api = ffi::GetXlaFfiApi();
  if (api->struct_size < XLA_FFI_Api_STRUCT_SIZE ||
      api->api_version.major_version != XLA_FFI_API_MAJOR) {
    return absl::InternalError(
        "tensorflow.mpi was built for another version of XLA's FFI; install the wheel for this "
        "TensorFlow");
  }
  if (ffi::Ffi::RegisterStaticHandler(api, name, platform, handler) != nullptr) {
    return absl::InternalError(
        "XLA refused to register tensorflow.mpi's custom calls; please report this bug");
  }
  return absl::OkStatus();
}

absl::Status RegisterCompiledCalls() {
  static const absl::Status* const status = new absl::Status([] {
    absl::Status registered = RegisterCompiledCall(kCompiledAverage, kHost, kAverageHandler);
    registered.Update(RegisterCompiledCall(kZeroUnusedRows, kHost, kZeroHandler));
    registered.Update(RegisterCompiledCall(kCompiledAverage, kCuda, kAverageOnGpuHandler));
    registered.Update(RegisterCompiledCall(kZeroUnusedRows, kCuda, kZeroOnGpuHandler));
    return registered;
  }());
  return *status;
}

}  // namespace tfmpi
