#include "tensorflow_patches/glue/xla/compiled_call_gpu.h"

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tensorflow_patches/glue/kernels/average_kernel.h"
#include "tensorflow_patches/glue/runtime/gpu_step.h"
#include "tensorflow_patches/glue/xla/compiled_requests.h"
#include "tensorflow_patches/glue/xla/compiled_slices.h"

namespace tfmpi {
namespace {

// Pinned memory of at least the size asked for, taken from a pool and returned to it by the
// destructor. The copies that use it must have ended by then; otherwise call Leak.
class PooledPinned {
 public:
  PooledPinned() = default;
  PooledPinned(PooledPinned&& other) noexcept
      : gpu_(other.gpu_), bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  PooledPinned& operator=(PooledPinned&&) = delete;
  ~PooledPinned() {
    if (data_ == nullptr) return;
    std::lock_guard<std::mutex> lock(Mutex());
    Kept()[{gpu_, bytes_}].push_back(data_);
  }

  Status Take(Gpu* gpu, size_t bytes) {
    gpu_ = gpu;
    for (bytes_ = 4096; bytes_ < bytes;) bytes_ *= 2;
    {
      std::lock_guard<std::mutex> lock(Mutex());
      std::vector<void*>& kept = Kept()[{gpu_, bytes_}];
      if (!kept.empty()) {
        data_ = kept.back();
        kept.pop_back();
        return Status();
      }
    }
    return gpu->NewPinned(bytes_, &data_);
  }
  void Leak() { data_ = nullptr; }
  void* data() const { return data_; }

 private:
  static std::mutex& Mutex() {
    static auto* const mutex = new std::mutex;
    return *mutex;
  }
  static std::map<std::pair<Gpu*, size_t>, std::vector<void*>>& Kept() {
    static auto* const kept = new std::map<std::pair<Gpu*, size_t>, std::vector<void*>>;
    return *kept;
  }

  Gpu* gpu_ = nullptr;
  size_t bytes_ = 0;
  void* data_ = nullptr;
};

// Host copies of the operands and results that the host must read or write: sparse gradients, the
// weight and the counts.
class Mirror {
 public:
  Mirror(const Operands& operands, const GpuMemory& memory)
      : real_(operands), host_(operands), memory_(memory) {}
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;
  ~Mirror() {
    if (!copying_) return;
    for (PooledPinned& memory : memories_) memory.Leak();
  }

  const Operands& operands() const { return host_; }

  // Copies the operands to the host and waits.
  Status Fetch() {
    for (size_t i = 0; i < 2 * real_.num_sparse; ++i) {
      Status status = AllocateOnHost(&host_.args[i]);
      if (status.ok()) status = AllocateOnHost(&host_.rets[i]);
      if (status.ok()) status = Copy(host_.args[i], real_.args[i]);
      if (!status.ok()) return status;
    }
    const size_t index = real_.weight_index();
    Status status = AllocateOnHost(&host_.args[index]);
    if (status.ok()) status = AllocateOnHost(&host_.rets[index + 1]);
    if (status.ok()) status = Copy(host_.args[index], real_.args[index]);
    return status.ok() ? AwaitStream() : status;
  }

  // Copies the results back, with zeros in the unused values, and waits.
  Status Return() {
    const auto* const counts = host_.counts()->as<int64_t>();
    for (size_t i = 0; i < 2 * real_.num_sparse; ++i) {
      const Operand& result = host_.rets[i];
      if (i % 2 == 0 && result.dims[0] != 0) {
        const size_t row = result.bytes / static_cast<size_t>(result.dims[0]);
        const size_t written = row * static_cast<size_t>(counts[i / 2]);
        std::memset(result.as<char>() + written, 0, result.bytes - written);
      }
      const Status status = Copy(real_.rets[i], result);
      if (!status.ok()) return status;
    }
    const size_t index = real_.weight_index() + 1;
    const Status status = Copy(real_.rets[index], host_.rets[index]);
    return status.ok() ? AwaitStream() : status;
  }

