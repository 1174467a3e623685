// The encoding of ready lists and response lists: decoding returns what was encoded, and no bytes
// are dangerous.

#include "tensorflow_patches/core/agreement/message.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <random>
#include <set>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/agreement/envelope.h"
#include "tests/core/support/ranks.h"

namespace {

// Bytes that this thread has allocated, to check the limit of what Decode may allocate.
thread_local size_t allocated_bytes = 0;

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

class MessageTest : public TimedTest {
 protected:
  int Number(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }

  std::string Text() {
    // Lengths below and above what one byte of length can express.
    std::string text(Number(4) == 0 ? 120 + Number(20) : Number(12), '\0');
    for (char& c : text) c = static_cast<char>(Number(256));
    return text;
  }

  int64_t Integer() {
    const auto bits = static_cast<int64_t>(random_());
    return bits >> Number(64);
  }

  NamedSignature Named() {
    NamedSignature named;
    named.name = Text();
    named.signature.kind = static_cast<OpKind>(Number(kNumOpKinds));
    named.signature.op = static_cast<ReduceOp>(Number(kNumReduceOps));
    named.signature.dtype = static_cast<DataType>(Number(kNumDataTypes));
    named.signature.root = Number(3) == 0 ? -1 : Number(1 << 30);
    for (int i = Number(5); i > 0; --i) named.signature.shape.push_back(Integer());
    named.signature.extra_row_bytes = Number(1 << 30);
    named.signature.row_limit = Integer();
    named.signature.every_row = Number(2) == 1;
    named.signature.on_gpu = Number(2) == 1;
    named.signature.weighted = Number(2) == 1;
    Members members;
    for (int i = Number(4), next = 0; i > 0; --i) members.push_back(next += 1 + Number(5));
    if (!members.empty()) named.signature.members = std::make_shared<const Members>(members);
    named.fingerprint = static_cast<uint64_t>(Integer());
    named.purpose = static_cast<Purpose>(Number(kNumPurposes));
    return named;
  }

  WaitState MakeWaitState() {
    WaitState wait_state;
    wait_state.blocked = static_cast<WaitState::Blocked>(Number(kNumBlocked));
    wait_state.what = Text();
    wait_state.posts = static_cast<uint64_t>(Integer());
    wait_state.has_no_gradients = Number(2) == 1;
    wait_state.idle = Number(2) == 1;
    wait_state.answers = static_cast<uint64_t>(Integer());
    wait_state.doing = Text();
    return wait_state;
  }

  ReadyList MakeReadyList() {
    ReadyList ready_list;
    std::set<NameId> ids;
    const NameId first = static_cast<NameId>(Number(1 << 20));
    for (int i = Number(40); i > 0; --i) ids.insert(first + static_cast<NameId>(Number(200)));
    ready_list.ready.assign(ids.begin(), ids.end());
    for (int i = Number(5); i > 0; --i) {
      ready_list.gathers.push_back({static_cast<NameId>(Number(1 << 20)), Integer()});
    }
    for (int i = Number(5); i > 0; --i) ready_list.requests.push_back(Named());
    for (int i = Number(5); i > 0; --i) ready_list.withdrawn.push_back(Text());
    ready_list.joined = Number(2) == 1;
    if (Number(4) == 0) ready_list.leaving = Text();
    if (Number(4) == 0) ready_list.wait_state = {MakeWaitState()};
    return ready_list;
  }

  ResponseList MakeResponseList() {
    ResponseList response_list;
    for (int i = Number(5); i > 0; --i) {
      Response response;
      for (int j = Number(6); j > 0; --j) {
        ResponseItem item;
        item.id = Number(3) == 0 ? kNoId : static_cast<NameId>(Number(1 << 20));
        item.is_new = Number(2) == 1;
        if (item.is_new) item.named = Named();
        for (int r = Number(9); r > 0; --r) item.rows.push_back(Integer());
        response.items.push_back(item);
      }
      response.contributors = Number(10000);
      response_list.responses.push_back(response);
    }
    for (int i = Number(3); i > 0; --i)
      response_list.errors.push_back({Text(), Code::kUnavailable, Text()});
    for (int i = Number(3); i > 0; --i) response_list.withdrawn.push_back({Number(10000), Text()});
    for (int i = Number(3); i > 0; --i) response_list.posts.push_back(Text());
    if (Number(4) == 0) response_list.fatal = Text();
    response_list.finished = Number(2) == 1;
    return response_list;
  }

