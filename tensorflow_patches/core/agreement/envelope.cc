#include "tensorflow_patches/core/agreement/envelope.h"

#include <cstring>

#include "tensorflow_patches/core/cpu/reduce.h"

namespace tfmpi {
namespace {

struct Head {
  uint32_t hash;
  uint32_t number;
};

// Includes the length, since any number of zeros has the fingerprint 0.
uint32_t Hash(uint32_t number, const char* data, size_t bytes) {
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15u;  // odd
  const uint64_t hash = (number + kFactor * (Fingerprint(data, bytes) + bytes)) * kFactor;
  return static_cast<uint32_t>(hash >> 32);
}

}  // namespace

std::string Seal(uint32_t number, const std::string& message) {
  const Head head = {Hash(number, message.data(), message.size()), number};
  std::string sealed(sizeof head + message.size(), '\0');
  std::memcpy(&sealed[0], &head, sizeof head);
  std::memcpy(&sealed[sizeof head], message.data(), message.size());
  return sealed;
}

std::string Open(uint32_t number, const std::string& sealed, std::string* message) {
  Head head;
  if (sealed.size() < sizeof head) return "message " + std::to_string(number) + " is truncated";
  std::memcpy(&head, sealed.data(), sizeof head);
  message->assign(sealed, sizeof head, std::string::npos);
  if (head.hash != Hash(head.number, message->data(), message->size())) {
    return "message " + std::to_string(number) + " is damaged";
  }
  if (head.number == number) return "";
  return "message " + std::to_string(head.number) + " arrived instead of message " +
         std::to_string(number) + ": one was lost or duplicated";
}

}  // namespace tfmpi
