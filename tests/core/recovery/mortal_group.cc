#include "tests/core/recovery/mortal_group.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace tfmpi {

// One operation of all ranks of a group. A rank's contribution stays, even if the rank dies.
struct Operation {
  enum class Kind { kNone, kAllreduce, kAllgather, kBroadcast };
  Kind kind = Kind::kNone;
  size_t bytes = 0;  // of the whole result
  std::map<int, std::vector<char>> put;
};

constexpr std::chrono::milliseconds kLook{5};

// A vote (Agree), or a meeting (Regroup).
struct Round {
  std::map<int, bool> votes;
  bool decided = false;
  bool all = false;
};

struct MortalWorld::Group {
  std::vector<int> persons;
  std::vector<Clock::duration> notices;  // by rank: how long after a death it notices it
  bool revoked = false;
  std::deque<Operation> operations;
  std::vector<size_t> at;  // by rank: the next operation
  std::vector<std::deque<ControlMessage>> inboxes;
  std::vector<char> woken;
  std::deque<Round> rounds;
  std::vector<size_t> round_at;  // by rank
  Round meeting;
  Group* next = nullptr;

  int RankOf(int person) const {
    const auto it = std::find(persons.begin(), persons.end(), person);
    return it == persons.end() ? -1 : static_cast<int>(it - persons.begin());
  }
};

class MortalTransport : public Transport, public Membership {
 public:
  MortalTransport(MortalWorld* world, MortalWorld::Group* group, int person)
      : world_(*world), group_(*group), rank_(group->RankOf(person)) {
    const int size = static_cast<int>(group->persons.size());
    topology_ = {rank_, size, rank_, size, 1, size};
  }

  const Topology& topology() const override { return topology_; }
  std::string description() const override { return "mortal"; }
  Membership* membership() override { return this; }

  Status Send(int peer, const std::string& bytes) override {
    sim().Point();
    if (HasFailedRank()) return Gone();
    group_.inboxes[static_cast<size_t>(peer)].push_back({rank_, bytes});
    return Status();
  }
  Status Receive(std::vector<ControlMessage>* inbox) override {
    sim().Point();
    auto& mine = group_.inboxes[Index()];
    for (ControlMessage& message : mine) inbox->push_back(std::move(message));
    mine.clear();
    return HasFailedRank() ? Gone() : Status();
  }
  void Wait(Clock::duration limit, bool, const std::function<bool()>& ready) override {
    sim().WaitUntil(
        [&] {
          return group_.woken[Index()] != 0 || !group_.inboxes[Index()].empty() || ready() ||
                 HasFailedRank();
        },
        sim().Now() + limit);
    group_.woken[Index()] = 0;
  }
  void Wake() override { group_.woken[Index()] = 1; }

  Status Allreduce(const void* in, void* out, const Reduction& reduction,
                   TimePoint deadline) override {
    const size_t bytes = reduction.count * SizeOf(reduction.type);
    Operation* const operation = Put(Operation::Kind::kAllreduce, bytes, in, bytes);
    const Status status = AwaitAll(*operation, deadline);
    if (!status.ok()) return status;
    std::vector<const void*> sources;
    for (const auto& [rank, data] : operation->put) sources.push_back(data.data());
    std::vector<char> result(bytes);
    Reduce(reduction, sources.data(), topology_.size, reduction.count, result.data(), nullptr);
    std::memcpy(out, result.data(), bytes);
    return status;
  }
  Status Allgather(const void* in, void* out, const std::vector<size_t>& bytes,
                   TimePoint deadline) override {
    size_t total = 0;
    for (const size_t n : bytes) total += n;
    Operation* const operation = Put(Operation::Kind::kAllgather, total, in, bytes[Index()]);
    const Status status = AwaitAll(*operation, deadline);
    if (!status.ok()) return status;
    char* to = static_cast<char*>(out);
    for (const auto& [rank, data] : operation->put) {
      if (!data.empty()) std::memmove(to, data.data(), data.size());
      to += data.size();
    }
    return status;
  }
  Status Broadcast(void* data, size_t bytes, int root, TimePoint deadline) override {
    const bool gives = root == rank_;
    Operation* const operation = Put(Operation::Kind::kBroadcast, bytes, data, gives ? bytes : 0);
    if (gives) return Status();
    const Status status =
        Await([operation, root] { return operation->put.count(root) != 0; }, deadline);
    if (status.ok()) std::memcpy(data, operation->put[root].data(), bytes);
    return status;
  }
  Status Finalize() override { return Status(); }

