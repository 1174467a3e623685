#include "tensorflow_patches/core/gpu/direct/direct_reduction.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "tensorflow_patches/core/gpu/await_event.h"
#include "tensorflow_patches/core/observability/timeline.h"

namespace tfmpi {
namespace {

constexpr size_t kMaxWeights = 4096;  // on the GPU, per response
constexpr size_t kZeroBytes = size_t{256} << 10;

size_t PartBytes(DataType type, size_t count) { return PaddedElements(type, count) * SizeOf(type); }

// A tensor of an entry, with or without parts: its buffers and element count.
struct Tensor {
  const void* input;
  void* output;
  size_t count;
};

std::vector<Tensor> TensorsOf(const FusionEntry& entry) {
  const Request& request = *entry.request;
  if (entry.signature.parts == nullptr) {
    return {{request.input, request.output, Count(entry.signature)}};
  }
  std::vector<Tensor> tensors;
  char* packed = static_cast<char*>(request.output);  // null: each part has its own output
  for (size_t i = 0; i < request.parts.size(); ++i) {
    const size_t count = static_cast<size_t>(NumElements(entry.signature.parts->shapes[i]));
    tensors.push_back(
        {request.parts[i].input, packed != nullptr ? packed : request.parts[i].output, count});
    if (packed != nullptr) packed += PartBytes(entry.signature.dtype, count);
  }
  return tensors;
}

// All ranks must split a response the same way: by what they have agreed on, not by their own
// weights.
bool CanBatch(const FusionEntry& a, const FusionEntry& b) {
  return a.signature.dtype == b.signature.dtype && !a.signature.weighted && !b.signature.weighted;
}

size_t PackedBytes(const FusionEntry& entry) {
  size_t bytes = 0;
  for (const Tensor& tensor : TensorsOf(entry)) {
    bytes += PartBytes(entry.signature.dtype, tensor.count);
  }
  return bytes;
}

}  // namespace

struct DirectReduction::Run {
  size_t begin = 0;
  size_t end = 0;
  ReduceOp op = ReduceOp::kSum;
  double scale = 1;
  bool weight_is_zero = false;  // this rank's tensors count as zeros, even NaNs in them
};

DirectReduction::~DirectReduction() {
  for (const auto& [buffer, bytes] : buffers_) collectives_->DeleteBuffer(buffer);
  collectives_.reset();
  for (const InFlight& one : in_flight_) gpu_->Delete(one.event);
  for (const GpuEvent event : events_) gpu_->Delete(event);
  if (read_ != nullptr) gpu_->Delete(read_);
  if (weights_ != nullptr) gpu_->DeletePinned(weights_);
  if (zeros_ != nullptr) gpu_->DeletePinned(zeros_);
  if (stream_ != nullptr) gpu_->Delete(stream_);
}

Status DirectReduction::Prepare() {
  Status status = gpu_->NewStream(&stream_);
  if (status.ok()) status = gpu_->NewEvent(&read_);
  void* memory = nullptr;
  if (status.ok()) status = gpu_->NewPinned(kMaxWeights * sizeof(float), &memory);
  weights_ = static_cast<float*>(memory);
  memory = nullptr;
  if (status.ok()) status = gpu_->NewPinned(kZeroBytes, &memory);
  zeros_ = static_cast<char*>(memory);
  if (zeros_ != nullptr) std::memset(zeros_, 0, kZeroBytes);
  return status;
}

bool DirectReduction::Takes(const std::vector<FusionEntry>& entries) const {
  return entries.size() <= kMaxWeights &&
         std::all_of(entries.begin(), entries.end(), [this](const FusionEntry& entry) {
           return collectives_->Takes(entry.signature.dtype, entry.signature.op);
         });
}

Status DirectReduction::Allreduce(const std::vector<FusionEntry>& entries, double scale,
                                  TimePoint deadline) {
  refused_ = Status();
  for (const FusionEntry& entry : entries) {
    if (entry.request->memory.gpu == gpu_) continue;
    return Status(Code::kUnavailable,
                  "'" + entry.request->name + "' is on " +
                      entry.request->memory.gpu->description() + ", but this rank reduces on " +
                      gpu_->description() +
                      ". Use one GPU per rank, or set TF_MPI_GPU_TRANSPORT=staged on all ranks");
  }
  std::vector<double> weights(entries.size(), 1);
  Status status = WaitForSubmitters(entries);
  if (status.ok()) status = ReadWeights(entries, &weights, deadline);
  const ReduceOp op = entries[0].signature.op;
  for (size_t begin = 0; begin < entries.size() && status.ok();) {
    Run run;
    run.begin = begin;
    run.end = begin + 1;
    while (run.end < entries.size() && CanBatch(entries[begin], entries[run.end])) ++run.end;
    run.weight_is_zero = weights[begin] == 0;
    run.scale = run.weight_is_zero ? scale : weights[begin] * scale;
    // In a sum, ranks may pass different operations: see DeviceCollectives::Allreduce.
    run.op = op == ReduceOp::kSum && run.scale != 1 ? ReduceOp::kAverage : op;
    status = Reduce(entries, run, deadline);
    begin = run.end;
  }
  const Status continued = LetSubmittersContinue(entries, deadline);
  if (!status.ok()) return Fatal(status);
  return continued.ok() ? refused_ : Fatal(continued);
}

Status DirectReduction::WaitForSubmitters(const std::vector<FusionEntry>& entries) {
  GpuEvent last = nullptr;
  for (const FusionEntry& entry : entries) {
    if (entry.request->memory.ready == last) continue;
    last = entry.request->memory.ready;
    TFMPI_RETURN_IF_NOT_OK(gpu_->Wait(stream_, last));
  }
  return Status();
}

Status DirectReduction::ReadWeights(const std::vector<FusionEntry>& entries,
                                    std::vector<double>* weights, TimePoint deadline) {
  size_t copies = 0;  // one for consecutive entries with the same weight
  const void* last = nullptr;
  for (const FusionEntry& entry : entries) {
    const void* const on_gpu = entry.request->memory.weight_on_gpu;
    if (on_gpu == nullptr || on_gpu == last) continue;
    last = on_gpu;
    TFMPI_RETURN_IF_NOT_OK(gpu_->Copy(weights_ + copies++, on_gpu, sizeof(float), stream_));
  }
  if (copies != 0) {
    TFMPI_RETURN_IF_NOT_OK(gpu_->Record(read_, stream_));
    TFMPI_RETURN_IF_NOT_OK(AwaitWeights(entries[0].request->name, deadline));
  }
  size_t next = 0;
  last = nullptr;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Request& request = *entries[i].request;
    const void* const on_gpu = request.memory.weight_on_gpu;
    if (on_gpu != nullptr && on_gpu != last) ++next;
    if (on_gpu != nullptr) last = on_gpu;
    const double weight = on_gpu == nullptr ? request.scale : weights_[next - 1];
    (*weights)[i] = weight;
    if (std::isfinite(weight) && weight >= 0 && (weight == 1 || entries[i].signature.weighted)) {
      continue;
    }
    refused_ = Status(Code::kInvalidArgument,
                      "the weight of '" + request.name + "' is " + std::to_string(weight) +
                          "; it must be finite and not negative, and 1 in an unweighted average");
  }
  return Status();
}

