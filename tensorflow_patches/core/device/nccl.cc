#include "tensorflow_patches/core/device/nccl.h"

#include <map>
#include <utility>

#include "tensorflow_patches/core/cpu/reduce.h"

namespace tfmpi {
namespace {

constexpr std::chrono::microseconds kPollInterval{50};  // of a communicator's state
constexpr std::chrono::seconds kFinalizeTimeout{5};     // for all ranks to finalize

// -1: NCCL has no such type.
int NcclType(DataType type) {
  switch (type) {
    case DataType::kInt8:
      return 0;
    case DataType::kUint8:
      return 1;
    case DataType::kInt32:
      return 2;
    case DataType::kUint32:
      return 3;
    case DataType::kInt64:
      return 4;
    case DataType::kUint64:
      return 5;
    case DataType::kFloat16:
      return 6;
    case DataType::kFloat32:
    case DataType::kComplex64:
      return 7;
    case DataType::kFloat64:
    case DataType::kComplex128:
      return 8;
    case DataType::kBfloat16:
      return 9;
    case DataType::kInt16:
    case DataType::kUint16:
    case DataType::kBool:
      return -1;
  }
  return -1;
}

int NcclOp(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return kNcclMin;
    case ReduceOp::kMax:
      return kNcclMax;
    case ReduceOp::kProduct:
      return kNcclProd;
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
    case ReduceOp::kPlainSum:
      return kNcclSum;
  }
  return kNcclSum;
}

class NcclCollectives : public DeviceCollectives {
 public:
  NcclCollectives(const Nccl& nccl, const NcclOptions& options) : nccl_(nccl), options_(options) {
    nccl_.GetVersion(&version_);
  }

  // If buffers are left, waits for enqueued work. Then finalizes, which waits for all ranks, at
  // most kFinalizeTimeout. After a failure Abort must have been called, so that enqueued work does
  // not wait for other ranks.
  ~NcclCollectives() override {
    const InContext in_context(*options_.driver, options_.context);
    if (!buffers_.empty()) options_.driver->CtxSynchronize();
    for (const auto& [memory, handle] : buffers_) Release(memory, handle);
    if (comm_ == nullptr) return;
    bool finalized = false;
    if (!failed_) {
      const int started = nccl_.CommFinalize(comm_);
      finalized = Settle(started, Clock::now() + kFinalizeTimeout) == kNcclSuccess;
    }
    if (finalized) {
      nccl_.CommDestroy(comm_);
    } else {
      nccl_.CommAbort(comm_);
    }
  }

  std::string description() const override { return "NCCL " + NcclVersionText(version_); }

  Status Init() {
    const InContext in_context(*options_.driver, options_.context);
    if (in_context.error() != kCudaSuccess) return ContextError(in_context);
    NcclConfig config;
    config.blocking = 0;
    if (options_.max_ctas > 0) config.max_ctas = options_.max_ctas;
    const int started =
        nccl_.CommInitRankConfig(&comm_, options_.size, options_.id, options_.rank, &config);
    return CheckCollective("ncclCommInitRankConfig", Settle(started, options_.deadline));
  }

  Status Allreduce(const void* in, void* out, size_t count, DataType type, ReduceOp op,
                   double scale, GpuStream stream, TimePoint deadline) override {
    return Reduce("ncclAllReduce", nccl_.AllReduce, in, out, count, type, op, scale, stream,
                  deadline);
  }

  Status ReduceScatter(const void* in, void* out, size_t count, DataType type, ReduceOp op,
                       double scale, GpuStream stream, TimePoint deadline) override {
    return Reduce("ncclReduceScatter", nccl_.ReduceScatter, in, out, count, type, op, scale, stream,
                  deadline);
  }

  Status Allgather(const void* in, void* out, size_t count, DataType type, GpuStream stream,
                   TimePoint deadline) override {
    if (!NcclSupports(type, ReduceOp::kSum)) return NoSuchType(ReduceOp::kSum, type);
    TFMPI_RETURN_IF_NOT_OK(Usable());
    const InContext in_context(*options_.driver, options_.context);
    if (in_context.error() != kCudaSuccess) return ContextError(in_context);
    const int started =
        nccl_.AllGather(in, out, count * WireElements(type), NcclType(type), comm_, stream);
    return CheckCollective("ncclAllGather", Settle(started, deadline), count * SizeOf(type));
  }

