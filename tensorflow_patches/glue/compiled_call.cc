#include "tensorflow_patches/glue/compiled_call.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow_patches/core/reduce.h"
#include "tensorflow_patches/glue/average_kernel.h"
#include "tensorflow_patches/glue/request_group.h"
#include "xla/ffi/api/ffi.h"

// Of xla/ffi/ffi_api.h, which needs headers of LLVM that the wheel does not hold. The linker checks
// the name, RegisterCompiledAverage the version of what it returns.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace tfmpi {
namespace {

namespace ffi = xla::ffi;

// False for what XLA knows and no gradient is.
bool ToCoreType(ffi::DataType type, DataType* core) {
  switch (type) {
    case ffi::DataType::F16:
      return *core = DataType::kFloat16, true;
    case ffi::DataType::BF16:
      return *core = DataType::kBfloat16, true;
    case ffi::DataType::F32:
      return *core = DataType::kFloat32, true;
    case ffi::DataType::F64:
      return *core = DataType::kFloat64, true;
    case ffi::DataType::C64:
      return *core = DataType::kComplex64, true;
    case ffi::DataType::C128:
      return *core = DataType::kComplex128, true;
    default:
      return false;
  }
}

ffi::Error ToFfi(const absl::Status& status) {
  return ffi::Error(static_cast<ffi::ErrorCode>(status.code()), std::string(status.message()));
}

absl::Status AddRequests(const std::vector<std::string>& names, ffi::RemainingArgs args,
                         ffi::RemainingRets rets, RequestGroup* group) {
  const size_t tensors = names.size();
  if (args.size() != tensors + 2 || rets.size() != tensors + 1) {
    return absl::InternalError("the compiled average has other operands than names");
  }
  const float weight = args.get<ffi::AnyBuffer>(tensors)->typed_data<float>()[0];
  const absl::Status status = CheckWeight(weight, names[0]);
  if (!status.ok()) return status;
  const bool first = IsFirstAverage(names[0]);
  for (size_t i = 0; i < tensors; ++i) {
    const ffi::AnyBuffer tensor = *args.get<ffi::AnyBuffer>(i);
    Request request;
    request.name = names[i];
    if (!ToCoreType(tensor.element_type(), &request.signature.dtype)) {
      return absl::InvalidArgumentError("'" + names[i] + "' has a dtype that cannot be averaged");
    }
    const auto dims = tensor.dimensions();
    request.signature.shape.assign(dims.begin(), dims.end());
    request.input = tensor.untyped_data();
    request.output = (*rets.get<ffi::AnyBuffer>(i))->untyped_data();
    request.scale = weight;
    if (first) request.fingerprint = Fingerprint(request.input, tensor.size_bytes());
    group->Add(std::move(request));
  }
  (*rets.get<ffi::AnyBuffer>(tensors))->typed_data<float>()[0] = 0;
  CountGradients(static_cast<int64_t>(tensors));
  return absl::OkStatus();
}

ffi::Future Average(ffi::RemainingArgs args, ffi::RemainingRets rets, std::string_view joined) {
  ffi::Promise promise;
  ffi::Future future(promise);
  Engine* const engine = GetEngine();
  if (engine == nullptr) {
    promise.SetError(ToFfi(absl::FailedPreconditionError("averaging is off (TF_MPI_ENABLE)")));
    return future;
  }
  // What comes after the average runs where the future is set, so on a thread of its own.
  auto group = std::make_unique<RequestGroup>(engine, nullptr, [](std::function<void()> function) {
    tensorflow::Env::Default()->SchedClosure(std::move(function));
  });
  const std::vector<std::string> names = absl::StrSplit(joined, kNameSeparator);
  const absl::Status status = AddRequests(names, args, rets, group.get());
  if (!status.ok()) {
    promise.SetError(ToFfi(status));
    return future;
  }
  RequestGroup::Submit(std::move(group), "'" + names[0] + "' was averaged",
                       [promise](const absl::Status& ended) mutable {
                         if (ended.ok()) {
                           promise.SetAvailable();
                         } else {
                           promise.SetError(ToFfi(ended));
                         }
                       });
  return future;
}

XLA_FFI_DEFINE_HANDLER(
    kAverageHandler, Average,
    ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<std::string_view>("names"));

}  // namespace

absl::Status RegisterCompiledAverage() {
  static const absl::Status* const status = new absl::Status([] {
    const XLA_FFI_Api* const api = ffi::GetXlaFfiApi();
    if (api->struct_size < XLA_FFI_Api_STRUCT_SIZE ||
        api->api_version.major_version != XLA_FFI_API_MAJOR) {
      return absl::InternalError("tensorflow.mpi was built for another version of XLA's FFI");
    }
    const XLA_FFI_Error* const error =
        ffi::Ffi::RegisterStaticHandler(api, kCompiledAverage, "Host", kAverageHandler);
    return error == nullptr ? absl::OkStatus()
                            : absl::InternalError("XLA refused the call that averages");
  }());
  return *status;
}

}  // namespace tfmpi