  // Membership.
  bool HasFailedRank() override {
    if (group_.revoked) return true;
    for (const int person : group_.persons) {
      const TimePoint died = world_.died_[static_cast<size_t>(person)];
      if (!world_.Lives(person) && sim().Now() >= died + group_.notices[Index()]) return true;
    }
    return false;
  }
  Status Agree(bool yes, TimePoint deadline, bool* all) override {
    sim().Point();
    if (!yes) group_.revoked = true;
    const size_t number = group_.round_at[Index()]++;
    while (group_.rounds.size() <= number) group_.rounds.emplace_back();
    Round& round = group_.rounds[number];
    round.votes[rank_] = yes;
    if (!sim().WaitUntil([&] { return round.decided || AllLivingIn(round); }, deadline)) {
      return Status(Code::kDeadlineExceeded, "no agreement");
    }
    Decide(&round);
    *all = round.all;
    return Status();
  }
  Status Regroup(std::unique_ptr<Transport>* next) override {
    sim().Point();
    group_.meeting.votes[rank_] = true;
    sim().WaitUntil([&] { return group_.next != nullptr || AllLivingIn(group_.meeting); });
    if (group_.next == nullptr) {
      std::vector<int> living;
      for (const int person : group_.persons) {
        if (world_.Lives(person)) living.push_back(person);
      }
      group_.next = world_.NewGroup(living);
    }
    *next = std::make_unique<MortalTransport>(&world_, group_.next, group_.persons[Index()]);
    return Status();
  }

 private:
  Simulation& sim() { return *world_.world_; }
  size_t Index() const { return static_cast<size_t>(rank_); }
  static Status Gone() { return Status(Code::kUnavailable, "a rank is gone"); }

  bool AllLivingIn(const Round& round) const {
    for (size_t rank = 0; rank < group_.persons.size(); ++rank) {
      const bool in = round.votes.count(static_cast<int>(rank)) != 0;
      if (!in && world_.Lives(group_.persons[rank])) return false;
    }
    return true;
  }
  void Decide(Round* round) {
    if (std::exchange(round->decided, true)) return;
    round->all = true;
    for (const int person : group_.persons) round->all &= world_.Lives(person);
    for (const auto& [rank, yes] : round->votes) round->all &= yes;
  }

  Operation* Put(Operation::Kind kind, size_t bytes, const void* in, size_t size) {
    sim().Point();
    const size_t number = group_.at[Index()]++;
    while (group_.operations.size() <= number) group_.operations.emplace_back();
    Operation* const operation = &group_.operations[number];
    if (operation->kind == Operation::Kind::kNone) {
      operation->kind = kind;
      operation->bytes = bytes;
    } else if (operation->kind != kind || operation->bytes != bytes) {
      world_.violation_ = "ranks of a group are in different operations";
    }
    const char* const from = static_cast<const char*>(in);
    operation->put[rank_] = size == 0 ? std::vector<char>() : std::vector<char>(from, from + size);
    return operation;
  }
  Status AwaitAll(const Operation& operation, TimePoint deadline) {
    const size_t size = group_.persons.size();
    return Await([&operation, size] { return operation.put.size() == size; }, deadline);
  }
  Status Await(const std::function<bool()>& there, TimePoint deadline) {
    // Time passes in steps, because the simulation does not know when a death is noticed.
    const auto stirs = [&] { return there() || HasFailedRank(); };
    bool in_time = false;
    while (!in_time && sim().Now() < deadline) {
      in_time = sim().WaitUntil(stirs, std::min(deadline, sim().Now() + kLook));
    }
    if (!in_time && !there()) return Status(Code::kDeadlineExceeded, "an operation did not end");
    if (!there()) return Gone();
    return HasFailedRank() && world_.choose_(2) == 0 ? Gone() : Status();
  }

  MortalWorld& world_;
  MortalWorld::Group& group_;
  const int rank_;
  Topology topology_;
};

MortalWorld::MortalWorld(Simulation* world, int ranks, std::function<int(int)> choose,
                         Clock::duration slowness)
    : world_(world),
      choose_(std::move(choose)),
      slowness_(slowness),
      died_(static_cast<size_t>(ranks)) {
  std::vector<int> all;
  for (int person = 0; person < ranks; ++person) all.push_back(person);
  NewGroup(all);
}

MortalWorld::~MortalWorld() = default;

MortalWorld::Group* MortalWorld::NewGroup(const std::vector<int>& persons) {
  const size_t size = persons.size();
  groups_.push_back(std::make_unique<Group>());
  Group* const group = groups_.back().get();
  group->persons = persons;
  for (size_t rank = 0; rank < size; ++rank) group->notices.push_back(slowness_ * choose_(8) / 8);
  group->at.resize(size);
  group->inboxes.resize(size);
  group->woken.resize(size);
  group->round_at.resize(size);
  return group;
}

std::unique_ptr<Transport> MortalWorld::CreateTransport(int person) {
  return std::make_unique<MortalTransport>(this, groups_.front().get(), person);
}

void MortalWorld::Kill(int person) {
  died_[static_cast<size_t>(person)] = world_->Now();
  world_->Kill(person);
}

std::vector<std::vector<int>> MortalWorld::groups() const {
  std::vector<std::vector<int>> all;
  for (const auto& group : groups_) all.push_back(group->persons);
  return all;
}

}  // namespace tfmpi
