#include "tensorflow_patches/glue/compiled_call.h"

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
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

absl::StatusOr<std::shared_ptr<const AveragePlan>> MakePlan(std::string_view joined,
                                                            ffi::RemainingArgs args) {
  const std::vector<std::string> names = absl::StrSplit(joined, kNameSeparator);
  if (args.size() != names.size() + 2) {
    return absl::InternalError("the compiled average has other operands than names");
  }
  std::vector<DataType> dtypes(names.size());
  std::vector<Shape> shapes;
  for (size_t i = 0; i < names.size(); ++i) {
    const ffi::AnyBuffer tensor = *args.get<ffi::AnyBuffer>(i);
    if (!ToCoreType(tensor.element_type(), &dtypes[i])) {
      return absl::InvalidArgumentError("'" + names[i] + "' has a dtype that cannot be averaged");
    }
    const auto dims = tensor.dimensions();
    shapes.emplace_back(dims.begin(), dims.end());
  }
  return std::make_shared<const AveragePlan>(names, dtypes, std::move(shapes),
                                             GetEngine()->fusion_threshold());
}

// That of `joined`, if its shapes are those of `args`: shapes are static, but two programs may
// share their names.
absl::StatusOr<std::shared_ptr<const AveragePlan>> PlanFor(std::string_view joined,
                                                           ffi::RemainingArgs args) {
  using Plans = std::unordered_map<std::string, std::shared_ptr<const AveragePlan>>;
  static auto* const mutex = new std::mutex;
  static auto* const plans = new Plans;
  const std::string key(joined);
  std::lock_guard<std::mutex> lock(*mutex);
  std::shared_ptr<const AveragePlan>& plan = (*plans)[key];
  bool fits = plan != nullptr;
  for (size_t i = 0; fits && i < plan->shapes().size(); ++i) {
    const auto dims = args.get<ffi::AnyBuffer>(i)->dimensions();
    fits = plan->shapes()[i] == Shape(dims.begin(), dims.end());
  }
  if (fits) return plan;
  absl::StatusOr<std::shared_ptr<const AveragePlan>> made = MakePlan(joined, args);
  if (made.ok()) plan = *made;
  return made;
}

absl::Status AddRequests(std::string_view joined, ffi::RemainingArgs args, ffi::RemainingRets rets,
                         RequestGroup* group) {
  const absl::StatusOr<std::shared_ptr<const AveragePlan>> plan = PlanFor(joined, args);
  if (!plan.ok()) return plan.status();
  const size_t tensors = (*plan)->shapes().size();
  const std::string first(joined.substr(0, joined.find(kNameSeparator)));
  const float weight = args.get<ffi::AnyBuffer>(tensors)->typed_data<float>()[0];
  const absl::Status status = CheckWeight(weight, first);
  if (!status.ok()) return status;
  std::vector<Request::Buffers> buffers(tensors);
  for (size_t i = 0; i < tensors; ++i) {
    buffers[i] = {args.get<ffi::AnyBuffer>(i)->untyped_data(),
                  (*rets.get<ffi::AnyBuffer>(i))->untyped_data()};
  }
  for (Request& request : (*plan)->Requests(buffers, weight, IsFirstAverage(first))) {
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
  const absl::Status status = AddRequests(joined, args, rets, group.get());
  if (!status.ok()) {
    promise.SetError(ToFfi(status));
    return future;
  }
  RequestGroup::Submit(std::move(group), "the compiled step's gradients were averaged",
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
