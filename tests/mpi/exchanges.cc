#include "tests/mpi/exchanges.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tensorflow_patches/core/base/clock.h"

namespace tfmpi {
namespace {

constexpr int kRounds = 12;
constexpr char kUntouched = '\x5a';

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::fflush(nullptr);
  std::_Exit(1);
}

// Nothing, a few bytes, and more than any MPI sends eagerly.
size_t BytesOf(int lane, int round, int from, int to) {
  constexpr size_t kSizes[] = {0, 1, 5000, (size_t{3} << 20) + 17, 70000};
  return kSizes[(lane + round * 7 + from * 3 + to) % 5];
}
char ByteOf(int lane, int round, int from, int to, size_t i) {
  return static_cast<char>(lane + 31 * round + 57 * from + 101 * to + static_cast<int>(i % 251));
}

// One rank's part in an exchange on each lane.
struct Side {
  std::vector<std::vector<char>> sent, received;  // by rank
  std::vector<GpuPart> to, from;
  int round = 0;
  bool busy = false;
};

void Begin(GpuMessages& messages, const Topology& topology, int lane, Side* side) {
  const int rank = topology.rank;
  side->sent.assign(topology.size, {});
  side->received.assign(topology.size, {});
  side->to.assign(topology.size, {});
  side->from.assign(topology.size, {});
  for (int r = 0; r < topology.size; ++r) {
    std::vector<char>& sent = side->sent[r];
    sent.resize(BytesOf(lane, side->round, rank, r));
    for (size_t i = 0; i < sent.size(); ++i) sent[i] = ByteOf(lane, side->round, rank, r, i);
    side->received[r].assign(BytesOf(lane, side->round, r, rank), kUntouched);
    side->to[r] = {sent.data(), sent.size()};
    side->from[r] = {side->received[r].data(), side->received[r].size()};
  }
  const Status status = messages.Start(lane, side->to, side->from);
  if (!status.ok()) Die(status.message());
  side->busy = true;
}

void Check(const Topology& topology, int lane, const Side& side) {
  for (int r = 0; r < topology.size; ++r) {
    for (size_t i = 0; i < side.received[r].size(); ++i) {
      const char expected =
          r == topology.rank ? kUntouched : ByteOf(lane, side.round, r, topology.rank, i);
      if (side.received[r][i] != expected) {
        Die("byte " + std::to_string(i) + " of rank " + std::to_string(r) + ", lane " +
            std::to_string(lane) + ", round " + std::to_string(side.round));
      }
    }
  }
}

void RunAll(GpuMessages& messages, const Topology& topology) {
  Side sides[GpuMessages::kLanes];
  const TimePoint limit = Clock::now() + std::chrono::seconds(60);
  for (int ended = 0; ended < kRounds * GpuMessages::kLanes;) {
    for (int lane = 0; lane < GpuMessages::kLanes; ++lane) {
      Side& side = sides[lane];
      if (side.round == kRounds) continue;
      if (!side.busy) Begin(messages, topology, lane, &side);
      bool there = false;
      const Status status = messages.Test(lane, &there);
      if (!status.ok()) Die(status.message());
      if (!there) continue;
      Check(topology, lane, side);
      side.busy = false;
      ++side.round;
      ++ended;
    }
    if (Clock::now() > limit) Die("the exchanges do not end");
  }
}

// A part too large for MPI's counts, and a lane in use, are errors, and nothing is sent.
std::string RefusalOf(GpuMessages& messages, const Topology& topology, size_t bytes) {
  char byte = 0;
  std::vector<GpuPart> none(topology.size), parts(topology.size);
  for (GpuPart& part : parts) part = {&byte, bytes};
  return messages.Start(0, parts, none).message();
}

std::string RefusalOfALaneInUse(GpuMessages& messages, const Topology& topology) {
  Side side;
  Begin(messages, topology, 0, &side);
  const std::string refusal = RefusalOf(messages, topology, 1);
  for (bool there = false; !there;) {
    const Status status = messages.Test(0, &there);
    if (!status.ok()) Die(status.message());
  }
  Check(topology, 0, side);
  return refusal;
}

}  // namespace

void CheckExchanges(Transport& transport) {
  const Topology& topology = transport.topology();
  GpuMessages* const messages = transport.gpu_messages();
  if (messages == nullptr) {
    std::printf("RESULT {\"rank\": %d, \"takes\": false}\n", topology.rank);
    return;
  }
  RunAll(*messages, topology);
  const std::string refusal = RefusalOf(*messages, topology, size_t{1} << 31);
  const std::string in_use = RefusalOfALaneInUse(*messages, topology);
  RunAll(*messages, topology);
  std::printf("RESULT {\"rank\": %d, \"takes\": true, \"refusals\": [\"%s\", \"%s\"]}\n",
              topology.rank, refusal.c_str(), in_use.c_str());
}

}  // namespace tfmpi
