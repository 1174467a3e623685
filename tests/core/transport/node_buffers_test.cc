// Buffers of a node's ranks, in which they reduce in place: ranks as threads, with real segments.

#include "tensorflow_patches/core/transport/shm/node_buffers.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/support/job.h"
#include "tests/core/support/nodes.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

constexpr size_t kBytes = size_t{64} << 10;

class NodeBuffersTest : public TimedTest {
 protected:
  void Start(int nodes, int per_node, const NodeOptions& options = NodeOptions(),
             int without_buffers = -1) {
    nodes_ = std::make_unique<Nodes>(nodes, per_node, options);
    without_buffers < 0 ? nodes_->UseSegments() : nodes_->FailBuffersOf(without_buffers);
    group_ = std::make_unique<LocalGroup>(nodes * per_node);
    for (int rank = 0; rank < nodes * per_node; ++rank) {
      transports_.push_back(nodes_->Wrap(group_->CreateTransport(rank), rank));
    }
  }

  void Each(const std::function<void(int rank, Transport& transport)>& body) {
    std::vector<std::thread> threads;
    for (size_t r = 0; r < transports_.size(); ++r) {
      threads.emplace_back([&, r] { body(static_cast<int>(r), *transports_[r]); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  static TimePoint Soon() { return Clock::now() + std::chrono::seconds(20); }

  // What all shares of a result are, from wherever they lie.
  static std::vector<char> Collect(const NodeBuffers& buffers, size_t offset, size_t count,
                                   size_t element) {
    std::vector<char> result;
    for (int r = 0; r < buffers.ranks(); ++r) {
      const char* const data = buffers.of(r) + offset;
      result.insert(result.end(), data + buffers.ShareStart(count, r) * element,
                    data + buffers.ShareStart(count, r + 1) * element);
    }
    return result;
  }

  // Reductions of several types and sizes, one after the other, at an offset.
  void ReduceAll() {
    const int ranks = static_cast<int>(transports_.size());
    Each([&](int rank, Transport& transport) {
      std::unique_ptr<NodeBuffers> buffers;
      std::string why;
      ASSERT_TRUE(transport.MakeNodeBuffers(kBytes, Soon(), &buffers, &why).ok());
      ASSERT_NE(buffers, nullptr) << why;
      constexpr size_t kOffset = 128;
      for (const DataType type : {DataType::kFloat32, DataType::kFloat64, DataType::kInt32}) {
        for (const size_t count : {size_t{0}, size_t{1}, size_t{17}, size_t{1000}, size_t{8000}}) {
          const bool average = type != DataType::kInt32;
          const Job job = {"x", type, average ? ReduceOp::kAverage : ReduceOp::kSum, count, 3};
          const std::vector<char> input = MakeInput(job, rank);
          if (!input.empty()) {
            std::memcpy(buffers->of(buffers->rank()) + kOffset, input.data(), input.size());
          }
          const Reduction reduction = {count, type, ReduceOp::kSum, average ? 1.0 / ranks : 1.0};
          ASSERT_EQ(buffers->Allreduce(kOffset, reduction, Soon()).message(), "");
          const std::vector<char> result = Collect(*buffers, kOffset, count, SizeOf(type));
          ASSERT_EQ(CheckOutput(job, AllRanks(ranks), result.data()), "") << Name(type) << count;
          // Until then a peer may read this rank's share.
          ASSERT_EQ(buffers->Barrier(Soon()).message(), "");
        }
      }
    });
  }

  std::unique_ptr<Nodes> nodes_;
  std::unique_ptr<LocalGroup> group_;
  std::vector<std::unique_ptr<Transport>> transports_;
};

TEST_F(NodeBuffersTest, OfOneNodeReduceInPlace) {
  Start(1, 3);
  ReduceAll();
}

TEST_F(NodeBuffersTest, OfSeveralNodesReduceInPlace) {
  Start(2, 2);
  ReduceAll();
}

// No rank returns before its peers have reduced their shares, which takes a while here.
TEST_F(NodeBuffersTest, WhoComesBackFindsAllShares) {
  for (const int nodes : {1, 2}) {
    transports_.clear();
    Start(nodes, 2);
    Each([&](int rank, Transport& transport) {
      constexpr size_t kMany = (size_t{32} << 20) / sizeof(float);
      std::unique_ptr<NodeBuffers> buffers;
      std::string why;
      ASSERT_TRUE(transport.MakeNodeBuffers(kMany * sizeof(float), Soon(), &buffers, &why).ok());
      auto* const own = reinterpret_cast<float*>(buffers->of(buffers->rank()));
      std::fill(own, own + kMany, static_cast<float>(rank + 1));
      const float expected = nodes == 1 ? 3 : 10;
      const Reduction reduction = {kMany, DataType::kFloat32, ReduceOp::kSum, 1};
      ASSERT_EQ(buffers->Allreduce(0, reduction, Soon()).message(), "");
      // The peer's last, at once.
      const int peer = 1 - buffers->rank();
      const auto* const theirs = reinterpret_cast<const float*>(buffers->of(peer));
      EXPECT_EQ(theirs[buffers->ShareStart(kMany, peer + 1) - 1], expected) << nodes << " nodes";
      ASSERT_TRUE(buffers->Barrier(Soon()).ok());
    });
  }
}

TEST_F(NodeBuffersTest, BetweenNodesItIsRoundedAsEverywhere) {
  NodeOptions options;
  options.wire = DataType::kBfloat16;
  Start(2, 2, options);
  Each([&](int rank, Transport& transport) {
    std::unique_ptr<NodeBuffers> buffers;
    std::string why;
    ASSERT_TRUE(transport.MakeNodeBuffers(kBytes, Soon(), &buffers, &why).ok());
    const Job job = {"x", DataType::kFloat32, ReduceOp::kAverage, 500, 3};
    const std::vector<char> input = MakeInput(job, rank);
    std::memcpy(buffers->of(buffers->rank()), input.data(), input.size());
    const Reduction reduction = {500, DataType::kFloat32, ReduceOp::kSum, 0.25, true};
    ASSERT_TRUE(buffers->Allreduce(0, reduction, Soon()).ok());
    std::vector<char> other(input.size());
    const std::vector<char> result = Collect(*buffers, 0, 500, sizeof(float));
    ASSERT_TRUE(transport.Allreduce(input.data(), other.data(), reduction, Soon()).ok());
    EXPECT_EQ(result, other);
  });
}

TEST_F(NodeBuffersTest, ARankAloneOnItsNodeHasNone) {
  Start(2, 1);
  Each([&](int, Transport& transport) {
    std::unique_ptr<NodeBuffers> buffers;
    std::string why;
    EXPECT_TRUE(transport.MakeNodeBuffers(kBytes, Soon(), &buffers, &why).ok());
    EXPECT_EQ(buffers, nullptr);
    EXPECT_EQ(why, "");
  });
}

// More than there can be.
TEST_F(NodeBuffersTest, WithoutRoomNoRankOfTheNodeHasThem) {
  Start(1, 2);
  Each([&](int rank, Transport& transport) {
    std::unique_ptr<NodeBuffers> buffers;
    std::string why;
    EXPECT_TRUE(transport.MakeNodeBuffers(size_t{1} << 60, Soon(), &buffers, &why).ok());
    EXPECT_EQ(buffers, nullptr);
    const char* const reason =
        rank == 0 ? "posix_fallocate" : "the first rank of the node could not create it";
    EXPECT_NE(why.find(reason), std::string::npos) << why;
  });
}

TEST_F(NodeBuffersTest, ARankThatCannotMapThemIsHeardOf) {
  Start(1, 2, NodeOptions(), /*without_buffers=*/1);
  Each([](int, Transport& transport) {
    std::unique_ptr<NodeBuffers> buffers;
    std::string why;
    EXPECT_TRUE(transport.MakeNodeBuffers(kBytes, Soon(), &buffers, &why).ok());
    EXPECT_EQ(buffers, nullptr);
    EXPECT_EQ(why, "another rank of the node cannot map it");
  });
}

TEST_F(NodeBuffersTest, APeerThatDoesNotComeIsAnErrorAtTheDeadline) {
  Start(1, 2);
  Each([&](int rank, Transport& transport) {
    std::unique_ptr<NodeBuffers> buffers;
    std::string why;
    ASSERT_TRUE(transport.MakeNodeBuffers(kBytes, Soon(), &buffers, &why).ok());
    if (rank == 1) return;
    const Reduction reduction = {10, DataType::kFloat32, ReduceOp::kSum, 1};
    const TimePoint deadline = Clock::now() + std::chrono::milliseconds(200);
    const Status status = buffers->Allreduce(0, reduction, deadline);
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
    EXPECT_NE(status.message().find("a peer has died or does not take part"), std::string::npos);
  });
}

}  // namespace
}  // namespace tfmpi
