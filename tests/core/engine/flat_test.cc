// A collective that is called again and again leaves nothing behind.

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "gtest/gtest.h"
#include "tests/core/support/job.h"
#include "tests/core/support/ranks.h"

namespace {
std::atomic<int64_t> g_live_bytes{0};
}  // namespace

void* operator new(size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  g_live_bytes += static_cast<int64_t>(malloc_usable_size(memory));
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory != nullptr) g_live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace tfmpi {
namespace {

using FlatTest = TimedTest;

// `size_of`: the number of elements in each call.
template <typename SizeOfCall>
void Call(Ranks* ranks, int from, int to, const SizeOfCall& size_of) {
  ranks->Each([&](int rank, Engine& engine) {
    for (int call = from; call < to; ++call) {
      const Job job = {"allreduce", DataType::kFloat32, ReduceOp::kAverage,
                       static_cast<size_t>(size_of(call)), call};
      std::vector<char> data = MakeInput(job, rank);
      Ending ending = Submit(engine, MakeRequest(job, data.data(), data.data()));
      ASSERT_TRUE(Await(ending).ok());
      ASSERT_EQ(CheckOutput(job, AllRanks(2), data.data()), "");
    }
  });
}

template <typename SizeOfCall>
void ExpectFlat(const SizeOfCall& size_of) {
  constexpr int kFirst = 300, kThen = 3000;
  Ranks ranks(2);
  Call(&ranks, 0, kFirst, size_of);
  const int64_t before = g_live_bytes;
  Call(&ranks, kFirst, kFirst + kThen, size_of);
  // A name or number kept for each call would take hundreds of bytes per call.
  EXPECT_LT(g_live_bytes - before, 4 * kThen) << "bytes after " << kThen << " calls";
  ranks.JoinAll();
}

TEST_F(FlatTest, OneShape) {
  ExpectFlat([](int) { return 3; });
}
TEST_F(FlatTest, ShapesByTurns) {
  ExpectFlat([](int call) { return static_cast<size_t>(1 + call % 5); });
}
TEST_F(FlatTest, AShapeForEachCall) {
  ExpectFlat([](int call) { return static_cast<size_t>(1 + call); });
}

}  // namespace
}  // namespace tfmpi
