#include "tensorflow_patches/glue/xla/compiled_call.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "tensorflow_patches/core/cpu/reduce.h"
#include "tensorflow_patches/glue/kernels/average_kernel.h"
#include "tensorflow_patches/glue/kernels/sparse_average.h"
#include "tensorflow_patches/glue/runtime/request_group.h"
#include "xla/ffi/api/ffi.h"

// Of xla/ffi/ffi_api.h, which needs headers of LLVM that the wheel does not hold. The linker checks
// the name, RegisterCompiledCalls the version of what it returns.
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

// What a call averages, kept from step to step.
struct CallPlan {
  std::vector<std::string> slices;  // names
  // The others; null if there are none.
  std::shared_ptr<const AveragePlan> dense;

  // Whether it is that of these operands: shapes are static, but two programs may share their
  // names.
  bool Fits(size_t with_slices, ffi::RemainingArgs args) const;
};

bool CallPlan::Fits(size_t with_slices, ffi::RemainingArgs args) const {
  if (slices.size() != with_slices) return false;
  if (dense == nullptr) return true;
  for (size_t i = 0; i < dense->shapes().size(); ++i) {
    const auto dims = args.get<ffi::AnyBuffer>(2 * with_slices + i)->dimensions();
    if (dense->shapes()[i] != Shape(dims.begin(), dims.end())) return false;
  }
  return true;
}

absl::StatusOr<std::shared_ptr<const CallPlan>> MakePlan(std::string_view joined, size_t slices,
                                                         ffi::RemainingArgs args) {
  const std::vector<std::string> names = absl::StrSplit(joined, kNameSeparator);
  if (args.size() != names.size() + slices + 2 || names.size() < slices) {
    return absl::InternalError("the compiled average has other operands than names");
  }
  auto plan = std::make_shared<CallPlan>();
  plan->slices.assign(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(slices));
  const std::vector<std::string> dense(names.begin() + static_cast<std::ptrdiff_t>(slices),
                                       names.end());
  if (dense.empty()) return plan;
  std::vector<DataType> dtypes(dense.size());
  std::vector<Shape> shapes;
  for (size_t i = 0; i < dense.size(); ++i) {
    const ffi::AnyBuffer tensor = *args.get<ffi::AnyBuffer>(2 * slices + i);
    if (!ToCoreType(tensor.element_type(), &dtypes[i])) {
      return absl::InvalidArgumentError("'" + dense[i] + "' has a dtype that cannot be averaged");
    }
    const auto dims = tensor.dimensions();
    shapes.emplace_back(dims.begin(), dims.end());
  }
  plan->dense = std::make_shared<const AveragePlan>(dense, dtypes, std::move(shapes),
                                                    GetEngine()->fusion_threshold());
  return plan;
}

absl::StatusOr<std::shared_ptr<const CallPlan>> PlanFor(std::string_view joined, size_t slices,
                                                        ffi::RemainingArgs args) {
  static auto* const mutex = new std::mutex;
  static auto* const plans = new std::unordered_map<std::string, std::shared_ptr<const CallPlan>>;
  const std::string key(joined);
  std::lock_guard<std::mutex> lock(*mutex);
  std::shared_ptr<const CallPlan>& plan = (*plans)[key];
  if (plan != nullptr && plan->Fits(slices, args)) return plan;
  absl::StatusOr<std::shared_ptr<const CallPlan>> made = MakePlan(joined, slices, args);
  if (made.ok()) plan = *made;
  return made;
}

// `add` fills the group; `finish` runs when it has ended well, on a thread of its own, on which
// what comes after the call then runs.
ffi::Future Submit(const std::function<absl::Status(RequestGroup*)>& add,
                   std::function<absl::Status()> finish) {
  ffi::Promise promise;
  ffi::Future future(promise);
  Engine* const engine = GetEngine();
  if (engine == nullptr) {
    promise.SetError(ToFfi(absl::FailedPreconditionError("averaging is off (TF_MPI_ENABLE)")));
    return future;
  }
  auto group = std::make_unique<RequestGroup>(engine, nullptr, RunOnOwnThread);
  const absl::Status status = add(group.get());
  if (!status.ok()) {
    promise.SetError(ToFfi(status));
    return future;
  }
  RequestGroup::Submit(std::move(group), "the compiled step's gradients were averaged",
                       [promise, finish = std::move(finish)](const absl::Status& ended) mutable {
                         const absl::Status finished = ended.ok() ? finish() : ended;
                         if (finished.ok()) {
                           promise.SetAvailable();
                         } else {
                           promise.SetError(ToFfi(finished));
                         }
                       });
  return future;
}

// One sparse gradient, from the call to the end of its request. XLA's buffers outlive it.
struct Slices {
  std::string name;
  RowFormat format;
  std::unique_ptr<GatheredRows> gathered;
  std::unique_ptr<char[]> rows;  // unless they are gathered where they go
  char* values = nullptr;        // the results', with room for so many rows
  void* indices = nullptr;
  int64_t* count = nullptr;  // the result's; how many rows were found
  bool narrow = false;       // int32 indices
  size_t room = 0;