  Status Poll() override {
    TFMPI_RETURN_IF_NOT_OK(Usable());
    int state = kNcclSuccess;
    const int result = nccl_.CommGetAsyncError(comm_, &state);
    if (result != kNcclSuccess) return Check("ncclCommGetAsyncError", result);
    return state == kNcclInProgress ? Status() : CheckCollective("a collective", state);
  }

  void Abort() override {
    if (comm_ == nullptr) return;
    const InContext in_context(*options_.driver, options_.context);
    nccl_.CommAbort(std::exchange(comm_, nullptr));
    // A registration ends with its communicator, but the memory stays.
    for (auto& [memory, handle] : buffers_) handle = nullptr;
  }

  Status NewBuffer(size_t bytes, void** memory) override {
    TFMPI_RETURN_IF_NOT_OK(Usable());
    const InContext in_context(*options_.driver, options_.context);
    if (in_context.error() != kCudaSuccess) return ContextError(in_context);
    const int result = nccl_.MemAlloc(memory, bytes);
    // Not by Check, which would mark the communicator as failed: it is still usable.
    if (result != kNcclSuccess) {
      return ToStatus("ncclMemAlloc of " + std::to_string(bytes) + " bytes", result);
    }
    // Without registration it is only slower.
    void* handle = nullptr;
    if (nccl_.CommRegister(comm_, *memory, bytes, &handle) != kNcclSuccess) handle = nullptr;
    buffers_[*memory] = handle;
    return Status();
  }

  void DeleteBuffer(void* memory) override {
    const auto known = buffers_.find(memory);
    if (known == buffers_.end()) return;
    const InContext in_context(*options_.driver, options_.context);
    options_.driver->CtxSynchronize();
    Release(known->first, known->second);
    buffers_.erase(known);
  }

 private:
  using ReduceFunction = int (*)(const void* in, void* out, size_t count, int type, int op,
                                 NcclComm comm, GpuStream stream);

  Status Reduce(const char* what, ReduceFunction reduce, const void* in, void* out, size_t count,
                DataType type, ReduceOp op, double scale, GpuStream stream, TimePoint deadline) {
    if (!NcclSupports(type, op)) return NoSuchType(op, type);
    const bool sums = op == ReduceOp::kAverage || op == ReduceOp::kSum;
    // True even if this rank's scale is 1: NCCL selects its algorithm by the operation, which must
    // therefore be the same on all ranks.
    const bool scaled = sums && IsFloating(type);
    if (scale != 1 && !(scaled && op == ReduceOp::kAverage)) {
      return Status(Code::kInvalidArgument,
                    std::string(Name(op)) + " of " + Name(type) + " takes no scale");
    }
    TFMPI_RETURN_IF_NOT_OK(Usable());
    const InContext in_context(*options_.driver, options_.context);
    if (in_context.error() != kCudaSuccess) return ContextError(in_context);
    const size_t elements = count * WireElements(type);
    int reduction = NcclOp(op);
    if (scaled) {
      TFMPI_RETURN_IF_NOT_OK(NewScaledSum(type, scale, &reduction));
    }
    const int started = reduce(in, out, elements, NcclType(type), reduction, comm_, stream);
    const int result = Settle(started, deadline);
    if (scaled && result == kNcclSuccess) nccl_.RedOpDestroy(reduction, comm_);
    return CheckCollective(what, result, count * SizeOf(type));
  }

  static Status NoSuchType(ReduceOp op, DataType type) {
    return Status(Code::kInvalidArgument, std::string("NCCL has no ") + Name(op) + " of " +
                                              Name(type) + ": it must be staged");
  }

  Status Usable() {
    if (comm_ != nullptr && !failed_) return Status();
    return Status(Code::kUnavailable, description() + ": its communicator has failed");
  }

