#include "tensorflow_patches/core/agreement/envelope.h"

#include <cstring>

namespace tfmpi {
namespace {

struct Head {
  uint32_t hash;
  uint32_t number;
};

// Each step is invertible, so two messages that differ in one word have different states after it.
uint32_t Hash(uint32_t number, const char* data, size_t bytes) {
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15u;  // odd
  uint64_t hash = (number + kFactor) * kFactor + bytes;
  const auto mix = [&hash](uint64_t word) {
    hash = (hash ^ word) * kFactor;
    hash ^= hash >> 32;
  };
  for (; bytes >= sizeof(uint64_t); data += sizeof(uint64_t), bytes -= sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, data, sizeof word);
    mix(word);
  }
  uint64_t word = 0;
  std::memcpy(&word, data, bytes);
  mix(word);
  return static_cast<uint32_t>(hash);
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