Status DirectReduction::Reduce(const std::vector<FusionEntry>& entries, const Run& run,
                               TimePoint deadline) {
  const FusionEntry& first = entries[run.begin];
  const bool one = run.end == run.begin + 1 && first.signature.parts == nullptr;
  return one ? ReduceOne(first, run, deadline) : ReduceTogether(entries, run, deadline);
}

// Reduces from the request's input to its output, without a buffer.
Status DirectReduction::ReduceOne(const FusionEntry& entry, const Run& run, TimePoint deadline) {
  const Request& request = *entry.request;
  const size_t count = Count(entry.signature);
  if (count == 0) return Status();
  const size_t bytes = count * SizeOf(entry.signature.dtype);
  const void* in = request.input;
  if (run.weight_is_zero) {
    TFMPI_RETURN_IF_NOT_OK(Clear(static_cast<char*>(request.output), bytes));
    in = request.output;
  }
  return ReduceBetweenGpus(in, request.output, count, entry.signature.dtype, run, deadline);
}

Status DirectReduction::ReduceBetweenGpus(const void* in, void* out, size_t count, DataType type,
                                          const Run& run, TimePoint deadline) {
  std::optional<Span> span;
  if (!collectives_->records()) {
    span.emplace(Stage::kReduce, "between GPUs", count * SizeOf(type));
  }
  return collectives_->Allreduce(in, out, count, type, run.op, run.scale, stream_, deadline);
}

