// The transport of a node, with threads as ranks: through shared memory, and between nodes.

#include <algorithm>
#include <cstdlib>
#include <future>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/memory/line_memory.h"
#include "tensorflow_patches/core/reduction/fusion.h"
#include "tensorflow_patches/core/transport/control_channel.h"
#include "tensorflow_patches/core/transport/node_transport.h"
#include "tensorflow_patches/core/transport/shm/node_memory.h"
#include "tests/core/reduction/counting_rows.h"
#include "tests/core/support/elements.h"
#include "tests/core/support/job.h"
#include "tests/core/support/nodes.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Form {
  int nodes;
  int per_node;
  Stores stores = Stores::kAuto;
};

NodeOptions OptionsOf(const Form& form) {
  NodeOptions options;
  options.stores = form.stores;
  return options;
}

std::string NameOf(const Form& form) {
  const char* const stores[] = {"", "_cached", "_streamed"};
  return std::to_string(form.nodes) + "x" + std::to_string(form.per_node) +
         stores[static_cast<int>(form.stores)];
}

class NodeTest : public TimedTest, public ::testing::WithParamInterface<Form> {};
INSTANTIATE_TEST_SUITE_P(
    Forms, NodeTest,
    ::testing::Values(Form{1, 1}, Form{1, 2}, Form{1, 3}, Form{1, 5}, Form{2, 1}, Form{2, 2},
                      Form{3, 2}, Form{1, 2, Stores::kStreamed}, Form{1, 3, Stores::kStreamed},
                      Form{2, 2, Stores::kStreamed}, Form{1, 2, Stores::kCached}),
    [](const auto& test) { return NameOf(test.param); });

// Around the sizes at which the algorithm changes: nothing, whole, one block, many chunks.
std::vector<Job> SomeJobs(int step) {
  std::vector<Job> jobs;
  for (size_t count : {0, 1, 17, 2048, 2049, 40000, 300000}) {
    jobs.push_back(
        {"f32/" + std::to_string(count), DataType::kFloat32, ReduceOp::kAverage, count, step});
  }
  for (DataType type : kAllTypes) {
    if (type == DataType::kBool) continue;
    jobs.push_back({std::string(Name(type)), type, ReduceOp::kSum, 5000, step});
  }
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    jobs.push_back({std::string("f64 ") + Name(op), DataType::kFloat64, op, 3000, step});
  }
  return jobs;
}

TEST_P(NodeTest, EveryReductionIsRight) {
  Nodes nodes(GetParam().nodes, GetParam().per_node, OptionsOf(GetParam()));
  Ranks ranks(GetParam().nodes * GetParam().per_node, TestOptions(), nodes.Decorator());
  for (int step = 0; step < 3; ++step) {
    const std::vector<Job> jobs = SomeJobs(step);
    ranks.Each([&](int rank, Engine& engine) {
      std::vector<std::vector<char>> inputs, outputs;
      std::vector<Ending> endings;
      for (const Job& job : jobs) {
        inputs.push_back(MakeInput(job, rank));
        outputs.push_back(inputs.back());
      }
      for (size_t i = 0; i < jobs.size(); ++i) {
        const void* in = (i + step) % 2 == 0 ? inputs[i].data() : outputs[i].data();
        endings.push_back(Submit(engine, MakeRequest(jobs[i], in, outputs[i].data())));
      }
      EXPECT_EQ(AwaitAll(endings), "");
      for (size_t i = 0; i < jobs.size(); ++i) {
        EXPECT_EQ(CheckOutput(jobs[i], AllRanks(ranks.size()), outputs[i].data()), "")
            << jobs[i].name;
      }
    });
  }
  ranks.JoinAll();
}

