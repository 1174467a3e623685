// Whole control messages over two byte rings, between a node's leader and one of its other ranks.
//
// Communication thread only. Bytes that do not fit into the ring are kept; later calls of Flush
// write them once the reader has made room.

#ifndef TFMPI_CORE_TRANSPORT_CONTROL_CHANNEL_H_
#define TFMPI_CORE_TRANSPORT_CONTROL_CHANNEL_H_

#include <cstdint>
#include <cstring>
#include <string>

#include "tensorflow_patches/core/transport/shm/node_memory.h"

namespace tfmpi {

class ControlChannel {
 public:
  ControlChannel(ControlRing* out, ControlRing* in) : out_(out), in_(in) {}

  // Writes as much as fits. The caller must then notify the peer.
  void Send(const std::string& message) {
    const uint64_t length = message.size();
    unsent_.append(reinterpret_cast<const char*>(&length), sizeof length);
    unsent_ += message;
    Flush();
  }

  // Returns true if it has written anything: then notify the peer.
  bool Flush() {
    if (unsent_.empty()) return false;
    const size_t written = out_->Write(unsent_.data(), unsent_.size());
    unsent_.erase(0, written);
    return written != 0;
  }

  // Returns false if there is no complete message. Sets *made_room if the ring was full: then
  // notify the peer, which may have more to write.
  bool Receive(std::string* message, bool* made_room) {
    const size_t before = received_.size();
    if (const size_t readable = in_->Readable(); readable != 0) {
      received_.resize(before + readable);
      in_->Read(&received_[before], readable);
      *made_room |= readable == ControlRing::kBytes;
    }
    uint64_t length = 0;
    if (received_.size() < sizeof length) return false;
    std::memcpy(&length, received_.data(), sizeof length);
    if (received_.size() - sizeof length < length) return false;
    message->assign(received_, sizeof length, length);
    received_.erase(0, sizeof length + length);
    return true;
  }

  bool Readable() const { return in_->Readable() != 0; }
  bool Blocked() const { return !unsent_.empty(); }

 private:
  ControlRing* const out_;
  ControlRing* const in_;
  std::string unsent_;
  std::string received_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_CONTROL_CHANNEL_H_
