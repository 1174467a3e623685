#include "tensorflow_patches/core/agreement/envelope.h"

#include <cstring>

#include "tensorflow_patches/core/cpu/reduce.h"

namespace tfmpi {
namespace {

struct Header {
  uint32_t hash;
  uint32_t number;
};

// Includes the length, since any number of zero bytes has the fingerprint 0.
uint32_t Hash(uint32_t number, const char* data, size_t bytes) {
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15u;  // odd
  const uint64_t hash = (number + kFactor * (Fingerprint(data, bytes) + bytes)) * kFactor;
  return static_cast<uint32_t>(hash >> 32);
}

}  // namespace

std::string Seal(uint32_t number, const std::string& message) {
  const Header header = {Hash(number, message.data(), message.size()), number};
  std::string sealed(sizeof header + message.size(), '\0');
  std::memcpy(&sealed[0], &header, sizeof header);
  std::memcpy(&sealed[sizeof header], message.data(), message.size());
  return sealed;
}

std::string Open(uint32_t number, const std::string& sealed, std::string* message) {
  Header header;
  if (sealed.size() < sizeof header) return "message " + std::to_string(number) + " is truncated";
  std::memcpy(&header, sealed.data(), sizeof header);
  message->assign(sealed, sizeof header, std::string::npos);
  if (header.hash != Hash(header.number, message->data(), message->size())) {
    return "message " + std::to_string(number) + " is damaged";
  }
  if (header.number == number) return "";
  return "message " + std::to_string(header.number) + " arrived instead of message " +
         std::to_string(number) + ": one was lost or duplicated";
}

}  // namespace tfmpi