 private:
  Status AllocateOnHost(Operand* operand) {
    memories_.emplace_back();
    const Status status = memories_.back().Take(memory_.gpu, operand->bytes);
    operand->data = memories_.back().data();
    return status;
  }
  Status Copy(const Operand& to, const Operand& from) {
    if (from.bytes == 0) return Status();
    copying_ = true;
    return memory_.gpu->Copy(to.data, from.data, from.bytes, memory_.stream);
  }
  Status AwaitStream() {
    PooledEvent event;
    const absl::Status taken = event.Take(memory_.gpu);
    if (!taken.ok()) return Status(Code::kInternal, std::string(taken.message()));
    Status status = memory_.gpu->Record(event.get(), memory_.stream);
    // Also ends when the engine has failed: the stream may wait for a rank that has died, until the
    // engine aborts that exchange.
    for (bool ended = false; status.ok() && !ended;) {
      status = memory_.gpu->Query(event.get(), &ended);
      if (status.ok() && !ended) status = GetEngine()->failure();
      if (!ended) Clock::Sleep(std::chrono::microseconds(20));
    }
    if (status.ok()) copying_ = false;
    return status;
  }

  const Operands& real_;
  Operands host_;
  const GpuMemory memory_;
  std::vector<PooledPinned> memories_;
  bool copying_ = false;  // the GPU may still use `memories_`, also after an error
};

absl::Status SubmitAndWait(std::unique_ptr<RequestGroup> group) {
  absl::Notification over;
  absl::Status result;
  RequestGroup::Submit(std::move(group), /*what=*/"", [&](const absl::Status& ended) {
    result = ended;
    over.Notify();
  });
  over.WaitForNotification();
  return result;
}

}  // namespace

absl::Status AverageOnStream(void* stream, const Operands& operands, std::string_view joined,
                             Duplicates duplicates) {
  Engine* const engine = GetEngine();
  if (engine == nullptr) {
    return absl::FailedPreconditionError(
        "a forked process cannot use a GPU; start it with multiprocessing's 'spawn' method");
  }
  GpuMemory memory;
  TF_RETURN_IF_ERROR(GpuOfStream(stream, &memory));
  const absl::StatusOr<std::shared_ptr<const CallPlan>> plan = PlanFor(joined, operands);
  if (!plan.ok()) return plan.status();
  auto group = std::make_unique<RequestGroup>(engine, nullptr, RunOnOwnThread);
  Mirror mirror(operands, memory);
  std::vector<SparseGradient> sparse(operands.num_sparse);
  if (!sparse.empty()) {
    TF_RETURN_IF_ERROR(ToAbsl(mirror.Fetch()));
    const float weight = *mirror.operands().weight().as<float>();
    TF_RETURN_IF_ERROR(CheckWeight(weight, FirstName(joined)));
    TF_RETURN_IF_ERROR(
        AddAll((*plan)->sparse_names, mirror.operands(), weight, duplicates, &sparse, group.get()));
  }
  group->SetMemory(memory);  // for the dense gradients: the sparse ones above are in host memory
  if ((*plan)->dense != nullptr) {
    AddDense(*(*plan)->dense, operands, {1, operands.weight().data}, /*fingerprints=*/false,
             group.get());
  }
  CountGradients(static_cast<int64_t>(operands.weight_index() - operands.num_sparse));
  TF_RETURN_IF_ERROR(SubmitAndWait(std::move(group)));
  if (sparse.empty()) return absl::OkStatus();
  TF_RETURN_IF_ERROR(WriteAll(sparse));
  return ToAbsl(mirror.Return());
}

absl::Status CopyValuesOnStream(void* stream, const Operand& values, const Operand& result) {
  if (values.data == result.data || values.bytes == 0) return absl::OkStatus();
  GpuMemory memory;
  TF_RETURN_IF_ERROR(GpuOfStream(stream, &memory));
  return ToAbsl(memory.gpu->Copy(result.data, values.data, values.bytes, memory.stream));
}

}  // namespace tfmpi
