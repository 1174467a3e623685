// Decode rejects bytes, or returns something that Encode turns into equivalent bytes; for any
// input, at a cost proportional to its size.

#include <cstdio>
#include <cstdlib>
#include <new>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/agreement/message.h"
#include "tests/core/fuzz/fuzzer.h"

namespace {

// Bytes allocated since it was set to 0.
size_t allocated_bytes = 0;

}  // namespace

// Not inlined: GCC warns of a mismatch where it sees a `free` of memory from `new`.
__attribute__((noinline)) void* operator new(size_t bytes) {
  allocated_bytes += bytes;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace tfmpi {
namespace {

constexpr char kCorpus[] = "tests/core/fuzz/corpus.txt";

// The largest element of a list in memory, per byte of its shortest encoding, and the growth of a
// vector by doubling.
size_t Allowance(size_t message_bytes) { return 1024 + 256 * message_bytes; }

NamedSignature Named(const std::string& name, const Shape& shape) {
  NamedSignature named;
  named.name = name;
  named.signature.shape = shape;
  named.fingerprint = 12345678901234567u;
  return named;
}

std::vector<std::string> ReadyLists() {
  ReadyList known, fresh, ends;
  known.ready = {3, 4, 9, 40};
  known.gathers = {{7, 12}, {8, 0}};
  fresh.requests = {Named("w", {3, 4}), Named("table", {1 << 20})};
  fresh.requests[1].signature.kind = OpKind::kSparseAllgather;
  fresh.requests[1].signature.extra_row_bytes = 8;
  Parts parts;
  parts.names = {"dense/kernel", "dense/bias"};
  parts.shapes = {{2, 3}, {3}};
  fresh.requests[0].signature.parts = std::make_shared<const Parts>(parts);
  fresh.withdrawn = {"v"};
  ends.joined = true;
  ends.leaving = "ValueError: batch 7 is empty";
  return {Encode(known), Encode(fresh), Encode(ends)};
}

std::vector<std::string> ResponseLists() {
  ResponseList known, fresh, ends;
  ResponseItem item;
  item.id = 3;
  known.responses = {{{item, item}, 4}, {{item}, 3}};
  known.responses[1].items[0].rows = {1, 0, 7};
  known.position = 1000;
  item.is_new = true;
  item.named = Named("w", {3, 4});
  fresh.responses = {{{item}, 4}};
  fresh.posts = {"rank 0 waits", "saved\nmodel.keras"};
  ends.errors = {{"w", Code::kInvalidArgument, "the ranks disagree"}};
  ends.withdrawn = {{2, "v"}};
  ends.fatal = "rank 1/4 has stopped";
  ends.finished = true;
  return {Encode(known), Encode(fresh), Encode(ends)};
}

template <typename List>
std::string Read(const std::string& bytes) {
  allocated_bytes = 0;
  List list;
  const bool read = Decode(bytes, &list);
  if (allocated_bytes > Allowance(bytes.size())) {
    return "takes " + std::to_string(allocated_bytes) + " bytes";
  }
  if (!read) return "";
  const std::string again = Encode(list);
  List same;
  if (!Decode(again, &same)) return "gives what cannot be read again";
  if (Encode(same) != again) return "gives another when it is read again";
  return "";
}

template <typename List>
void Fuzz(const char* kind, uint64_t seed, const std::vector<std::string>& examples) {
  Fuzzer fuzzer(seed);
  const std::vector<std::string> corpus = ReadCorpus(kCorpus, kind);
  EXPECT_FALSE(corpus.empty()) << kCorpus;
  for (const std::string& bytes : corpus) EXPECT_EQ(Read<List>(bytes), "") << ToHex(bytes);
  for (const std::string& bytes : corpus) fuzzer.Add(bytes);
  for (const std::string& bytes : examples) {
    EXPECT_EQ(Read<List>(bytes), "") << ToHex(bytes);
    fuzzer.Add(bytes);
  }
  const size_t before = fuzzer.corpus().size();
  EXPECT_EQ(fuzzer.Run(MESSAGES / 2, Read<List>), "");
  std::printf("%s lists: %d messages, %d branches, %d kept\n", kind, MESSAGES / 2,
              fuzzer.branches(), static_cast<int>(fuzzer.corpus().size() - before));
  // To be added to the corpus, if the byte form has changed.
  for (size_t i = before; i < fuzzer.corpus().size(); ++i) {
    std::printf("%s %s\n", kind, ToHex(fuzzer.corpus()[i]).c_str());
  }
  EXPECT_GT(fuzzer.branches(), 20) << "nothing is known of what the code does";
}

TEST(MessageFuzzTest, ReadyLists) { Fuzz<ReadyList>("ready", 1, ReadyLists()); }

TEST(MessageFuzzTest, ResponseLists) { Fuzz<ResponseList>("response", 2, ResponseLists()); }

}  // namespace
}  // namespace tfmpi