  // As GatheredRows::Allocate.
  char* AllocateRows(size_t all);
  absl::Status Write() const;
  template <typename Index>
  void WriteIndices(const std::vector<int64_t>& from) const;
};

// XLA's scatters leave out what is in no table: the rest costs little, and changes nothing even
// where rows are read, changed and written back.
template <typename Index>
void Slices::WriteIndices(const std::vector<int64_t>& from) const {
  Index* const to = static_cast<Index*>(indices);
  std::copy(from.begin(), from.end(), to);
  std::fill(to + from.size(), to + room, Index{-1});
}

char* Slices::AllocateRows(size_t all) {
  if (all <= room && IsWireForm(format.dtype) && values != nullptr) return values;
  rows.reset(new char[all * format.wire_bytes() + 1]);
  return rows.get();
}

absl::Status Slices::Write() const {
  gathered->Sum();
  const std::vector<int64_t>& found = gathered->indices();
  if (found.size() > room) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the ranks' rows of the sparse gradient of '", name, "' are ", found.size(),
        ", and this rank's compiled step has room for ", room,
        ", as the other ranks have many more rows than this one. Give the ranks batches of about "
        "the same size, or drop jit_compile=True",
        gathered->own().every_row() ? "" : "; or set TF_MPI_SPARSE=dense"));
  }
  if (rows != nullptr) {
    Unpack(format.dtype, rows.get(), values, found.size() * format.elements, 1);
  }
  *count = static_cast<int64_t>(found.size());
  narrow ? WriteIndices<int32_t>(found) : WriteIndices<int64_t>(found);
  return absl::OkStatus();
}

std::vector<int64_t> ReadIndices(const ffi::AnyBuffer& buffer, size_t rows) {
  if (buffer.element_type() == ffi::DataType::S32) {
    const int32_t* const from = buffer.typed_data<int32_t>();
    return std::vector<int64_t>(from, from + rows);
  }
  const int64_t* const from = buffer.typed_data<int64_t>();
  return std::vector<int64_t>(from, from + rows);
}

absl::Status AddSlices(const std::string& name, const ffi::AnyBuffer& values,
                       const ffi::AnyBuffer& indices, const ffi::AnyBuffer& values_result,
                       const ffi::AnyBuffer& indices_result, int64_t* count, float weight,
                       Duplicates duplicates, Slices* slices, RequestGroup* group) {
  const auto dims = values.dimensions();
  slices->name = name;
  slices->narrow = indices.element_type() == ffi::DataType::S32;
  if (!ToCoreType(values.element_type(), &slices->format.dtype) ||
      (!slices->narrow && indices.element_type() != ffi::DataType::S64) || dims.size() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the sparse gradient of '", name, "' has a dtype that cannot be averaged"));
  }
  const Shape row(dims.begin() + 1, dims.end());
  slices->format.elements = static_cast<size_t>(NumElements(row));
  slices->room = static_cast<size_t>(values_result.dimensions()[0]);
  slices->values = static_cast<char*>(values_result.untyped_data());
  slices->indices = indices_result.untyped_data();
  slices->count = count;
  OwnRows own(slices->format, ReadIndices(indices, static_cast<size_t>(dims[0])),
              values.untyped_data(), weight, duplicates);
  slices->gathered =
      std::make_unique<GatheredRows>(slices->format, std::move(own), GetEngine()->topology().rank,
                                     [slices](size_t all) { return slices->AllocateRows(all); });
  group->Add(GatherRequest(name, slices->format, row, /*limit=*/-1, slices->gathered.get()));
  return absl::OkStatus();
}

void AddDense(const AveragePlan& plan, size_t first, ffi::RemainingArgs args,
              ffi::RemainingRets rets, float weight, bool first_time, RequestGroup* group) {
  std::vector<Request::Buffers> buffers(plan.shapes().size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    buffers[i] = {args.get<ffi::AnyBuffer>(first + i)->untyped_data(),
                  (*rets.get<ffi::AnyBuffer>(first + i))->untyped_data()};
  }
  const std::vector<void*> none(plan.entries().size());
  for (Request& request : plan.Requests(buffers, none, weight, first_time)) {
    group->Add(std::move(request));
  }
}

