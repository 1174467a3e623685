// The driver's functions for streams and events.

#include <thread>

#include "device/operations.h"

using namespace standin;  // NOLINT: this file is the interface of that namespace

namespace {

// As in the driver, enqueueing needs a context.
Result Find(void* handle, Stream** stream) {
  if (CurrentContext() == nullptr) return kInvalidContext;
  *stream = StreamOf(handle);
  return *stream == nullptr ? kInvalidHandle : kSuccess;
}

Result Make(void** handle, unsigned flags, int priority) {
  Context* context = CurrentContext();
  if (context == nullptr) return kInvalidContext;
  *handle = new Stream(context->device, flags, priority);
  return kSuccess;
}

constexpr unsigned kGreaterOrEqual = 0, kEqual = 1, kAnd = 2, kNor = 3;

template <typename Word>
bool Holds(Word now, Word value, unsigned flags) {
  using Signed = std::make_signed_t<Word>;
  switch (flags & 3) {
    case kGreaterOrEqual:
      return static_cast<Signed>(now - value) >= 0;
    case kEqual:
      return now == value;
    case kAnd:
      return (now & value) != 0;
    case kNor:
      return ~(now | value) != 0;
  }
  return true;
}

template <typename Word>
Result WaitValue(void* handle, Pointer address, Word value, unsigned flags) {
  Stream* stream = nullptr;
  const Result result = Find(handle, &stream);
  if (result != kSuccess) return result;
  stream->Push([address, value, flags] {
    auto* word = static_cast<volatile Word*>(Reach(address));
    while (!Holds(__atomic_load_n(word, __ATOMIC_ACQUIRE), value, flags)) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  return kSuccess;
}

template <typename Word>
Result WriteValue(void* handle, Pointer address, Word value) {
  Stream* stream = nullptr;
  const Result result = Find(handle, &stream);
  if (result != kSuccess) return result;
  stream->Push([address, value] {
    __atomic_store_n(static_cast<Word*>(Reach(address)), value, __ATOMIC_RELEASE);
  });
  return kSuccess;
}

}  // namespace

STANDIN_API Result cuStreamCreate(void** stream, unsigned flags) { return Make(stream, flags, 0); }

STANDIN_API Result cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  return Make(stream, flags, priority);
}

STANDIN_API Result cuStreamDestroy_v2(void* handle) {
  if (!IsStream(handle)) return kInvalidHandle;
  static_cast<Stream*>(handle)->Destroy();
  return kSuccess;
}

STANDIN_API Result cuStreamGetCtx(void* handle, void** context) {
  Stream* stream = StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  *context = &stream->device->context;
  return kSuccess;
}

STANDIN_API Result cuStreamGetFlags(void* handle, unsigned* flags) {
  Stream* stream = StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  *flags = stream->flags;
  return kSuccess;
}

STANDIN_API Result cuStreamGetPriority(void* handle, int* priority) {
  Stream* stream = StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  *priority = stream->priority;
  return kSuccess;
}

STANDIN_API Result cuStreamGetId(void* handle, uint64_t* id) {
  Stream* stream = StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  *id = stream->id;
  return kSuccess;
}

STANDIN_API Result cuStreamQuery(void* handle) {
  Stream* stream = StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  return stream->idle() ? kSuccess : kNotReady;
}

STANDIN_API Result cuStreamSynchronize(void* handle) {
  Stream* stream = StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  stream->Synchronize();
  return kSuccess;
}

STANDIN_API Result cuStreamWaitEvent(void* handle, void* event, unsigned) {
  Stream* stream = nullptr;
  const Result result = Find(handle, &stream);
  if (result != kSuccess) return result;
  Event* known = EventOf(event);
  if (known == nullptr) return kInvalidHandle;
  stream->Wait(known);
  return kSuccess;
}

namespace {

struct Callback {
  void (*function)(void*, Result, void*);
  void *stream, *argument;
};

}  // namespace

STANDIN_API Result cuStreamAddCallback(void* handle, void (*function)(void*, Result, void*),
                                       void* argument, unsigned) {
  const auto call = [](void* data) {
    std::unique_ptr<Callback> callback(static_cast<Callback*>(data));
    callback->function(callback->stream, kSuccess, callback->argument);
  };
  return Call(handle, call, new Callback{function, handle, argument});
}

STANDIN_API Result cuLaunchHostFunc(void* handle, HostFunction function, void* argument) {
  if (CurrentContext() == nullptr) return kInvalidContext;
  return Call(handle, function, argument);
}

STANDIN_API Result cuStreamWaitValue32_v2(void* s, Pointer at, uint32_t value, unsigned flags) {
  return WaitValue<uint32_t>(s, at, value, flags);
}
STANDIN_API Result cuStreamWaitValue64_v2(void* s, Pointer at, uint64_t value, unsigned flags) {
  return WaitValue<uint64_t>(s, at, value, flags);
}
STANDIN_API Result cuStreamWriteValue32_v2(void* s, Pointer at, uint32_t value, unsigned) {
  return WriteValue<uint32_t>(s, at, value);
}
STANDIN_API Result cuStreamWriteValue64_v2(void* s, Pointer at, uint64_t value, unsigned) {
  return WriteValue<uint64_t>(s, at, value);
}
STANDIN_API Result cuStreamWaitValue32(void* s, Pointer at, uint32_t value, unsigned flags) {
  return WaitValue<uint32_t>(s, at, value, flags);
}
STANDIN_API Result cuStreamWriteValue32(void* s, Pointer at, uint32_t value, unsigned) {
  return WriteValue<uint32_t>(s, at, value);
}

STANDIN_API Result cuEventCreate(void** event, unsigned flags) {
  if (CurrentContext() == nullptr) return kInvalidContext;
  *event = NewEvent(flags);
  return kSuccess;
}

STANDIN_API Result cuEventDestroy_v2(void* event) {
  if (EventOf(event) == nullptr) return kInvalidHandle;
  DeleteEvent(event);
  return kSuccess;
}

STANDIN_API Result cuEventRecord(void* event, void* handle) {
  Stream* stream = nullptr;
  const Result result = Find(handle, &stream);
  if (result != kSuccess) return result;
  Event* known = EventOf(event);
  if (known == nullptr) return kInvalidHandle;
  stream->Record(known);
  return kSuccess;
}

STANDIN_API Result cuEventRecordWithFlags(void* event, void* handle, unsigned) {
  return cuEventRecord(event, handle);
}

STANDIN_API Result cuEventQuery(void* event) {
  Event* known = EventOf(event);
  if (known == nullptr) return kInvalidHandle;
  const auto mark = known->Last();
  return mark == nullptr || mark->reached() ? kSuccess : kNotReady;
}

STANDIN_API Result cuEventSynchronize(void* event) {
  Event* known = EventOf(event);
  if (known == nullptr) return kInvalidHandle;
  Add(kWaits);
  if (const auto mark = known->Last()) mark->Wait();
  return kSuccess;
}

STANDIN_API Result cuEventElapsedTime(float* milliseconds, void* from, void* to) {
  Event *first = EventOf(from), *last = EventOf(to);
  if (first == nullptr || last == nullptr) return kInvalidHandle;
  const auto begun = first->Last(), ended = last->Last();
  if (begun == nullptr || ended == nullptr) return kInvalidHandle;
  if (!begun->reached() || !ended->reached()) return kNotReady;
  *milliseconds = static_cast<float>((ended->seconds() - begun->seconds()) * 1e3);
  return kSuccess;
}

STANDIN_API Result cuEventElapsedTime_v2(float* milliseconds, void* from, void* to) {
  return cuEventElapsedTime(milliseconds, from, to);
}