TEST_P(NodeTest, GathersAndBroadcastsOfManySizes) {
  Nodes nodes(GetParam().nodes, GetParam().per_node, OptionsOf(GetParam()));
  Ranks ranks(GetParam().nodes * GetParam().per_node, TestOptions(), nodes.Decorator());
  const int size = ranks.size();
  for (int64_t unit : {0, 1, 1000, 200000}) {
    ranks.Each([&](int rank, Engine& engine) {
      // Ragged: rank r brings r units, so rank 0 none.
      std::vector<int32_t> in(unit * rank, rank), out, expected;
      for (int r = 0; r < size; ++r) expected.insert(expected.end(), unit * r, r);
      Request gather;
      gather.name = "gather";
      gather.signature = {OpKind::kAllgather, ReduceOp::kSum, DataType::kInt32, 0, {unit * rank}};
      gather.input = in.data();
      gather.allocate = [&](const std::vector<int64_t>&) -> void* {
        out.resize(expected.size() + 1);
        return out.data();
      };
      Ending gathered = Submit(engine, std::move(gather));
      EXPECT_TRUE(Await(gathered).ok());
      out.resize(expected.size());
      EXPECT_EQ(out, expected);

      const int root = size - 1;
      std::vector<int32_t> data(unit, rank);
      Request broadcast;
      broadcast.name = "broadcast " + std::to_string(unit);
      broadcast.signature = {OpKind::kBroadcast, ReduceOp::kSum, DataType::kInt32, root, {unit}};
      broadcast.output = data.data();
      Ending sent = Submit(engine, std::move(broadcast));
      EXPECT_TRUE(Await(sent).ok());
      EXPECT_EQ(data, std::vector<int32_t>(unit, root));
    });
  }
  ranks.JoinAll();
}

TEST_P(NodeTest, SparseAllgathersOfNarrowAndWideRows) {
  Nodes nodes(GetParam().nodes, GetParam().per_node, OptionsOf(GetParam()));
  Ranks ranks(GetParam().nodes * GetParam().per_node, TestOptions(), nodes.Decorator());
  // Wider than a slot; as wide as half of one and a little; many in one.
  for (const size_t width : {40000, 17000, 100, 1}) {
    const int64_t unit = width > 10000 ? 2 : 3000;
    ranks.Each([&](int rank, Engine& engine) {
      CountingRows rows(rank, width);
      const std::string name = "rows of " + std::to_string(width);
      Ending ending = Submit(engine, MakeSparseAllgather(name, unit * rank, width, &rows));
      const Status status = Await(ending);
      EXPECT_TRUE(status.ok()) << status.message();
      for (int r = 0; r < ranks.size(); ++r) {
        EXPECT_EQ(rows.seen_[r], std::vector<bool>(unit * r, true)) << name;
      }
    });
  }
  ranks.JoinAll();
}

// As when a script ends on one rank first: the others continue without it.
TEST_P(NodeTest, ARankThatHasJoinedContributesZeros) {
  Nodes nodes(GetParam().nodes, GetParam().per_node, OptionsOf(GetParam()));
  Ranks ranks(GetParam().nodes * GetParam().per_node, TestOptions(), nodes.Decorator());
  const int size = ranks.size();
  ranks.Each([&](int rank, Engine& engine) {
    for (int step = 0; step <= rank; ++step) {
      std::vector<int> contributors;
      for (int r = step; r < size; ++r) contributors.push_back(r);
      for (size_t count : {3, 100000}) {
        const Job job = {"w" + std::to_string(count), DataType::kFloat32, ReduceOp::kAverage, count,
                         step};
        std::vector<char> data = MakeInput(job, rank);
        Ending ending = Submit(engine, MakeRequest(job, data.data(), data.data()));
        EXPECT_TRUE(Await(ending).ok());
        EXPECT_EQ(CheckOutput(job, contributors, data.data()), "");
      }
    }
    EXPECT_TRUE(engine.Join().ok());
  });
}

class NodesTest : public TimedTest {};