absl::Status AddRequests(std::string_view joined, ffi::RemainingArgs args, ffi::RemainingRets rets,
                         Duplicates duplicates, std::vector<Slices>* slices, RequestGroup* group) {
  const absl::StatusOr<std::shared_ptr<const CallPlan>> plan =
      PlanFor(joined, slices->size(), args);
  if (!plan.ok()) return plan.status();
  const size_t weight_place = args.size() - 2;
  const float weight = args.get<ffi::AnyBuffer>(weight_place)->typed_data<float>()[0];
  const std::string first(joined.substr(0, joined.find(kNameSeparator)));
  absl::Status status = CheckWeight(weight, first);
  int64_t* const counts =
      slices->empty() ? nullptr
                      : (*rets.get<ffi::AnyBuffer>(weight_place + 1))->typed_data<int64_t>();
  for (size_t i = 0; status.ok() && i < slices->size(); ++i) {
    status = AddSlices((*plan)->slices[i], *args.get<ffi::AnyBuffer>(2 * i),
                       *args.get<ffi::AnyBuffer>(2 * i + 1), **rets.get<ffi::AnyBuffer>(2 * i),
                       **rets.get<ffi::AnyBuffer>(2 * i + 1), counts + i, weight, duplicates,
                       &(*slices)[i], group);
  }
  if (!status.ok()) return status;
  if ((*plan)->dense != nullptr) {
    AddDense(*(*plan)->dense, 2 * slices->size(), args, rets, weight, IsFirstAverage(first), group);
  }
  (*rets.get<ffi::AnyBuffer>(weight_place))->typed_data<float>()[0] = 0;
  CountGradients(static_cast<int64_t>(weight_place - slices->size()));
  return status;
}

absl::Status WriteAll(const std::vector<Slices>& slices) {
  for (const Slices& one : slices) {
    const absl::Status status = one.Write();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// In a forked child: what this process has is the average, as on one rank.
ffi::Future PassOn(ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t sparse) {
  const size_t weight_place = args.size() - 2;
  for (size_t i = 0; i < weight_place; ++i) {
    const ffi::AnyBuffer from = *args.get<ffi::AnyBuffer>(i);
    const ffi::AnyBuffer to = **rets.get<ffi::AnyBuffer>(i);
    if (from.untyped_data() == to.untyped_data()) continue;
    std::memcpy(to.untyped_data(), from.untyped_data(), from.size_bytes());
    const size_t rest = to.size_bytes() - from.size_bytes();  // of sparse gradients
    std::memset(static_cast<char*>(to.untyped_data()) + from.size_bytes(), 0xff, rest);
  }
  (*rets.get<ffi::AnyBuffer>(weight_place))->typed_data<float>()[0] = 0;
  for (size_t i = 0; i < static_cast<size_t>(sparse); ++i) {
    (*rets.get<ffi::AnyBuffer>(weight_place + 1))->typed_data<int64_t>()[i] =
        args.get<ffi::AnyBuffer>(2 * i)->dimensions()[0];
  }
  ffi::Promise promise;
  ffi::Future future(promise);
  promise.SetAvailable();
  return future;
}

ffi::Future Average(ffi::RemainingArgs args, ffi::RemainingRets rets, std::string_view joined,
                    int64_t sparse, int64_t every_row) {
  if (GetEngine() == nullptr) return PassOn(args, rets, sparse);
  const auto duplicates = static_cast<Duplicates>(every_row);
  const auto slices = std::make_shared<std::vector<Slices>>(static_cast<size_t>(sparse));
  return Submit(
      [&](RequestGroup* group) {
        return AddRequests(joined, args, rets, duplicates, slices.get(), group);
      },
      [slices] { return WriteAll(*slices); });
}

XLA_FFI_DEFINE_HANDLER(kAverageHandler, Average,
                       ffi::Ffi::Bind()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<std::string_view>("names")
                           .Attr<int64_t>("slices")
                           .Attr<int64_t>("every_row"));

// Shapes and dtypes are as EmitRest has given them.
ffi::Error ClearRest(ffi::AnyBuffer values, ffi::AnyBuffer found,
                     ffi::Result<ffi::AnyBuffer> result) {
  const size_t bytes = values.size_bytes();
  const auto room = static_cast<size_t>(values.dimensions()[0]);
  const size_t written =
      room == 0 ? 0 : bytes / room * static_cast<size_t>(*found.typed_data<int64_t>());
  char* const into = static_cast<char*>(result->untyped_data());
  if (into != values.untyped_data()) std::memcpy(into, values.untyped_data(), written);
  std::memset(into + written, 0, bytes - written);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(
    kRestHandler, ClearRest,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

}  // namespace

absl::Status RegisterCompiledCall(std::string_view name, XLA_FFI_Handler* handler) {
  const XLA_FFI_Api* const api = ffi::GetXlaFfiApi();
  if (api->struct_size < XLA_FFI_Api_STRUCT_SIZE ||
      api->api_version.major_version != XLA_FFI_API_MAJOR) {
    return absl::InternalError("tensorflow.mpi was built for another version of XLA's FFI");
  }
  if (ffi::Ffi::RegisterStaticHandler(api, name, "Host", handler) != nullptr) {
    return absl::InternalError("XLA refused the calls that average");
  }
  return absl::OkStatus();
}

absl::Status RegisterCompiledCalls() {
  static const absl::Status* const status = new absl::Status([] {
    absl::Status registered = RegisterCompiledCall(kCompiledAverage, kAverageHandler);
    registered.Update(RegisterCompiledCall(kCompiledRest, kRestHandler));
    return registered;
  }());
  return *status;
}

}  // namespace tfmpi
