#include "tests/core/device/simulated_gpu.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gtest/gtest.h"
#include "tests/core/device/simulated_gpu_state.h"
#include "tests/core/device/unseen.h"

namespace tfmpi {
namespace {

thread_local const SimulatedGpu* current = nullptr;

}  // namespace

SimulatedGpu::SimulatedGpu(Options options)
    : options_(std::move(options)), memory_(options_.memory_bytes) {}

SimulatedGpu::~SimulatedGpu() {
  std::vector<std::thread> threads;
  {
    UnseenLock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    for (const auto& stream : streams_) threads.push_back(std::move(stream->thread));
  }
  for (std::thread& thread : threads) thread.join();
  const auto left = [this](auto n, const char* what) {
    if (n != 0) complaints_.push_back(std::to_string(n) + " not deleted: " + what);
  };
  const auto alive = [](const auto& object) { return !object->deleted; };
  left(std::count_if(streams_.begin(), streams_.end(), alive), "streams");
  left(std::count_if(events_.begin(), events_.end(), alive), "events");
  for (const auto& [memory, times] : opened_) left(times, "memory that was opened");
  left(memory_.Left(true), "blocks of pinned memory");
  left(memory_.Left(false) - expected_left_, "blocks of the GPU's memory");
  std::string all;
  for (const std::string& what : complaints_) all += "\n  " + what;
  if (!all.empty()) ADD_FAILURE() << options_.description << ":" << all;
}

// ---- The functions of Gpu ----

Status SimulatedGpu::MakeCurrent() {
  UnseenLock lock(mutex_);
  const Status status = Begin(Call::kMakeCurrent, "cuCtxSetCurrent");
  if (status.ok()) current = this;
  return status;
}

Status SimulatedGpu::NewStream(GpuStream* stream) {
  Stream* made = nullptr;
  {
    UnseenLock lock(mutex_);
    const Status status = Begin(Call::kNewStream, "cuStreamCreateWithPriority");
    if (!status.ok()) return status;
    streams_.push_back(std::make_unique<Stream>());
    made = streams_.back().get();
    made->number = static_cast<int>(streams_.size());
    made->random.seed(options_.seed * 1000003 + static_cast<uint64_t>(made->number));
  }
  std::thread thread([this, made] { Run(made); });
  UnseenLock lock(mutex_);
  made->thread = std::move(thread);
  *stream = reinterpret_cast<GpuStream>(made);
  return Status();
}

Status SimulatedGpu::NewEvent(GpuEvent* event) {
  UnseenLock lock(mutex_);
  const Status status = Begin(Call::kNewEvent, "cuEventCreate");
  if (!status.ok()) return status;
  events_.push_back(std::make_unique<Event>());
  *event = reinterpret_cast<GpuEvent>(events_.back().get());
  return Status();
}

void SimulatedGpu::Delete(GpuStream stream) {
  UnseenLock lock(mutex_);
  Stream* const known = Known(stream, "cuStreamDestroy");
  if (known != nullptr) known->deleted = true;
}

void SimulatedGpu::Delete(GpuEvent event) {
  UnseenLock lock(mutex_);
  Event* const known = Known(event, "cuEventDestroy");
  if (known != nullptr) known->deleted = true;
}

Status SimulatedGpu::Record(GpuEvent event, GpuStream stream) {
  UnseenLock lock(mutex_);
  ++counts_.records;
  const Status status = Begin(Call::kRecord, "cuEventRecord");
  if (!status.ok()) return status;
  Event* const known = Known(event, "cuEventRecord");
  Stream* const on = Known(stream, "cuEventRecord");
  if (known == nullptr || on == nullptr) return Complain("cuEventRecord: nothing was recorded");
  known->moment = Mark(on);
  return Status();
}

Status SimulatedGpu::Wait(GpuStream stream, GpuEvent event) {
  UnseenLock lock(mutex_);
  ++counts_.waits;
  const Status status = Begin(Call::kWait, "cuStreamWaitEvent");
  if (!status.ok()) return status;
  Event* const known = Known(event, "cuStreamWaitEvent");
  Stream* const waiting = Known(stream, "cuStreamWaitEvent");
  if (known == nullptr || waiting == nullptr) {
    return Complain("cuStreamWaitEvent: nothing is waited for");
  }
  if (known->moment == nullptr) return Status();
  auto work = std::make_unique<Work>();
  work->waits_for = known->moment;
  Enqueue(waiting, std::move(work));
  return Status();
}

Status SimulatedGpu::Query(GpuEvent event, bool* ended) {
  UnseenLock lock(mutex_);
  ++counts_.queries;
  *ended = false;
  const Status status = Begin(Call::kQuery, "cuEventQuery");
  if (!status.ok()) return status;
  Event* const known = Known(event, "cuEventQuery");
  if (known == nullptr) return Complain("cuEventQuery: no event");
  Moment* const moment = known->moment;
  *ended = moment == nullptr || moment->ended;
  if (!*ended) {
    Demand(*moment);
  } else if (moment != nullptr) {
    HappensAfter(moment);
  }
  return Status();
}

Status SimulatedGpu::Copy(void* to, const void* from, size_t bytes, GpuStream stream) {
  UnseenLock lock(mutex_);
  const Status status = Begin(Call::kCopy, "cuMemcpyAsync", bytes);
  if (!status.ok()) return status;
  Stream* const on = Known(stream, "cuMemcpyAsync");
  if (on == nullptr) return Complain("cuMemcpyAsync: nothing was copied");
  std::string why;
  const auto refuse = [&](const char* side) {
    return Complain("cuMemcpyAsync of " + std::to_string(bytes) + " bytes: " + side + " is " + why);
  };
  Block* const target = memory_.Find(to, bytes, &why);
  if (target == nullptr) return refuse("the target");
  Block* const source = memory_.Find(from, bytes, &why);
  if (source == nullptr) return refuse("the source");
  const bool to_gpu = source->pinned && !target->pinned;
  const bool to_host = !source->pinned && target->pinned;
  ++(to_gpu ? counts_.copies_to_gpu : to_host ? counts_.copies_to_host : counts_.copies_inside);
  if (to_gpu) counts_.bytes_to_gpu += bytes;
  if (to_host) counts_.bytes_to_host += bytes;
  auto work = std::make_unique<Work>();
  char* const inside_to = memory_.Inside(to);
  const char* const inside_from = memory_.Inside(from);
  work->body = [=] { std::memcpy(inside_to, inside_from, bytes); };
  work->uses = {target, source};
  Enqueue(on, std::move(work));
  return Status();
}

Status SimulatedGpu::NewPinned(size_t bytes, void** memory) {
  return Allocate(Call::kNewPinned, "cuMemHostAlloc", bytes, true, memory);
}
Status SimulatedGpu::NewMemory(size_t bytes, void** memory) {
  return Allocate(Call::kNewMemory, "cuMemAlloc", bytes, false, memory);
}
void SimulatedGpu::DeletePinned(void* memory) { Deallocate(memory, "cuMemFreeHost", true); }
void SimulatedGpu::DeleteMemory(void* memory) { Deallocate(memory, "cuMemFree", false); }

// ---- For tests ----

Status SimulatedGpu::Launch(GpuStream stream, std::function<void()> body,
                            const std::vector<const void*>& uses) {
  UnseenLock lock(mutex_);
  Stream* const on = Known(stream, "a kernel");
  if (on == nullptr) return Complain("a kernel was not launched");
  auto work = std::make_unique<Work>();
  work->body = std::move(body);
  for (const void* address : uses) {
    std::string why;
    Block* const block = memory_.Find(address, 0, &why);
    if (block == nullptr) return Complain("a kernel's memory is " + why);
    work->uses.push_back(block);
  }
  Enqueue(on, std::move(work));
  return Status();
}

bool SimulatedGpu::IsCurrent() const { return current == this; }

void SimulatedGpu::Finish(GpuStream stream) {
  UnseenLock lock(mutex_);
  ++counts_.host_waits;
  Stream* const known = Known(stream, "cuStreamSynchronize");
  if (known == nullptr) return;
  Moment* const moment = Mark(known);
  Demand(*moment);
  lock.Wait(changed_, [moment] { return moment->ended; });
  HappensAfter(moment);
}

void SimulatedGpu::Hold(GpuStream stream) {
  UnseenLock lock(mutex_);
  Stream* const known = Known(stream, "Hold");
  if (known != nullptr) known->held = true;
}

void SimulatedGpu::LetGo(GpuStream stream) {
  UnseenLock lock(mutex_);
  Stream* const known = Known(stream, "LetGo");
  if (known != nullptr) known->held = false;
  changed_.notify_all();
}

void SimulatedGpu::HoldWork(int n) {
  UnseenLock lock(mutex_);
  work_until_hold_ = n;
}

void SimulatedGpu::LetAllGo() {
  UnseenLock lock(mutex_);
  for (const auto& stream : streams_) stream->held = false;
  changed_.notify_all();
}

void SimulatedGpu::Fail(Call call, int n) {
  UnseenLock lock(mutex_);
  calls_until_failure_[call] = n;
}

void SimulatedGpu::FailWork(int n) {
  UnseenLock lock(mutex_);
  work_until_failure_ = n;
}

void SimulatedGpu::ExpectLeft(int blocks) {
  UnseenLock lock(mutex_);
  expected_left_ = blocks;
}

SimulatedGpu::Counts SimulatedGpu::counts() const {
  UnseenLock lock(mutex_);
  return counts_;
}

std::vector<std::string> SimulatedGpu::TakeComplaints() {
  UnseenLock lock(mutex_);
  return std::exchange(complaints_, {});
}

// ---- Private ----

Status SimulatedGpu::Begin(Call call, const char* name, size_t bytes) {
  const std::string of = bytes == 0 ? "" : " of " + std::to_string(bytes) + " bytes";
  const std::string where = name + of + " on " + options_.description + ": ";
  if (!failed_.empty()) return Status(Code::kInternal, where + failed_);
  const auto planned = calls_until_failure_.find(call);
  if (planned == calls_until_failure_.end() || --planned->second != 0) return Status();
  return Status(Code::kInternal, where + "CUDA_ERROR_UNKNOWN (as the test wants it)");
}

SimulatedGpu::Stream* SimulatedGpu::Known(GpuStream stream, const char* name) {
  for (const auto& known : streams_) {
    if (reinterpret_cast<GpuStream>(known.get()) != stream) continue;
    if (known->deleted) Complain(std::string(name) + ": the stream was deleted");
    return known->deleted ? nullptr : known.get();
  }
  Complain(std::string(name) + ": not a stream of this GPU");
  return nullptr;
}

SimulatedGpu::Event* SimulatedGpu::Known(GpuEvent event, const char* name) {
  for (const auto& known : events_) {
    if (reinterpret_cast<GpuEvent>(known.get()) != event) continue;
    if (known->deleted) Complain(std::string(name) + ": the event was deleted");
    return known->deleted ? nullptr : known.get();
  }
  Complain(std::string(name) + ": not an event of this GPU");
  return nullptr;
}

Status SimulatedGpu::Complain(const std::string& what) {
  complaints_.push_back(what);
  return Status(Code::kInternal, what);
}

Status SimulatedGpu::Allocate(Call call, const char* name, size_t bytes, bool pinned,
                              void** memory) {
  UnseenLock lock(mutex_);
  ++counts_.allocations;
  const Status status = Begin(call, name, bytes);
  if (!status.ok()) return status;
  Block* const block = memory_.New(bytes, pinned);
  if (block == nullptr) {
    return Status(Code::kInternal, std::string(name) + " of " + std::to_string(bytes) +
                                       " bytes on " + options_.description +
                                       ": CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  }
  *memory = block->start;
  return Status();
}

void SimulatedGpu::Deallocate(void* memory, const char* name, bool pinned, bool registered) {
  UnseenLock lock(mutex_);
  std::string why;
  Block* const block = memory_.Find(memory, 0, &why);
  if (block == nullptr || block->start != memory || block->pinned != pinned ||
      block->registered != registered) {
    Complain(std::string(name) + ": it is " + why);
    return;
  }
  const auto opened = opened_.find(memory);
  if (opened != opened_.end() && (opened->second != 0 || block->uses != 0)) {
    // The driver waits only for the work of this process.
    Complain(std::string(name) + ": another rank has it open, or still reads it");
  }
  if (block->uses != 0) {
    ++counts_.host_waits;
    for (const auto& stream : streams_) stream->demanded = stream->enqueued;
    changed_.notify_all();
    const auto for_ever = [&] {
      return std::any_of(streams_.begin(), streams_.end(),
                         [&](const auto& stream) { return stream->held && stream->Uses(block); });
    };
    lock.Wait(changed_, [&] { return block->uses == 0 || for_ever(); });
    if (block->uses != 0) {
      Complain(std::string(name) + ": waits for ever, for a stream that stands still");
      return;
    }
  }
  if (registered) HappensAfter(block);
  memory_.Delete(block);
}

}  // namespace tfmpi