// Half precision between nodes: the average is the exact one, rounded; inside a node it is exact.
TEST_F(NodesTest, CompressionRoundsBetweenNodesOnly) {
  for (DataType wire : {DataType::kFloat16, DataType::kBfloat16}) {
    for (const Form form : {Form{2, 2}, Form{2, 1}, Form{1, 4}}) {
      NodeOptions options;
      options.wire = wire;
      Nodes nodes(form.nodes, form.per_node, options);
      Ranks ranks(form.nodes * form.per_node, TestOptions(), nodes.Decorator());
      constexpr size_t kCount = 50000;
      std::vector<std::vector<float>> outputs(ranks.size());
      ranks.Each([&](int rank, Engine& engine) {
        std::vector<float>& data = outputs[rank];
        for (size_t i = 0; i < kCount; ++i) data.push_back(0.001f * i + 0.1f * rank);
        Request request;
        request.name = "w";
        request.signature.shape = {kCount};
        request.input = request.output = data.data();
        Ending ending = Submit(engine, std::move(request));
        EXPECT_TRUE(Await(ending).ok());
      });
      const double rounding = form.nodes == 1 ? 1e-6 : 2 * Epsilon(wire);
      double largest = 0;
      for (size_t i = 0; i < kCount; ++i) {
        const double exact = 0.001 * i + 0.1 * (ranks.size() - 1) / 2;
        largest = std::max(largest, std::abs(outputs[0][i] - exact) / exact);
        for (const std::vector<float>& other : outputs) EXPECT_EQ(other[i], outputs[0][i]);
      }
      EXPECT_LT(largest, rounding);
      if (form.nodes > 1) {
        EXPECT_GT(largest, Epsilon(wire) / 16) << "nothing was rounded";
      }
      ranks.JoinAll();
    }
  }
}

// Sums may need all of their digits or be larger than any float16; a bfloat16 may be smaller.
TEST_F(NodesTest, CompressionRoundsAveragesOfFloat32Only) {
  NodeOptions options;
  options.wire = DataType::kFloat16;
  const struct {
    DataType type;
    ReduceOp op;
    double value;
    double result;
  } cases[] = {
      {DataType::kFloat32, ReduceOp::kSum, 100000, 400000},
      {DataType::kFloat32, ReduceOp::kSum, 2049, 8196},
      {DataType::kBfloat16, ReduceOp::kAverage, 0x1p-30, 0x1p-30},
      {DataType::kComplex64, ReduceOp::kAverage, 0x1p-30, 0x1p-30},
      {DataType::kFloat32, ReduceOp::kAverage, 0x1p-30, 0},
  };
  Nodes nodes(2, 2, options);
  Ranks ranks(4, TestOptions(), nodes.Decorator());
  ranks.Each([&](int, Engine& engine) {
    for (const auto& one : cases) {
      std::vector<char> data(SizeOf(one.type));
      SetComponent(one.type, data.data(), 0, one.value);
      const std::string name = Name(one.type) + std::to_string(one.value);
      const Job job = {name, one.type, one.op, 1, 0};
      Ending ending = Submit(engine, MakeRequest(job, data.data(), data.data()));
      EXPECT_TRUE(Await(ending).ok());
      EXPECT_EQ(GetComponent(one.type, data.data(), 0), one.result) << Name(one.type);
    }
  });
  ranks.JoinAll();
}

