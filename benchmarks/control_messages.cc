// Rank 0's cost of control messages in a repeated step, sent directly and over a tree of nodes.
//
//   bazel run //benchmarks:control_messages
//
// First measures the messages alone, without ranks: rank 0's work of opening, reading, deciding,
// writing and sealing them, on one thread; the best of several runs. Then runs engines as threads,
// and counts rank 0's messages and the time of its communication thread.

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tensorflow_patches/core/agreement/coordinator.h"
#include "tensorflow_patches/core/agreement/envelope.h"
#include "tensorflow_patches/core/agreement/name_table.h"
#include "tensorflow_patches/core/agreement/predictor.h"
#include "tensorflow_patches/core/relay/relay.h"
#include "tests/core/support/job.h"
#include "tests/core/support/nodes.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

double Now(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

// Rank 0 without a transport.
class Rank0 {
 public:
  Rank0(int nodes, int per_node, int names)
      : size_(nodes * per_node), coordinator_(size_, CoordinatorOptions(), now_) {
    for (int rank = 0; rank < size_; ++rank) leaders_.push_back(rank / per_node * per_node);
    for (int i = 0; i < names; ++i) all_.ready.push_back(static_cast<NameId>(i));
    ReadyList first;
    for (int i = 0; i < names; ++i) {
      NamedSignature named;
      named.name = "gradient/" + std::to_string(i);
      named.signature.shape = {1000};
      first.requests.push_back(named);
    }
    for (int rank = 0; rank < size_; ++rank) coordinator_.Receive(rank, first, now_);
    coordinator_.Decide(now_);
  }

  // Microseconds per step; `bytes`: received and sent.
  double Direct(size_t* bytes) {
    std::vector<std::string> inbox;
    for (int rank = 1; rank < size_; ++rank) inbox.push_back(Seal(++number_, Encode(all_)));
    const double begin = Now(CLOCK_MONOTONIC);
    uint32_t number = number_ - static_cast<uint32_t>(inbox.size());
    coordinator_.Receive(0, all_, now_);
    for (int rank = 1; rank < size_; ++rank) {
      std::string message;
      ReadyList list;
      Open(++number, inbox[rank - 1], &message);
      Decode(message, &list);
      coordinator_.Receive(rank, list, now_);
    }
    const std::string answer = Encode(coordinator_.Decide(now_));
    std::vector<std::string> outbox;
    outbox.reserve(inbox.size());
    for (int rank = 1; rank < size_; ++rank) outbox.push_back(Seal(number_, answer));
    const double end = Now(CLOCK_MONOTONIC);
    *bytes = 0;
    for (const auto* box : {&inbox, &outbox}) {
      for (const std::string& message : *box) *bytes += message.size();
    }
    return end - begin;
  }

  // `asks`: asks the coordinator, as after a step that was not predicted.
  double Tree(bool asks, size_t* bytes) {
    const ControlLinks links = MakeTree(0, leaders_);
    std::vector<std::string> inbox;
    for (const int child : links.children) {
      const ControlLinks below = MakeTree(child, leaders_);
      const RankSet ranks(below.below);
      inbox.push_back(Seal(++number_, Encode({{ranks, all_}})));
    }
    RelayOptions options;
    options.of_all_ranks = [](NameId) { return true; };
    Relay relay(links.below, options);
    const double begin = Now(CLOCK_MONOTONIC);
    uint32_t number = number_ - static_cast<uint32_t>(inbox.size());
    relay.Add({RankSet(0), all_}, now_);
    for (const std::string& sealed : inbox) {
      std::string message;
      std::vector<Announcement> said;
      Open(++number, sealed, &message);
      Decode(message, size_, &said);
      for (Announcement& one : said) relay.Add(std::move(one), now_);
    }
    ResponseList answer;
    for (const Announcement& one : relay.TakeDue(now_)) {
      if (asks) {
        for (const int rank : one.ranks.ranks()) coordinator_.Receive(rank, one.list, now_);
      } else if (one.ranks.size() == size_ && coordinator_.nothing_open()) {
        coordinator_.Predicted(one.list.ready.back(), now_);
        answer = last_;
      }
    }
    if (asks) answer = last_ = coordinator_.Decide(now_);
    const std::string encoded = Encode(answer);
    std::vector<std::string> outbox;
    for (size_t i = 0; i < inbox.size(); ++i) outbox.push_back(Seal(number_, encoded));
    const double end = Now(CLOCK_MONOTONIC);
    *bytes = 0;
    for (const auto* box : {&inbox, &outbox}) {
      for (const std::string& message : *box) *bytes += message.size();
    }
    return end - begin;
  }

  size_t Messages(bool tree) const {
    return 2 * (tree ? MakeTree(0, leaders_) : MakeStar(0, size_)).children.size();
  }

 private:
  const TimePoint now_ = TimePoint() + std::chrono::hours(1);
  const int size_;
  Coordinator coordinator_;
  std::vector<int> leaders_;
  ReadyList all_;
  ResponseList last_;
  uint32_t number_ = 0;
};

template <typename Body>
double Best(int times, const Body& body) {
  double best = 1e18;
  for (int i = 0; i < times; ++i) best = std::min(best, body());
  return best;
}

void TimeMessages() {
  std::printf(
      "ranks nodes names |   direct: messages   bytes      us | tree: messages   bytes  "
      "expected us   asked us\n");
  for (const auto& [nodes, per_node] : std::vector<std::pair<int, int>>{
           {2, 1}, {2, 4}, {8, 8}, {64, 1}, {8, 64}, {64, 64}, {4096, 1}}) {
    for (const int names : {1, 10, 60}) {
      Rank0 rank0(nodes, per_node, names);
      size_t direct_bytes = 0, tree_bytes = 0;
      const double direct = Best(5, [&] { return rank0.Direct(&direct_bytes); });
      const double asked = Best(5, [&] { return rank0.Tree(true, &tree_bytes); });
      const double expected = Best(20, [&] { return rank0.Tree(false, &tree_bytes); });
      std::printf("%5d %5d %5d | %18zu %7zu %7.1f | %14zu %7zu %12.1f %10.1f\n", nodes * per_node,
                  nodes, names, rank0.Messages(false), direct_bytes, direct, rank0.Messages(true),
                  tree_bytes, expected, asked);
    }
  }
}

// Runs steps of engines as threads; each step submits all tensors at the same time.
void TimeEngines(int nodes, int per_node, bool tree) {
  constexpr int kSteps = 60, kFirst = 20, kTensors = 3;
  const int size = nodes * per_node;
  Nodes shape(nodes, per_node, NodeOptions(), tree);
  clockid_t clock = 0;
  std::atomic<bool> runs{false};
  Ranks ranks(
      size,
      [&](int rank) {
        EngineOptions options = TestOptions();
        options.vote_patience = std::chrono::seconds(5);
        if (rank != 0) return options;
        options.start_loop = [&](const std::function<void()>& loop) -> std::function<void()> {
          const auto thread = std::make_shared<std::thread>([&clock, &runs, loop] {
            pthread_getcpuclockid(pthread_self(), &clock);
            runs = true;
            loop();
          });
          return [thread] { thread->join(); };
        };
        return options;
      },
      shape.Decorator());
  while (!runs) std::this_thread::yield();
  double begin = 0;
  uint64_t messages = 0;
  const auto count = [&ranks] {
    const EngineStats stats = ranks[0].stats();
    return stats.messages_sent + stats.messages_received;
  };
  for (int step = 0; step < kSteps; ++step) {
    if (step == kFirst) {
      begin = Now(clock);
      messages = count();
    }
    std::vector<std::vector<char>> data;
    std::vector<Ending> endings;
    data.reserve(static_cast<size_t>(size) * kTensors);
    for (int rank = 0; rank < size; ++rank) {
      std::vector<Request> requests;
      for (int tensor = 0; tensor < kTensors; ++tensor) {
        const Job job = {"t" + std::to_string(tensor), DataType::kFloat32, ReduceOp::kSum, 5, step};
        data.push_back(MakeInput(job, rank));
        requests.push_back(MakeRequest(job, data.back().data(), data.back().data()));
        auto promise = std::make_shared<std::promise<Status>>();
        endings.push_back(promise->get_future());
        requests.back().done = [promise](const Status& status) { promise->set_value(status); };
      }
      ranks[rank].Submit(std::move(requests), nullptr);
    }
    if (const std::string wrong = AwaitAll(endings); !wrong.empty())
      std::printf("%s\n", wrong.c_str());
  }
  const double time = (Now(clock) - begin) / (kSteps - kFirst);
  const double per_step = static_cast<double>(count() - messages) / (kSteps - kFirst);
  std::printf("%5d %5d | %-8s %8.1f %12.0f\n", size, nodes, tree ? "tree" : "direct", per_step,
              time);
  ranks.JoinAll();
}

}  // namespace
}  // namespace tfmpi

int main() {
  tfmpi::TimeMessages();
  std::printf(
      "\nranks nodes |          messages  us of rank 0's communication thread, in a step\n");
  for (const auto& [nodes, per_node] :
       std::vector<std::pair<int, int>>{{2, 1}, {2, 4}, {4, 2}, {8, 8}, {64, 1}}) {
    for (const bool tree : {false, true}) tfmpi::TimeEngines(nodes, per_node, tree);
  }
}