  std::mt19937_64 random_{20240601};
};

void ExpectEqual(const NamedSignature& a, const NamedSignature& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_TRUE(a.signature == b.signature) << Describe(a.signature) << Describe(b.signature);
  EXPECT_EQ(a.fingerprint, b.fingerprint);
  EXPECT_EQ(a.purpose, b.purpose);
}

void ExpectEqual(const ReadyList& a, const ReadyList& b) {
  EXPECT_EQ(a.ready, b.ready);
  ASSERT_EQ(a.gathers.size(), b.gathers.size());
  for (size_t i = 0; i < a.gathers.size(); ++i) {
    EXPECT_EQ(a.gathers[i].id, b.gathers[i].id);
    EXPECT_EQ(a.gathers[i].rows, b.gathers[i].rows);
  }
  ASSERT_EQ(a.requests.size(), b.requests.size());
  for (size_t i = 0; i < a.requests.size(); ++i) ExpectEqual(a.requests[i], b.requests[i]);
  EXPECT_EQ(a.withdrawn, b.withdrawn);
  EXPECT_EQ(a.joined, b.joined);
  EXPECT_EQ(a.leaving, b.leaving);
  EXPECT_TRUE(a.wait_state == b.wait_state);
}

void ExpectEqual(const Response& a, const Response& b) {
  EXPECT_EQ(a.contributors, b.contributors);
  ASSERT_EQ(a.items.size(), b.items.size());
  for (size_t i = 0; i < a.items.size(); ++i) {
    EXPECT_EQ(a.items[i].id, b.items[i].id);
    EXPECT_EQ(a.items[i].is_new, b.items[i].is_new);
    ExpectEqual(a.items[i].named, b.items[i].named);
    EXPECT_EQ(a.items[i].rows, b.items[i].rows);
  }
}

void ExpectEqual(const ResponseList& a, const ResponseList& b) {
  ASSERT_EQ(a.responses.size(), b.responses.size());
  for (size_t i = 0; i < a.responses.size(); ++i) ExpectEqual(a.responses[i], b.responses[i]);
  ASSERT_EQ(a.errors.size(), b.errors.size());
  for (size_t i = 0; i < a.errors.size(); ++i) {
    EXPECT_EQ(a.errors[i].name, b.errors[i].name);
    EXPECT_EQ(a.errors[i].code, b.errors[i].code);
    EXPECT_EQ(a.errors[i].message, b.errors[i].message);
  }
  ASSERT_EQ(a.withdrawn.size(), b.withdrawn.size());
  for (size_t i = 0; i < a.withdrawn.size(); ++i) {
    EXPECT_EQ(a.withdrawn[i].rank, b.withdrawn[i].rank);
    EXPECT_EQ(a.withdrawn[i].name, b.withdrawn[i].name);
  }
  EXPECT_EQ(a.posts, b.posts);
  EXPECT_EQ(a.fatal, b.fatal);
  EXPECT_EQ(a.finished, b.finished);
}

TEST_F(MessageTest, RoundTripOfRandomReadyLists) {
  for (int i = 0; i < 2000 && !HasFailure(); ++i) {
    const ReadyList ready_list = MakeReadyList();
    ReadyList decoded;
    ASSERT_TRUE(Decode(Encode(ready_list), &decoded)) << i;
    ExpectEqual(ready_list, decoded);
  }
}

TEST_F(MessageTest, RoundTripOfRandomResponseLists) {
  for (int i = 0; i < 2000 && !HasFailure(); ++i) {
    const ResponseList response_list = MakeResponseList();
    ResponseList decoded;
    ASSERT_TRUE(Decode(Encode(response_list), &decoded)) << i;
    ExpectEqual(response_list, decoded);
  }
}

TEST_F(MessageTest, DecodeReplacesWhatWasThere) {
  ResponseList response_list = MakeResponseList();
  response_list.fatal = "old";
  ASSERT_TRUE(Decode(Encode(ResponseList()), &response_list));
  EXPECT_TRUE(response_list.empty());
  ReadyList ready_list = MakeReadyList();
  ready_list.joined = true;
  ASSERT_TRUE(Decode(Encode(ReadyList()), &ready_list));
  EXPECT_TRUE(ready_list.empty());
}

TEST_F(MessageTest, AKnownNameCostsOneBit) {
  ReadyList ready_list;
  for (NameId id = 0; id < 800; ++id) ready_list.ready.push_back(id);
  EXPECT_LE(Encode(ready_list).size(), 800 / 8 + 16u);
}

TEST_F(MessageTest, EveryTruncationIsRefused) {
  for (int i = 0; i < 40; ++i) {
    const std::string a = Encode(MakeReadyList());
    const std::string v = Encode(MakeResponseList());
    ReadyList ready_list;
    ResponseList response_list;
    for (size_t size = 0; size < a.size(); ++size) {
      EXPECT_FALSE(Decode(a.substr(0, size), &ready_list)) << size << " of " << a.size();
    }
    for (size_t size = 0; size < v.size(); ++size) {
      EXPECT_FALSE(Decode(v.substr(0, size), &response_list)) << size << " of " << v.size();
    }
    EXPECT_FALSE(Decode(a + '\0', &ready_list));
    EXPECT_FALSE(Decode(v + '\0', &response_list));
  }
}

// The largest element of a list in memory, per byte of its shortest encoding, and the growth of a
// vector by doubling: the most that a message of n bytes can cost.
size_t Allowance(size_t message_bytes) { return 1024 + 256 * message_bytes; }

TEST_F(MessageTest, RandomAndDamagedBytesNeverCrashOrOverAllocate) {
  for (int i = 0; i < 30000; ++i) {
    std::string bytes;
    if (i % 3 == 0) {
      bytes.resize(Number(64));
      for (char& c : bytes) c = static_cast<char>(Number(256));
    } else {
      bytes = i % 3 == 1 ? Encode(MakeReadyList()) : Encode(MakeResponseList());
      for (int n = 1 + Number(4); n > 0; --n) {
        // 0xff: usually a length of billions.
        bytes[Number(bytes.size())] = static_cast<char>(Number(2) == 0 ? 0xff : Number(256));
      }
    }
    const size_t before = allocated_bytes;
    {
      ReadyList ready_list;
      Decode(bytes, &ready_list);
    }
    const size_t between = allocated_bytes;
    EXPECT_LE(between - before, Allowance(bytes.size())) << "ready list " << i;
    {
      ResponseList response_list;
      Decode(bytes, &response_list);
    }
    EXPECT_LE(allocated_bytes - between, Allowance(bytes.size())) << "response list " << i;
  }
}

// An invalid enumeration value is not decoded as another one.
TEST_F(MessageTest, UnknownKindsAreRefused) {
  const std::string name = "name of eleven";
  ReadyList ready_list;
  ready_list.requests.push_back({name, Signature(), 0});
  const std::string bytes = Encode(ready_list);
  const size_t kind = bytes.find(name) + name.size();
  const int counts[] = {kNumOpKinds, kNumReduceOps, kNumDataTypes};
  for (size_t place = 0; place < 3; ++place) {
    for (int value : {0, counts[place] - 1, counts[place], 127, 255}) {
      std::string changed = bytes;
      changed[kind + place] = static_cast<char>(value);
      EXPECT_EQ(Decode(changed, &ready_list), value < counts[place]) << place << ": " << value;
    }
  }
  ResponseList response_list;
  response_list.errors.push_back({name, Code::kInternal, "why"});
  std::string error = Encode(response_list);
  ASSERT_TRUE(Decode(error, &response_list));
  error[error.find(name) + name.size()] = static_cast<char>(kNumCodes);
  EXPECT_FALSE(Decode(error, &response_list));
}

TEST_F(MessageTest, AnEnvelopeGivesBackItsMessageAndNoOther) {
  for (int i = 0; i < 300; ++i) {
    const std::string message = Encode(MakeReadyList());
    const std::string sealed = Seal(7, message);
    std::string opened;
    EXPECT_EQ(Open(7, sealed, &opened), "");
    EXPECT_EQ(opened, message);
    EXPECT_EQ(Open(6, sealed, &opened),
              "message 7 arrived instead of message 6: one was lost or duplicated");
    EXPECT_NE(Open(8, sealed, &opened), "") << "twice";
    const auto part = static_cast<size_t>(Number(sealed.size()));
    EXPECT_EQ(Open(7, sealed.substr(0, part), &opened),
              part < 8 ? "message 7 is truncated" : "message 7 is damaged");
    for (int n = 0; n < 20; ++n) {
      std::string damaged = sealed;
      damaged[Number(damaged.size())] ^= static_cast<char>(1 + Number(255));
      EXPECT_NE(Open(7, damaged, &opened), "");
    }
  }
}

TEST_F(MessageTest, WhatNoRankSaysIsRefused) {
  ResponseList response_list;
  for (const Code code : {Code::kOk, static_cast<Code>(7), static_cast<Code>(200)}) {
    response_list.errors = {{"w", code, "an error that is none, or unknown"}};
    ResponseList decoded;
    EXPECT_FALSE(Decode(Encode(response_list), &decoded));
  }
  Parts parts;
  parts.names = {"kernel", "bias"};
  parts.shapes = {{3}};
  ReadyList ready_list;
  ready_list.requests = {Named()};
  ready_list.requests[0].signature.parts = std::make_shared<const Parts>(parts);
  ReadyList decoded;
  EXPECT_FALSE(Decode(Encode(ready_list), &decoded)) << "a part without a shape";
}

TEST_F(MessageTest, LengthsBeyondTheMessageAreRefused) {
  const std::string huge("\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 9);
  const std::string wrapped("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11);
  for (const std::string& length : {huge, wrapped}) {
    for (const std::string& rest : {std::string(), std::string(64, '\x01')}) {
      ReadyList ready_list;
      ResponseList response_list;
      EXPECT_FALSE(Decode(length + rest, &ready_list));
      EXPECT_FALSE(Decode(length + rest, &response_list));
    }
  }
}

}  // namespace
}  // namespace tfmpi