TEST_F(NodesTest, CompressionRoundsNothingThatSharesABufferWithAnotherType) {
  NodeOptions options;
  options.wire = DataType::kFloat16;
  Nodes nodes(2, 1, options);
  LocalGroup group(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Transport> transport = nodes.Wrap(group.CreateTransport(rank), rank);
      Fusion fusion(transport.get(), kTestThreshold);
      float wide = 0x1p-30f;
      uint16_t narrow = EncodeBfloat16(0x1p-30);
      Request first =
          MakeRequest({"wide", DataType::kFloat32, ReduceOp::kAverage, 1, 0}, &wide, &wide);
      Request second =
          MakeRequest({"narrow", DataType::kBfloat16, ReduceOp::kAverage, 1, 0}, &narrow, &narrow);
      const std::vector<FusionEntry> entries = {{first.signature, &first},
                                                {second.signature, &second}};
      EXPECT_EQ(fusion.Allreduce(entries, 2, Clock::now() + seconds(20)).message(), "");
      EXPECT_EQ(wide, 0x1p-30f);
      EXPECT_EQ(DecodeBfloat16(narrow), 0x1p-30);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Shares are reduced in rank order, whichever rank arrives first.
TEST_F(NodesTest, TheSameInputsGiveTheSameBits) {
  std::vector<std::vector<float>> seen;
  for (int run = 0; run < 4; ++run) {
    Nodes nodes(1, 4);
    Ranks ranks(4, TestOptions(), nodes.Decorator());
    std::vector<float> first;
    ranks.Each([&](int rank, Engine& engine) {
      std::vector<float> data(30000);
      for (size_t i = 0; i < data.size(); ++i) data[i] = 1.f / (3 + i * 4 + rank);
      Request request;
      request.name = "w";
      request.signature.shape = {static_cast<int64_t>(data.size())};
      request.input = request.output = data.data();
      std::this_thread::sleep_for(milliseconds((rank + run) % 4));
      Ending ending = Submit(engine, std::move(request));
      EXPECT_TRUE(Await(ending).ok());
      if (rank == run) first = data;
    });
    seen.push_back(first);
    EXPECT_EQ(seen.front(), first);
    ranks.JoinAll();
  }
}

TEST_F(NodesTest, APeerThatDoesNotTakePartIsADeadline) {
  Nodes nodes(1, 3);
  std::vector<float> data(100000);
  std::vector<std::thread> threads;
  for (int rank : {0, 2}) {
    threads.emplace_back([&, rank] {
      std::vector<float> mine(data.size());
      NodeCollectives node(nodes.MemoryOf(rank));
      const TimePoint start = Clock::now();
      const Status status =
          node.Allreduce(mine.data(), mine.data(), {mine.size()}, Clock::now() + milliseconds(200));
      EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
      EXPECT_LT(Clock::now() - start, seconds(TFMPI_SANITIZED ? 20 : 5));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// As in a group that continues after deaths.
TEST_F(NodesTest, ADeathEndsAnOperationBeforeItsDeadline) {
  Nodes nodes(1, 2);
  float value = 1;
  NodeCollectives node(nodes.MemoryOf(0), Stores::kAuto, [] { return true; });
  const Status status = node.Allreduce(&value, &value, {1}, Clock::now() + seconds(40));
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.message(), "a rank has died");
}

TEST_F(NodesTest, MessagesLargerThanTheRingArriveWhole) {
  Nodes nodes(1, 2);
  LocalGroup group(2);
  std::unique_ptr<Transport> ends[] = {nodes.Wrap(group.CreateTransport(0), 0),
                                       nodes.Wrap(group.CreateTransport(1), 1)};
  std::vector<std::string> sent;
  for (size_t bytes : {size_t{0}, size_t{5}, ControlRing::kBytes, 5 * ControlRing::kBytes + 3}) {
    sent.push_back(std::string(bytes, static_cast<char>('a' + sent.size())));
  }
  std::vector<std::string> received[2];
  const auto talk = [&](int rank) {
    for (const std::string& message : sent) EXPECT_TRUE(ends[rank]->Send(1 - rank, message).ok());
    while (received[rank].size() < sent.size()) {  // the watchdog ends a wait that is too long
      std::vector<ControlMessage> inbox;
      EXPECT_TRUE(ends[rank]->Receive(&inbox).ok());
      for (ControlMessage& message : inbox) {
        EXPECT_EQ(message.source, 1 - rank);
        received[rank].push_back(std::move(message.bytes));
      }
      if (inbox.empty()) ends[rank]->Wait(milliseconds(5), true, [] { return false; });
    }
    // What the peer still has to read may not be written yet.
    for (int i = 0; i < 200; ++i) {
      std::vector<ControlMessage> inbox;
      EXPECT_TRUE(ends[rank]->Receive(&inbox).ok());
      std::this_thread::sleep_for(milliseconds(1));
    }
  };
  std::thread other(talk, 1);
  talk(0);
  other.join();
  EXPECT_EQ(received[0], sent);
  EXPECT_EQ(received[1], sent);
}

// The names of a first step may not fit into a ring: rank 0's message must have left before it
// waits for the others in the first operation.
TEST_F(NodesTest, AResponseListLargerThanTheRingIsHeardBeforeItIsCarriedOut) {
  Nodes nodes(1, 3);
  Ranks ranks(3, TestOptions(), nodes.Decorator());
  constexpr int kTensors = 600;
  ranks.Each([&](int rank, Engine& engine) {
    for (int step = 0; step < 2; ++step) {
      std::vector<Job> jobs;
      std::vector<std::vector<char>> data;
      for (int i = 0; i < kTensors; ++i) {
        const std::string name = std::string(200, 'n') + std::to_string(i);
        jobs.push_back({name, DataType::kFloat32, ReduceOp::kAverage, 3, step + i});
        data.push_back(MakeInput(jobs.back(), rank));
      }
      std::vector<Request> requests;
      std::vector<Ending> endings;
      for (int i = 0; i < kTensors; ++i) {
        auto promise = std::make_shared<std::promise<Status>>();
        endings.push_back(promise->get_future());
        requests.push_back(MakeRequest(jobs[i], data[i].data(), data[i].data()));
        requests.back().done = [promise](const Status& status) { promise->set_value(status); };
      }
      std::vector<Ticket> tickets;
      engine.Submit(std::move(requests), &tickets);
      EXPECT_EQ(AwaitAll(endings), "");
      for (int i = 0; i < kTensors; ++i) {
        EXPECT_EQ(CheckOutput(jobs[i], AllRanks(3), data[i].data()), "");
      }
    }
  });
  ranks.JoinAll();
}

TEST(NodeMemoryTest, ASlotHasALineForEveryRanksShare) {
  for (const int ranks : {1, 64, 512, 513, 600}) {
    const LineMemory memory = NewLineMemory(NodeMemory::BytesFor(ranks));
    const NodeMemory node(memory.get(), 0, ranks, 1);
    EXPECT_GE(node.slot_bytes() / static_cast<size_t>(ranks), kCacheLine) << ranks;
  }
}

// A message and Wake wake a sleeping rank, long before its limit.
TEST_F(NodesTest, WhoSleepsIsWoken) {
  Nodes nodes(1, 2);
  LocalGroup group(2);
  std::unique_ptr<Transport> zero = nodes.Wrap(group.CreateTransport(0), 0);
  std::unique_ptr<Transport> one = nodes.Wrap(group.CreateTransport(1), 1);
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> looked{false};
    std::thread sleeper([&] {
      const auto lies = [&] {
        looked = true;
        return false;
      };
      const TimePoint start = Clock::now();
      one->Wait(seconds(20), true, lies);
      EXPECT_LT(Clock::now() - start, seconds(10));
      std::vector<ControlMessage> inbox;
      EXPECT_TRUE(one->Receive(&inbox).ok());
      EXPECT_EQ(inbox.size(), round % 2 == 0 ? 1u : 0u);
    });
    while (!looked) std::this_thread::yield();
    if (round % 3 == 0) std::this_thread::sleep_for(milliseconds(1));
    if (round % 2 == 0) {
      EXPECT_TRUE(zero->Send(1, "hello").ok());
    } else {
      one->Wake();
    }
    sleeper.join();
  }
}

}  // namespace
}  // namespace tfmpi
