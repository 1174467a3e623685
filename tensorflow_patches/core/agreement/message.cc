#include "tensorflow_patches/core/agreement/message.h"

#include <algorithm>

#include "tensorflow_patches/core/base/bytes.h"

namespace tfmpi {
namespace {

template <typename Io, typename Named>
void NamedFields(Io* io, Named& named) {
  auto& signature = named.signature;
  io->String(named.name);
  io->Enum(signature.kind, kNumOpKinds);
  io->Enum(signature.op, kNumReduceOps);
  io->Enum(signature.dtype, kNumDataTypes);
  io->Unsigned(signature.root);
  const auto dimension = [&](auto& size) { io->Signed(size); };
  io->List(signature.shape, dimension);
  io->Signed(signature.extra_row_bytes);
  io->Signed(signature.row_limit);
  io->Flag(signature.every_row);
  io->Flag(signature.on_gpu);
  io->Flag(signature.weighted);
  io->Shared(signature.members, [&](auto& members) {
    io->List(members, [&](auto& rank) { io->Signed(rank); });
    io->Check(std::is_sorted(members.begin(), members.end()));
  });
  io->Unsigned(named.fingerprint);
  io->Enum(named.purpose, kNumPurposes);
  io->Shared(signature.parts, [&](auto& parts) {
    io->List(parts.names, [&](auto& name) { io->String(name); });
    io->List(parts.shapes, [&](auto& shape) { io->List(shape, dimension); });
    io->Check(parts.names.size() == parts.shapes.size());
  });
}

template <typename Io, typename State>
void WaitStateFields(Io* io, State& wait_state) {
  io->Enum(wait_state.blocked, kNumBlocked);
  io->String(wait_state.what);
  io->Unsigned(wait_state.posts);
  io->Flag(wait_state.has_no_gradients);
  io->Flag(wait_state.idle);
  io->Unsigned(wait_state.answers);
  io->String(wait_state.doing);
}

template <typename Io, typename List>
void ReadyListFields(Io* io, List& ready_list) {
  io->Ids(ready_list.ready);
  io->List(ready_list.gathers, [&](auto& gather) {
    io->Unsigned(gather.id);
    io->Signed(gather.rows);
  });
  io->List(ready_list.requests, [&](auto& named) { NamedFields(io, named); });
  io->List(ready_list.withdrawn, [&](auto& name) { io->String(name); });
  io->Flag(ready_list.joined);
  io->String(ready_list.leaving);
  io->List(ready_list.wait_state, [&](auto& wait_state) { WaitStateFields(io, wait_state); });
}

template <typename Io, typename Item>
void ItemFields(Io* io, Item& item) {
  io->Unsigned(item.id);
  io->Flag(item.is_new);
  if (item.is_new) NamedFields(io, item.named);
  io->List(item.rows, [&](auto& rows) { io->Signed(rows); });
}

template <typename Io, typename List>
void ResponseListFields(Io* io, List& response_list) {
  io->List(response_list.responses, [&](auto& response) {
    io->List(response.items, [&](auto& item) { ItemFields(io, item); });
    io->Unsigned(response.contributors);
  });
  io->List(response_list.errors, [&](auto& error) {
    io->String(error.name);
    io->Enum(error.code, kNumCodes);
    io->Check(error.code != Code::kOk);
    io->String(error.message);
  });
  io->List(response_list.withdrawn, [&](auto& withdrawal) {
    io->Unsigned(withdrawal.rank);
    io->String(withdrawal.name);
  });
  io->List(response_list.posts, [&](auto& key) { io->String(key); });
  io->String(response_list.fatal);
  io->Flag(response_list.finished);
  io->Unsigned(response_list.position);
}

}  // namespace

std::string Encode(const ReadyList& ready_list) {
  Writer writer;
  ReadyListFields(&writer, ready_list);
  return writer.Take();
}

bool Decode(const std::string& bytes, ReadyList* ready_list) {
  Reader reader(bytes);
  ReadyListFields(&reader, *ready_list);
  return reader.Finished();
}

std::string Encode(const ResponseList& response_list) {
  Writer writer;
  ResponseListFields(&writer, response_list);
  return writer.Take();
}

bool Decode(const std::string& bytes, ResponseList* response_list) {
  Reader reader(bytes);
  ResponseListFields(&reader, *response_list);
  return reader.Finished();
}

}  // namespace tfmpi
