// Serialization. One function lists a structure's fields, in order, for both directions:
//
//   template <typename Io, typename Point>
//   void Fields(Io* io, Point& point) {
//     io->Signed(point.x);
//     io->String(point.name);
//   }
//
// A Writer appends each field that it is given; a Reader sets it. The format has no version: both
// ends run the same build (core/transport/roll_call.h compares the builds at the start).

#ifndef TFMPI_CORE_BASE_BYTES_H_
#define TFMPI_CORE_BASE_BYTES_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tfmpi {

class Writer {
 public:
  // Variable length: small values take fewer bytes; with Signed, values near zero do.
  template <typename T>
  void Unsigned(const T& value) {
    auto left = static_cast<uint64_t>(value);
    for (; left >= 0x80; left >>= 7) bytes_.push_back(static_cast<char>(left | 0x80));
    bytes_.push_back(static_cast<char>(left));
  }
  void Signed(int64_t value) {
    Unsigned((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
  }
  void Flag(bool value) { bytes_.push_back(value ? 1 : 0); }
  // One byte, for an enumerator from 0 to `count` - 1.
  template <typename T>
  void Enum(const T& value, int /*count*/) {
    bytes_.push_back(static_cast<char>(value));
  }
  void String(std::string_view value) {
    Unsigned(value.size());
    bytes_ += value;
  }
  // The object's bytes as they are in memory.
  template <typename T>
  void Raw(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  // Calls `one` with each element; in Map with each value, after it has written the key.
  template <typename T, typename One>
  void List(const std::vector<T>& values, const One& one) {
    Unsigned(values.size());
    for (const T& value : values) one(value);
  }
  template <typename Key, typename T, typename One>
  void Map(const std::map<Key, T>& values, const One& one) {
    Unsigned(values.size());
    for (const auto& [key, value] : values) {
      Unsigned(key);
      one(value);
    }
  }
  // Null and an empty T are written as the same bytes, which the Reader turns into null.
  template <typename T, typename One>
  void Shared(const std::shared_ptr<const T>& value, const One& one) {
    static const T kNone;
    one(value != nullptr ? *value : kNone);
  }
  // Ascending and distinct. Takes one bit for each number from the first to the last.
  void Ids(const std::vector<uint32_t>& sorted) {
    Unsigned(sorted.empty() ? 0 : sorted.back() - sorted.front() + 1);
    if (sorted.empty()) return;
    Unsigned(sorted.front());
    std::string bits((sorted.back() - sorted.front()) / 8 + 1, '\0');
    for (const uint32_t id : sorted) {
      const uint32_t bit = id - sorted.front();
      bits[bit / 8] = static_cast<char>(bits[bit / 8] | (1 << (bit % 8)));
    }
    bytes_ += bits;
  }
  void Check(bool /*valid*/) {}

  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// After the first invalid read all later ones give zeros and empty lists, except Raw, which leaves
// its argument unchanged. Finished() stays false. `bytes` outlive the reader.
class Reader {
 public:
  explicit Reader(const std::string& bytes) : next_(bytes.data()), end_(next_ + bytes.size()) {}

  template <typename T>
  void Unsigned(T& value) {
    value = static_cast<T>(Varint());
  }
  template <typename T>
  void Signed(T& value) {
    const uint64_t bits = Varint();
    value = static_cast<T>(static_cast<int64_t>(bits >> 1) ^ -static_cast<int64_t>(bits & 1));
  }
  void Flag(bool& value) { value = Byte() != 0; }
  template <typename T>
  void Enum(T& value, int count) {
    const uint8_t byte = Byte();
    value = static_cast<T>(byte < count ? byte : static_cast<uint8_t>(Bad()));
  }
  // Points into `bytes`.
  std::string_view View() {
    const uint64_t size = Count();
    return {std::exchange(next_, next_ + size), size};
  }
  void String(std::string& value) { value = View(); }
  template <typename T>
  void Raw(T& value) {
    if (Left() < sizeof value) {
      Bad();
      return;
    }
    std::memcpy(&value, next_, sizeof value);
    next_ += sizeof value;
  }
  template <typename T, typename One>
  void List(std::vector<T>& values, const One& one) {
    values.clear();
    const uint64_t count = Count();
    values.reserve(count);
    for (uint64_t i = 0; i < count && ok_; ++i) {
      values.emplace_back();
      one(values.back());
    }
  }
  template <typename Key, typename T, typename One>
  void Map(std::map<Key, T>& values, const One& one) {
    values.clear();
    const uint64_t count = Count();
    for (uint64_t i = 0; i < count && ok_; ++i) {
      Key key{};
      Unsigned(key);
      one(values[key]);
    }
  }
  template <typename T, typename One>
  void Shared(std::shared_ptr<const T>& value, const One& one) {
    T read;
    one(read);
    value = read == T() ? nullptr : std::make_shared<const T>(std::move(read));
  }
  void Ids(std::vector<uint32_t>& sorted) {
    sorted.clear();
    const uint64_t range = Varint();
    if (range == 0) return;
    const uint64_t first = Varint();
    const uint64_t bytes = (range - 1) / 8 + 1;
    if (first >= UINT32_MAX || range > UINT32_MAX - first || bytes > Left()) {
      Bad();
      return;
    }
    for (uint64_t bit = 0; bit < range; ++bit) {
      if ((static_cast<uint8_t>(next_[bit / 8]) >> (bit % 8)) & 1) {
        sorted.push_back(static_cast<uint32_t>(first + bit));
      }
    }
    next_ += bytes;
  }
  // Marks what was read as invalid unless `valid`.
  void Check(bool valid) {
    if (!valid) Bad();
  }

  bool AtEnd() const { return next_ == end_; }
  // Whether all reads were valid and nothing is left.
  bool Finished() const { return ok_ && AtEnd(); }

 private:
  uint64_t Left() const { return static_cast<uint64_t>(end_ - next_); }
  uint8_t Byte() { return AtEnd() ? static_cast<uint8_t>(Bad()) : static_cast<uint8_t>(*next_++); }
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t byte = Byte();
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    return Bad();
  }
  // A size or a number of elements: not more than the bytes left, as each takes at least one.
  uint64_t Count() {
    const uint64_t count = Varint();
    return count <= Left() ? count : Bad();
  }
  uint64_t Bad() {
    ok_ = false;
    next_ = end_;
    return 0;
  }

  const char* next_;
  const char* end_;
  bool ok_ = true;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_BASE_BYTES_H_
