#include "tests/core/device/bouncing_messages.h"

#include <algorithm>
#include <cstring>

namespace tfmpi {

// Called when sends from host memory have ended, or the rank has left.
BouncingMessages::~BouncingMessages() {
  for (Lane& lane : lanes_) {
    if (lane.event != nullptr) gpu_->Delete(lane.event);
  }
  for (void* memory : pinned_) gpu_->DeletePinned(memory);
  if (stream_ != nullptr) gpu_->Delete(stream_);
}

// Memory that is never reused, so that an error in one exchange does not affect another one.
Status BouncingMessages::Pinned(const std::vector<GpuPart>& parts, std::vector<GpuPart>* pinned) {
  pinned->assign(parts.size(), {});
  for (size_t r = 0; r < parts.size(); ++r) {
    (*pinned)[r].bytes = parts[r].bytes;
    if (parts[r].bytes == 0) continue;
    const Status status = gpu_->NewPinned(parts[r].bytes, &(*pinned)[r].data);
    if (!status.ok()) return status;
    pinned_.push_back((*pinned)[r].data);
    std::memset((*pinned)[r].data, 0xff, parts[r].bytes);
  }
  return Status();
}

Status BouncingMessages::Start(int number, const std::vector<GpuPart>& send,
                               const std::vector<GpuPart>& receive) {
  Lane& lane = lanes_[number];
  if (simulated_ != nullptr && !simulated_->IsCurrent()) {
    return Status(Code::kInternal, "MPI was given memory of a GPU that is not current");
  }
  if (lane.stage != Stage::kIdle) return Status(Code::kInternal, "the lane is not free");
  ++started_;
  Status status;
  if (stream_ == nullptr) status = gpu_->NewStream(&stream_);
  if (status.ok() && lane.event == nullptr) status = gpu_->NewEvent(&lane.event);
  if (status.ok()) status = Pinned(send, &lane.sent);
  if (status.ok()) status = Pinned(receive, &lane.received);
  lane.receive = receive;
  for (size_t r = 0; r < send.size(); ++r) {
    if (status.ok() && receive[r].bytes != 0) {
      status = gpu_->Copy(receive[r].data, lane.received[r].data, receive[r].bytes, stream_);
    }
    if (status.ok() && send[r].bytes != 0) {
      status = gpu_->Copy(lane.sent[r].data, send[r].data, send[r].bytes, stream_);
    }
  }
  if (status.ok()) status = gpu_->Record(lane.event, stream_);
  lane.stage = Stage::kFetching;
  return status;
}

Status BouncingMessages::Test(int number, bool* ended) {
  Lane& lane = lanes_[number];
  Status status;
  bool moved = false;
  *ended = lane.stage == Stage::kIdle;
  switch (lane.stage) {
    case Stage::kIdle:
      return status;
    case Stage::kFetching:
      status = gpu_->Query(lane.event, &moved);
      if (!status.ok() || !moved) return status;
      lane.stage = Stage::kSending;
      return host_->Start(number, lane.sent, lane.received);
    case Stage::kSending:
      status = host_->Test(number, &moved);
      if (!status.ok() || !moved) return status;
      for (size_t r = 0; r < lane.receive.size() && status.ok(); ++r) {
        if (lane.receive[r].bytes == 0) continue;
        status =
            gpu_->Copy(lane.receive[r].data, lane.received[r].data, lane.receive[r].bytes, stream_);
      }
      if (status.ok()) status = gpu_->Record(lane.event, stream_);
      lane.stage = Stage::kLanding;
      return status;
    case Stage::kLanding:
      status = gpu_->Query(lane.event, ended);
      if (*ended) lane.stage = Stage::kIdle;
      return status;
  }
  return status;
}

}  // namespace tfmpi