// Reduces in a buffer, or in the memory that a single request provides for all of its results.
Status DirectReduction::ReduceTogether(const std::vector<FusionEntry>& entries, const Run& run,
                                       TimePoint deadline) {
  size_t bytes = 0;
  for (size_t i = run.begin; i < run.end; ++i) bytes += PackedBytes(entries[i]);
  if (bytes == 0) return Status();
  const Request& first = *entries[run.begin].request;
  const bool in_place = run.end == run.begin + 1 && first.output != nullptr;
  char* buffer = static_cast<char*>(first.output);
  Status status = in_place ? Status() : GetBuffer(bytes, &buffer);
  const DataType type = entries[run.begin].signature.dtype;
  if (status.ok() && run.weight_is_zero) status = Clear(buffer, bytes);
  char* next = buffer;
  for (size_t i = run.begin; i < run.end && !run.weight_is_zero; ++i) {
    const Span span(Stage::kPack, "on the GPU");
    for (const Tensor& tensor : TensorsOf(entries[i])) {
      if (status.ok() && tensor.count != 0) {
        status = gpu_->Copy(next, tensor.input, tensor.count * SizeOf(type), stream_);
      }
      next += PartBytes(type, tensor.count);
    }
  }
  if (status.ok()) {
    status = ReduceBetweenGpus(buffer, buffer, bytes / SizeOf(type), type, run, deadline);
  }
  next = buffer;
  for (size_t i = run.begin; i < run.end && !in_place; ++i) {
    const Span span(Stage::kUnpack, "on the GPU");
    for (const Tensor& tensor : TensorsOf(entries[i])) {
      if (status.ok() && tensor.count != 0) {
        status = gpu_->Copy(tensor.output, next, tensor.count * SizeOf(type), stream_);
      }
      next += PartBytes(type, tensor.count);
    }
  }
  return status;
}

Status DirectReduction::Clear(char* memory, size_t bytes) {
  Status status;
  for (size_t done = 0; done < bytes && status.ok(); done += kZeroBytes) {
    status = gpu_->Copy(memory + done, zeros_, std::min(kZeroBytes, bytes - done), stream_);
  }
  return status;
}

Status DirectReduction::GetBuffer(size_t bytes, char** buffer) {
  if (buffers_.empty() || buffers_.back().second < bytes) {
    size_t room = size_t{1} << 20;
    while (room < bytes) room *= 2;
    void* memory = nullptr;
    TFMPI_RETURN_IF_NOT_OK(collectives_->NewBuffer(room, &memory));
    // Keeps smaller ones, which the GPU may still use. Together they are no larger than this one.
    buffers_.emplace_back(static_cast<char*>(memory), room);
  }
  *buffer = buffers_.back().first;
  return Status();
}

Status DirectReduction::LetSubmittersContinue(const std::vector<FusionEntry>& entries,
                                              TimePoint deadline) {
  InFlight one = {nullptr, deadline};
  TFMPI_RETURN_IF_NOT_OK(NewEvent(&one.event));
  in_flight_.push_back(one);
  Status status = gpu_->Record(one.event, stream_);
  GpuStream last = nullptr;
  for (const FusionEntry& entry : entries) {
    if (!status.ok() || entry.request->memory.stream == last) continue;
    last = entry.request->memory.stream;
    status = gpu_->Wait(last, one.event);
  }
  return status;
}

Status DirectReduction::NewEvent(GpuEvent* event) {
  // Recycles events. At TimePoint() no deadline has passed.
  TFMPI_RETURN_IF_NOT_OK(Check(TimePoint()));
  if (events_.empty()) return gpu_->NewEvent(event);
  *event = events_.back();
  events_.pop_back();
  return Status();
}

Status DirectReduction::Check(TimePoint now) {
  while (!in_flight_.empty()) {
    bool ended = false;
    const Status status = gpu_->Query(in_flight_.front().event, &ended);
    if (!status.ok()) return Fatal(status);
    if (!ended) break;
    events_.push_back(in_flight_.front().event);
    in_flight_.pop_front();
  }
  if (in_flight_.empty()) return Status();
  const Status polled = collectives_->Poll();
  if (!polled.ok()) return Fatal(polled);
  if (now <= in_flight_.front().deadline) return Status();
  return Status(
      Code::kDeadlineExceeded,
      "a reduction between GPUs (" + description() + ") has not ended on " + gpu_->description() +
          " within TF_MPI_STALL_TIMEOUT (at most 300 s): another rank or this GPU hangs. If all "
          "ranks are alive, try TF_MPI_GPU_TRANSPORT=staged");
}

Status DirectReduction::Drain(TimePoint deadline) {
  while (true) {
    const TimePoint now = Clock::now();
    // After this deadline, work with a later deadline of its own counts as late, too.
    const Status status = Check(now > deadline ? TimePoint::max() : now);
    if (!status.ok() || in_flight_.empty()) return status;
    Clock::Sleep(std::chrono::microseconds(50));
  }
}

Status DirectReduction::AwaitWeights(const std::string& name, TimePoint deadline) {
  const Span span(Stage::kPack, "from the GPU");
  return AwaitEvent(
      gpu_, read_, deadline, [&] { return NotArrived("the weight of '" + name + "'", *gpu_); },
      [&] { return collectives_->Poll(); });
}

}  // namespace tfmpi
