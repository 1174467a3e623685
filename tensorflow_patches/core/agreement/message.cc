#include "tensorflow_patches/core/agreement/message.h"

#include <algorithm>

namespace tfmpi {
namespace {

class Writer {
 public:
  void Unsigned(uint64_t value) {
    while (value >= 0x80) {
      bytes_.push_back(static_cast<char>(value | 0x80));
      value >>= 7;
    }
    bytes_.push_back(static_cast<char>(value));
  }
  void Signed(int64_t value) {
    Unsigned((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
  }
  void Byte(uint8_t value) { bytes_.push_back(static_cast<char>(value)); }
  void String(const std::string& value) {
    Unsigned(value.size());
    bytes_ += value;
  }
  template <typename T, typename WriteOne>
  void List(const std::vector<T>& values, WriteOne write) {
    Unsigned(values.size());
    for (const T& value : values) write(value);
  }
  // One bit per number between the first and the last.
  void Ids(const std::vector<NameId>& sorted) {
    Unsigned(sorted.empty() ? 0 : sorted.back() - sorted.front() + 1);
    if (sorted.empty()) return;
    Unsigned(sorted.front());
    std::string bits((sorted.back() - sorted.front()) / 8 + 1, '\0');
    for (NameId id : sorted) {
      const NameId bit = id - sorted.front();
      bits[bit / 8] = static_cast<char>(bits[bit / 8] | (1 << (bit % 8)));
    }
    bytes_ += bits;
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// After the first short read every later read returns zero, and ok() stays false.
class Reader {
 public:
  explicit Reader(const std::string& bytes) : next_(bytes.data()), end_(next_ + bytes.size()) {}

  uint64_t Unsigned() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t byte = Byte();
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    return Bad();
  }
  int64_t Signed() {
    const uint64_t value = Unsigned();
    return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
  }
  uint8_t Byte() {
    if (next_ == end_) return static_cast<uint8_t>(Bad());
    return static_cast<uint8_t>(*next_++);
  }
  std::string String() {
    const uint64_t size = Count();
    std::string value(next_, next_ + size);
    next_ += size;
    return value;
  }
  // One of `count` values, starting at 0.
  template <typename Enum>
  Enum OneOf(int count) {
    const uint8_t value = Byte();
    return static_cast<Enum>(value < count ? value : static_cast<uint8_t>(Bad()));
  }
  template <typename T, typename ReadOne>
  std::vector<T> List(ReadOne read) {
    std::vector<T> values;
    const uint64_t count = Count();
    values.reserve(count);
    for (uint64_t i = 0; i < count && ok_; ++i) values.push_back(read());
    return values;
  }
  std::vector<NameId> Ids() {
    std::vector<NameId> ids;
    const uint64_t range = Unsigned();
    if (range == 0) return ids;
    const uint64_t first = Unsigned();
    if (first >= kNoId || range > kNoId - first) {
      Bad();
      return ids;
    }
    const uint64_t bytes = (range - 1) / 8 + 1;
    if (bytes > static_cast<uint64_t>(end_ - next_)) {
      Bad();
      return ids;
    }
    for (uint64_t bit = 0; bit < range; ++bit) {
      if ((static_cast<uint8_t>(next_[bit / 8]) >> (bit % 8)) & 1) {
        ids.push_back(static_cast<NameId>(first + bit));
      }
    }
    next_ += bytes;
    return ids;
  }
  bool Finished() const { return ok_ && next_ == end_; }
  // The value that was read is invalid.
  void Refuse() { Bad(); }

 private:
  // A length cannot exceed the remaining bytes, since every element takes at least one.
  uint64_t Count() {
    const uint64_t count = Unsigned();
    return count <= static_cast<uint64_t>(end_ - next_) ? count : Bad();
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

void Write(Writer* w, const NamedSignature& named) {
  w->String(named.name);
  w->Byte(static_cast<uint8_t>(named.signature.kind));
  w->Byte(static_cast<uint8_t>(named.signature.op));
  w->Byte(static_cast<uint8_t>(named.signature.dtype));
  w->Unsigned(static_cast<uint64_t>(named.signature.root));
  w->List(named.signature.shape, [&](int64_t dim) { w->Signed(dim); });
  w->Signed(named.signature.extra_row_bytes);
  w->Signed(named.signature.row_limit);
  w->Byte(named.signature.every_row ? 1 : 0);
  w->Byte(named.signature.on_gpu ? 1 : 0);
  w->Byte(named.signature.weighted ? 1 : 0);
  static const Members kAll;
  w->List(named.signature.members != nullptr ? *named.signature.members : kAll,
          [&](int32_t rank) { w->Signed(rank); });
  w->Unsigned(named.fingerprint);
  w->Byte(static_cast<uint8_t>(named.purpose));
  static const Parts kNone;
  const Parts& parts = named.signature.parts != nullptr ? *named.signature.parts : kNone;
  w->List(parts.names, [&](const std::string& name) { w->String(name); });
  w->List(parts.shapes,
          [&](const Shape& shape) { w->List(shape, [&](int64_t dim) { w->Signed(dim); }); });
}

NamedSignature ReadNamed(Reader* r) {
  NamedSignature named;
  named.name = r->String();
  named.signature.kind = r->OneOf<OpKind>(kNumOpKinds);
  named.signature.op = r->OneOf<ReduceOp>(kNumReduceOps);
  named.signature.dtype = r->OneOf<DataType>(kNumDataTypes);
  named.signature.root = static_cast<int32_t>(r->Unsigned());
  named.signature.shape = r->List<int64_t>([&] { return r->Signed(); });
  named.signature.extra_row_bytes = static_cast<int32_t>(r->Signed());
  named.signature.row_limit = r->Signed();
  named.signature.every_row = r->Byte() != 0;
  named.signature.on_gpu = r->Byte() != 0;
  named.signature.weighted = r->Byte() != 0;
  Members members = r->List<int32_t>([&] { return static_cast<int32_t>(r->Signed()); });
  if (!std::is_sorted(members.begin(), members.end())) r->Refuse();
  if (!members.empty()) {
    named.signature.members = std::make_shared<const Members>(std::move(members));
  }
  named.fingerprint = r->Unsigned();
  named.purpose = r->OneOf<Purpose>(kNumPurposes);
  Parts parts;
  parts.names = r->List<std::string>([&] { return r->String(); });
  parts.shapes = r->List<Shape>([&] { return r->List<int64_t>([&] { return r->Signed(); }); });
  if (parts.names.size() != parts.shapes.size()) r->Refuse();
  if (!parts.names.empty()) named.signature.parts = std::make_shared<const Parts>(std::move(parts));
  return named;
}

void Write(Writer* w, const WaitState& wait_state) {
  w->Byte(static_cast<uint8_t>(wait_state.blocked));
  w->String(wait_state.what);
  w->Unsigned(wait_state.posts);
  w->Byte(wait_state.has_no_gradients ? 1 : 0);
  w->Byte(wait_state.idle ? 1 : 0);
  w->Unsigned(wait_state.answers);
  w->String(wait_state.doing);
}

WaitState ReadWaitState(Reader* r) {
  WaitState wait_state;
  wait_state.blocked = r->OneOf<WaitState::Blocked>(kNumBlocked);
  wait_state.what = r->String();
  wait_state.posts = r->Unsigned();
  wait_state.has_no_gradients = r->Byte() != 0;
  wait_state.idle = r->Byte() != 0;
  wait_state.answers = r->Unsigned();
  wait_state.doing = r->String();
  return wait_state;
}

void Write(Writer* w, const ResponseItem& item) {
  w->Unsigned(item.id);
  w->Byte(item.is_new);
  if (item.is_new) Write(w, item.named);
  w->List(item.rows, [&](int64_t rows) { w->Signed(rows); });
}

ResponseItem ReadItem(Reader* r) {
  ResponseItem item;
  item.id = static_cast<NameId>(r->Unsigned());
  item.is_new = r->Byte() != 0;
  if (item.is_new) item.named = ReadNamed(r);
  item.rows = r->List<int64_t>([&] { return r->Signed(); });
  return item;
}

}  // namespace

std::string Encode(const ReadyList& ready_list) {
  Writer w;
  w.Ids(ready_list.ready);
  w.List(ready_list.gathers, [&](const KnownGather& gather) {
    w.Unsigned(gather.id);
    w.Signed(gather.rows);
  });
  w.List(ready_list.requests, [&](const NamedSignature& named) { Write(&w, named); });
  w.List(ready_list.withdrawn, [&](const std::string& name) { w.String(name); });
  w.Byte(ready_list.joined);
  w.String(ready_list.leaving);
  w.List(ready_list.wait_state, [&](const WaitState& wait_state) { Write(&w, wait_state); });
  return w.Take();
}

bool Decode(const std::string& bytes, ReadyList* ready_list) {
  Reader r(bytes);
  ready_list->ready = r.Ids();
  ready_list->gathers = r.List<KnownGather>([&] {
    KnownGather gather;
    gather.id = static_cast<NameId>(r.Unsigned());
    gather.rows = r.Signed();
    return gather;
  });
  ready_list->requests = r.List<NamedSignature>([&] { return ReadNamed(&r); });
  ready_list->withdrawn = r.List<std::string>([&] { return r.String(); });
  ready_list->joined = r.Byte() != 0;
  ready_list->leaving = r.String();
  ready_list->wait_state = r.List<WaitState>([&] { return ReadWaitState(&r); });
  return r.Finished();
}

std::string Encode(const ResponseList& response_list) {
  Writer w;
  w.List(response_list.responses, [&](const Response& response) {
    w.List(response.items, [&](const ResponseItem& item) { Write(&w, item); });
    w.Unsigned(static_cast<uint64_t>(response.contributors));
  });
  w.List(response_list.errors, [&](const NamedError& error) {
    w.String(error.name);
    w.Byte(static_cast<uint8_t>(error.code));
    w.String(error.message);
  });
  w.List(response_list.withdrawn, [&](const Withdrawal& withdrawal) {
    w.Unsigned(static_cast<uint64_t>(withdrawal.rank));
    w.String(withdrawal.name);
  });
  w.List(response_list.posts, [&](const std::string& key) { w.String(key); });
  w.String(response_list.fatal);
  w.Byte(response_list.finished);
  w.Unsigned(response_list.position);
  return w.Take();
}

bool Decode(const std::string& bytes, ResponseList* response_list) {
  Reader r(bytes);
  response_list->responses = r.List<Response>([&] {
    Response response;
    response.items = r.List<ResponseItem>([&] { return ReadItem(&r); });
    response.contributors = static_cast<int32_t>(r.Unsigned());
    return response;
  });
  response_list->errors = r.List<NamedError>([&] {
    NamedError error;
    error.name = r.String();
    error.code = r.OneOf<Code>(kNumCodes);
    if (error.code == Code::kOk) r.Refuse();
    error.message = r.String();
    return error;
  });
  response_list->withdrawn = r.List<Withdrawal>([&] {
    Withdrawal withdrawal;
    withdrawal.rank = static_cast<int32_t>(r.Unsigned());
    withdrawal.name = r.String();
    return withdrawal;
  });
  response_list->posts = r.List<std::string>([&] { return r.String(); });
  response_list->fatal = r.String();
  response_list->finished = r.Byte() != 0;
  response_list->position = r.Unsigned();
  return r.Finished();
}

}  // namespace tfmpi
