#include "tensorflow_patches/core/recovery/history.h"

#include <cstring>

#include "tensorflow_patches/core/base/bytes.h"

namespace tfmpi {

void History::Add(Unit unit, bool proves_all_started) {
  if (proves_all_started) Forget();
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

// Reuses memory, since new memory from the kernel costs page faults.
Result History::NewResult(size_t bytes) {
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
  Writer writer;
  for (size_t i = static_cast<size_t>(number - deleted()); i < units_.size(); ++i) {
    writer.String(Encode(units_[i].what));
    writer.String({units_[i].result.memory.get(), units_[i].result.bytes});
  }
  return writer.Take();
}

bool History::Decode(const std::string& bytes, std::deque<Unit>* units) {
  Reader reader(bytes);
  while (!reader.AtEnd()) {
    Unit unit;
    std::string what;
    reader.String(what);
    reader.Check(tfmpi::Decode(what, &unit.what));
    const std::string_view result = reader.View();
    if (!result.empty()) {
      unit.result.memory = NewLineMemory(result.size());
      std::memcpy(unit.result.memory.get(), result.data(), result.size());
    }
    unit.result.bytes = result.size();
    units->push_back(std::move(unit));
  }
  return reader.Finished();
}

}  // namespace tfmpi