  // If the call that returned `result` is in progress, waits for its end, at most until `deadline`.
  int Settle(int result, TimePoint deadline) {
    while (result == kNcclInProgress && comm_ != nullptr) {
      int state = kNcclSuccess;
      result = nccl_.CommGetAsyncError(comm_, &state);
      if (result == kNcclSuccess) result = state;
      if (result != kNcclInProgress || Clock::now() >= deadline) break;
      Clock::Sleep(kPollInterval);
    }
    return result;
  }

  // A sum of elements multiplied by `scale`, with each product rounded to the type. Unpack rounds
  // `scale` to that type, or to the type of a complex number's parts.
  Status NewScaledSum(DataType type, double scale, int* op) {
    const DataType real = RealOf(type);
    const float single = static_cast<float>(scale);
    uint64_t scalar = 0;
    Unpack(real, WireType(real) == DataType::kFloat64 ? static_cast<const void*>(&scale) : &single,
           &scalar, 1, 1);
    return Check(
        "ncclRedOpCreatePreMulSum",
        nccl_.RedOpCreatePreMulSum(op, &scalar, NcclType(type), kNcclScalarHostImmediate, comm_));
  }

  void Release(void* memory, void* handle) {
    if (handle != nullptr) nccl_.CommDeregister(comm_, handle);
    nccl_.MemFree(memory);
  }

  Status CheckCollective(const char* what, int result, size_t bytes = 0) {
    if (result == kNcclSuccess) return Status();
    std::string text = what;
    if (bytes != 0) text += " of " + std::to_string(bytes) + " bytes";
    return Check(text + " between " + std::to_string(options_.size) + " ranks", result);
  }

  Status Check(const std::string& what, int result) {
    if (result != kNcclSuccess) failed_ = true;
    return ToStatus(what, result);
  }

  Status ToStatus(const std::string& what, int result) {
    if (result == kNcclSuccess) return Status();
    std::string text = description() + ": " + what + ": ";
    if (result == kNcclInProgress) {  // `what` is a collective
      return Status(Code::kDeadlineExceeded,
                    text + "not all of them arrived in time; another rank hangs or has died");
    }
    const char* const more = comm_ == nullptr ? nullptr : nccl_.GetLastError(comm_);
    text += nccl_.GetErrorString(result);
    if (more != nullptr && *more != '\0') text += std::string(" (") + more + ")";
    return Status(Code::kUnavailable, text + "; set NCCL_DEBUG=WARN for details");
  }

  Status ContextError(const InContext& in_context) {
    failed_ = true;
    return Status(Code::kInternal, "cannot use the GPU's context: " +
                                       CudaErrorText(*options_.driver, in_context.error()));
  }

  const Nccl& nccl_;
  const NcclOptions options_;
  int version_ = 0;
  NcclComm comm_ = nullptr;
  bool failed_ = false;
  std::map<void*, void*> buffers_;  // memory: its registration, or null
};

}  // namespace

bool NcclSupports(DataType type, ReduceOp op) {
  if (NcclType(type) < 0) return false;
  const bool sums = op == ReduceOp::kSum || op == ReduceOp::kAverage;
  if (IsComplex(type)) return sums;
  return op != ReduceOp::kAverage || IsFloating(type);
}

Status NewNcclId(const Nccl& nccl, NcclId* id) {
  const int result = nccl.GetUniqueId(id);
  if (result == kNcclSuccess) return Status();
  return Status(Code::kUnavailable, std::string("ncclGetUniqueId: ") + nccl.GetErrorString(result) +
                                        "; set NCCL_DEBUG=WARN for details");
}

Status MakeNcclCollectives(const Nccl& nccl, const NcclOptions& options,
                           std::unique_ptr<DeviceCollectives>* collectives) {
  auto made = std::make_unique<NcclCollectives>(nccl, options);
  const Status status = made->Init();
  if (status.ok()) {
    *collectives = std::move(made);
  } else {
    made->Abort();
  }
  return status;
}

}  // namespace tfmpi
