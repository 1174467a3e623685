#include "tensorflow_patches/core/observability/observe.h"

#include <unistd.h>

#include <cstring>
#include <memory>
#include <utility>

#include "tensorflow_patches/core/memory/leaked_memory.h"
#include "tensorflow_patches/core/observability/trace_file.h"

namespace tfmpi {
namespace {

constexpr std::chrono::seconds kPatience{60};
constexpr int kMinPings = 8;
constexpr int kMaxPings = 200;
constexpr int64_t kQuick = 100'000;  // ns for a round trip
// Bytes, for the events of all ranks together, which rank 0 holds.
constexpr size_t kMaxGathered = size_t{256} << 20;

int64_t SteadyNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

// Receives the only message that any rank may send now. Sleeps meanwhile: on a busy core, a process
// that polls is preempted for milliseconds at a time, but a process that was asleep is not.
Status AwaitMessage(Transport* transport, TimePoint deadline, std::string* bytes) {
  std::vector<ControlMessage> inbox;
  while (true) {
    TFMPI_RETURN_IF_NOT_OK(transport->Receive(&inbox));
    if (!inbox.empty()) break;
    if (Clock::now() >= deadline) {
      return Status(Code::kDeadlineExceeded, "a rank did not answer when the clocks were compared");
    }
    transport->Wait(std::chrono::milliseconds(10), true, [] { return false; });
  }
  *bytes = inbox.front().bytes;
  return Status();
}

constexpr char kQuestion[] = "?";
constexpr char kEnough[] = ".";

// On rank 0: exchanges messages with `peer` until a round trip is quick, at most kMaxPings times.
Status Ping(Transport* transport, int peer, const std::function<int64_t()>& now, TimePoint deadline,
            int64_t* offset) {
  int64_t quickest = INT64_MAX;
  for (int i = 0; i < kMaxPings && (i < kMinPings || quickest > kQuick); ++i) {
    const int64_t sent = now();
    TFMPI_RETURN_IF_NOT_OK(transport->Send(peer, kQuestion));
    std::string answer;
    TFMPI_RETURN_IF_NOT_OK(AwaitMessage(transport, deadline, &answer));
    const int64_t received = now();
    int64_t theirs = 0;
    if (answer.size() != sizeof theirs)
      return Status(Code::kInternal, "invalid reply to a clock message");
    std::memcpy(&theirs, answer.data(), sizeof theirs);
    if (received - sent < quickest) {
      quickest = received - sent;
      *offset = theirs - (sent + (received - sent) / 2);
    }
  }
  return transport->Send(peer, kEnough);
}

Status Answer(Transport* transport, const std::function<int64_t()>& now, TimePoint deadline) {
  while (true) {
    std::string question;
    TFMPI_RETURN_IF_NOT_OK(AwaitMessage(transport, deadline, &question));
    const int64_t time = now();
    if (question == kEnough) return Status();
    TFMPI_RETURN_IF_NOT_OK(
        transport->Send(0, std::string(reinterpret_cast<const char*>(&time), sizeof time)));
  }
}

std::string HostName() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

RankEvents OwnEvents(const Topology& topology, const Observation& observation) {
  return {topology.rank, HostName(), observation.clock_offset, CopyEvents()};
}

// Appends every rank's `own` to rank 0's `all`, in rank order. Collective. Broadcasts one string
// after another, so that the other ranks, which receive them, too, hold one at a time.
Status GatherStrings(Transport* transport, const std::string& own, TimePoint deadline,
                     std::vector<std::string>* all) {
  const Topology& topology = transport->topology();
  const size_t length = own.size();
  std::vector<size_t> lengths(topology.size);
  TFMPI_RETURN_IF_NOT_OK(transport->Allgather(
      &length, lengths.data(), std::vector<size_t>(topology.size, sizeof length), deadline));
  for (int rank = 0; rank < topology.size; ++rank) {
    auto one = std::make_unique<std::string>(own);
    if (rank != topology.rank) one->assign(lengths[rank], '\0');
    const Status status = transport->Broadcast(one->data(), lengths[rank], rank, deadline);
    if (!status.ok()) {
      KeepUntilExit(std::move(one));  // MPI may still write there
      return status;
    }
    if (topology.rank == 0) all->push_back(std::move(*one));
  }
  return Status();
}

Status GatherTimeline(Transport* transport, const Observation& observation, TimePoint deadline) {
  const Topology& topology = transport->topology();
  const std::string own =
      Encode(OwnEvents(topology, observation), kMaxGathered / static_cast<size_t>(topology.size));
  std::vector<std::string> all;
  const Status status = GatherStrings(transport, own, deadline, &all);
  if (!status.ok() || topology.rank != 0) return status;
  std::vector<RankEvents> ranks(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (!Decode(all[i], &ranks[i])) {
      return Status(Code::kInternal, "cannot read the events of rank " + std::to_string(i));
    }
  }
  return WriteTrace(observation.timeline, ranks);
}

}  // namespace

Status MeasureClockOffset(Transport* transport, const std::function<int64_t()>& now,
                          int64_t* offset) {
  const Topology& topology = transport->topology();
  const TimePoint deadline = Clock::now() + kPatience;
  std::vector<int64_t> offsets(topology.size, 0);
  if (topology.rank == 0) {
    for (int peer = 1; peer < topology.size; ++peer) {
      TFMPI_RETURN_IF_NOT_OK(Ping(transport, peer, now, deadline, &offsets[peer]));
    }
  } else {
    TFMPI_RETURN_IF_NOT_OK(Answer(transport, now, deadline));
  }
  // Also a barrier: no engine sends before rank 0 has received all answers.
  const Status status =
      transport->Broadcast(offsets.data(), offsets.size() * sizeof offsets[0], 0, deadline);
  *offset = offsets[topology.rank];
  return status;
}

Status StartObserving(Transport* transport, Observation* observation) {
  const std::string own = (observation->stats ? "1" : "0") + observation->timeline;
  std::vector<std::string> all;
  TFMPI_RETURN_IF_NOT_OK(AllgatherStrings(transport, own, Clock::now() + kPatience, &all));
  observation->stats = all[0][0] == '1';
  observation->timeline = all[0].substr(1);
  const bool timeline = !observation->timeline.empty();
  if (timeline && transport->topology().nodes > 1) {
    TFMPI_RETURN_IF_NOT_OK(
        MeasureClockOffset(transport, SteadyNanoseconds, &observation->clock_offset));
  }
  StartRecording((timeline ? kRecordEvents : 0) | (observation->stats ? kRecordTotals : 0));
  return Status();
}

Status Gather(Transport* transport, const Observation& observation, const RankStats& own,
              std::vector<RankStats>* all) {
  const TimePoint deadline = Clock::now() + kPatience;
  const Topology& topology = transport->topology();
  if (observation.stats) {
    std::vector<RankStats> ranks(topology.size);
    TFMPI_RETURN_IF_NOT_OK(transport->Allgather(
        &own, ranks.data(), std::vector<size_t>(topology.size, sizeof own), deadline));
    if (topology.rank == 0) *all = std::move(ranks);
  }
  return observation.timeline.empty() ? Status() : GatherTimeline(transport, observation, deadline);
}

Status WriteOwnTimeline(const Topology& topology, const Observation& observation,
                        std::string* path) {
  const std::string& timeline = observation.timeline;
  const size_t dot = timeline.rfind('.');
  const size_t slash = timeline.rfind('/');
  const bool has_suffix =
      dot != std::string::npos && (slash == std::string::npos || dot > slash + 1);
  const size_t stem = has_suffix ? dot : timeline.size();
  *path =
      timeline.substr(0, stem) + ".rank" + std::to_string(topology.rank) + timeline.substr(stem);
  return WriteTrace(*path, {OwnEvents(topology, observation)});
}

}  // namespace tfmpi
