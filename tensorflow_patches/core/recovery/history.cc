#include "tensorflow_patches/core/recovery/history.h"

#include <cstring>

namespace tfmpi {
namespace {

void Append(const void* data, size_t bytes, std::string* to) {
  const uint64_t length = bytes;
  to->append(reinterpret_cast<const char*>(&length), sizeof length);
  if (bytes != 0) to->append(static_cast<const char*>(data), bytes);
}

// Null at the end, or if the input is truncated.
const char* Next(const std::string& from, size_t* at, uint64_t* length) {
  if (from.size() - *at < sizeof *length) return nullptr;
  std::memcpy(length, from.data() + *at, sizeof *length);
  *at += sizeof *length;
  if (from.size() - *at < *length) return nullptr;
  const char* const data = from.data() + *at;
  *at += *length;
  return data;
}

}  // namespace

void History::Add(Unit unit, bool meets_all) {
  if (meets_all) Forget();
  bytes_ += unit.result.bytes;
  units_.push_back(std::move(unit));
  ++done_;
}

void History::Forget() {
  for (Unit& unit : units_) {
    if (unit.result.bytes > spare_.bytes) spare_ = std::move(unit.result);
  }
  units_.clear();
  bytes_ = 0;
}

void History::Restart() {
  Forget();
  done_ = 0;
}

// Memory returned to the kernel costs its page faults again.
Result History::Take(size_t bytes) {
  constexpr size_t kSlack = 4;  // a small result does not keep the memory of a large one
  Result result;
  if (spare_.bytes >= bytes && spare_.bytes / kSlack <= bytes) {
    result.memory = std::move(spare_.memory);
    spare_.bytes = 0;
  } else if (bytes != 0) {
    result.memory = NewLineMemory(bytes);
  }
  result.bytes = bytes;
  return result;
}

std::string History::EncodeAfter(uint64_t number) const {
  std::string bytes;
  for (size_t i = static_cast<size_t>(number - first()); i < units_.size(); ++i) {
    const std::string what = Encode(units_[i].what);
    Append(what.data(), what.size(), &bytes);
    Append(units_[i].result.memory.get(), units_[i].result.bytes, &bytes);
  }
  return bytes;
}

bool History::Decode(const std::string& bytes, std::deque<Unit>* units) {
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    Unit unit;
    const char* const what = Next(bytes, &at, &length);
    if (what == nullptr || !tfmpi::Decode(std::string(what, length), &unit.what)) return false;
    const char* const data = Next(bytes, &at, &length);
    if (data == nullptr) return false;
    if (length != 0) {
      unit.result.memory = NewLineMemory(length);
      std::memcpy(unit.result.memory.get(), data, length);
    }
    unit.result.bytes = length;
    units->push_back(std::move(unit));
  }
  return true;
}

}  // namespace tfmpi
