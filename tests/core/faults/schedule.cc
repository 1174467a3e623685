#include "tests/core/faults/schedule.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace tfmpi {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kStallTimeout{1500};
constexpr milliseconds kCollectiveTimeout{2000};
// The engine waits this much longer than the stall timeout for rank 0 (WithGrace), and the
// transport this long for the last collective (Finalize).
constexpr seconds kGrace{2};
constexpr seconds kFinalize{30};

class Schedule {
 public:
  explicit Schedule(const Plan& plan) : plan_(plan), random_(plan.seed * 2) {}

  ScheduleResult Run();

 private:
  SimulationOptions MakeSimulationOptions();
  EngineOptions MakeEngineOptions() const;
  void Script(int rank);
  bool Step(int rank, int step, Random* random);
  Fate OnMessage(int from, int to, std::string* bytes);
  void OnTurn(int rank);
  Status OnCollective(int rank);
  void Strike();
  void Judge(ScheduleResult* outcome) const;
  std::string JudgeEndings(const ScheduleResult& outcome) const;
  std::string JudgeRequests() const;
  bool IsFaultless() const { return !struck_; }

  const Plan plan_;
  Random random_;
  std::unique_ptr<SimulatedJob> job_;
  bool struck_ = false;
  TimePoint struck_at_;
  TimePoint ended_at_;  // of the last rank so far
  int victims_turns_ = 0;
  int messages_ = 0;
  int victims_collectives_ = 0;
  bool noticed_ = false;
};

SimulationOptions Schedule::MakeSimulationOptions() {
  SimulationOptions options;
  options.ranks = plan_.ranks;
  options.node = plan_.node;
  for (int rank = 0; plan_.per_node != 0 && rank < plan_.ranks; ++rank) {
    options.leaders.push_back(rank / plan_.per_node * plan_.per_node);
  }
  options.fan_out = plan_.fan_out;
  options.shared_word = plan_.shared_word;
  options.may_poll = plan_.may_poll;
  options.choose = [this](int ways) { return random_.Below(ways); };
  options.pause = [this](int) {
    // Polling takes time, and sometimes a rank does not get its core.
    const Clock::duration least = std::chrono::microseconds(plan_.may_poll ? 2 : 0);
    if (plan_.slow == 0 || !random_.OneIn(4)) return least;
    return least + random_.Micros(plan_.slow);
  };
  options.on_message = [this](int from, int to, std::string* bytes) {
    return OnMessage(from, to, bytes);
  };
  options.on_turn = [this](int rank) { OnTurn(rank); };
  options.on_collective = [this](int rank) { return OnCollective(rank); };
  return options;
}

EngineOptions Schedule::MakeEngineOptions() const {
  EngineOptions options;
  options.coordinator.fusion_threshold = 4096;
  options.coordinator.stall_warning = milliseconds(500);
  options.coordinator.stall_timeout = kStallTimeout;
  options.collective_timeout = kCollectiveTimeout;
  options.response_bypass = plan_.bypass;
  return options;
}

void Schedule::Strike() {
  if (!std::exchange(struck_, true)) struck_at_ = job_->world().Now();
}

Fate Schedule::OnMessage(int, int, std::string* bytes) {
  Fate fate;
  if (plan_.latency != 0) fate.latency = random_.Micros(plan_.latency);
  if (messages_++ != plan_.moment) return fate;
  switch (plan_.fault) {
    case Fault::kLostMessage:
      fate.copies = 0;
      break;
    case Fault::kDoubleMessage:
      fate.copies = 2;
      break;
    case Fault::kBadMessage:
      for (int i = 1 + random_.Below(3); i > 0 && !bytes->empty(); --i) {
        (*bytes)[static_cast<size_t>(random_.Below(static_cast<int>(bytes->size())))] ^=
            static_cast<char>(1 + random_.Below(255));
      }
      break;
    default:
      return fate;
  }
  Strike();
  return fate;
}

void Schedule::OnTurn(int rank) {
  Simulation& world = job_->world();
  if (plan_.fault == Fault::kNoticedDeath && struck_ && !noticed_ &&
      world.Now() >= struck_at_ + plan_.duration) {
    noticed_ = true;
    world.Break("rank " + std::to_string(plan_.victim) + " has died");
  }
  if (rank != plan_.victim || struck_ || victims_turns_++ < plan_.moment) return;
  if (plan_.fault == Fault::kSilentDeath || plan_.fault == Fault::kNoticedDeath) {
    Strike();
    world.Kill(rank);
  } else if (plan_.fault == Fault::kFreeze) {
    Strike();
    world.Freeze(rank, world.Now() + plan_.duration);
  }
}

Status Schedule::OnCollective(int rank) {
  if (plan_.fault != Fault::kBadCollective || rank != plan_.victim ||
      victims_collectives_++ != plan_.moment) {
    return Status();
  }
  Strike();
  return Status(Code::kUnavailable, "the wire is cut");
}

// Returns false if the script ends with an error.
bool Schedule::Step(int rank, int step, Random* random) {
  std::vector<Item> items = plan_.items;
  const bool deviates = rank == plan_.deviant && step == plan_.deviant_step;
  const size_t which = static_cast<size_t>(plan_.deviant_step) % items.size();
  if (deviates && plan_.deviation == Deviation::kOtherShape) items[which].more += 1;
  if (deviates && plan_.deviation == Deviation::kMissingOne) {
    items.erase(items.begin() + static_cast<std::ptrdiff_t>(which));
  }
  for (size_t i = items.size(); i > 1; --i) {
    std::swap(items[i - 1], items[static_cast<size_t>(random->Below(static_cast<int>(i)))]);
  }
  std::vector<Referee::Call*> calls;
  for (size_t i = 0; i < items.size();) {
    const int left = static_cast<int>(items.size() - i);
    const int count = random->OneIn(2) ? left : 1 + random->Below(left);
    const auto begin = items.begin() + static_cast<std::ptrdiff_t>(i);
    for (Referee::Call* call : job_->Ask(rank, std::vector<Item>(begin, begin + count))) {
      calls.push_back(call);
    }
    i += static_cast<size_t>(count);
  }
  if (deviates && plan_.deviation == Deviation::kWithdraws && !calls.empty()) {
    job_->Withdraw(rank,
                   *calls[static_cast<size_t>(random->Below(static_cast<int>(calls.size())))]);
  }
  if (deviates && plan_.deviation == Deviation::kLeaves) return false;
  return job_->Await(rank) || plan_.goes_on;
}

void Schedule::Script(int rank) {
  Random random(plan_.seed * 16 + static_cast<uint64_t>(rank));
  const bool ends_early = plan_.deviation == Deviation::kEndsEarly && rank == plan_.deviant;
  const int steps = ends_early ? plan_.deviant_step : plan_.steps;
  bool well = true;
  for (int step = 0; step < steps && well; ++step) well = Step(rank, step, &random);
  if (well) {
    job_->Join(rank);
  } else {
    job_->Leave(rank, "rank " + std::to_string(rank) + " is broken");
  }
  ended_at_ = job_->world().Now();
}

ScheduleResult Schedule::Run() {
  job_ = std::make_unique<SimulatedJob>(MakeSimulationOptions(), MakeEngineOptions());
  for (int rank = 0; rank < plan_.ranks; ++rank) {
    job_->AddScript(rank, [this, rank] { Script(rank); });
  }
  ScheduleResult outcome;
  outcome.wrong = job_->Run();
  outcome.struck = struck_;
  outcome.turns = job_->world().turns();
  if (struck_) outcome.seconds = std::chrono::duration<double>(ended_at_ - struck_at_).count();
  Judge(&outcome);
  return outcome;
}

void Schedule::Judge(ScheduleResult* outcome) const {
  for (int rank = 0; rank < plan_.ranks; ++rank) {
    const Status* const joined = job_->joined(rank);
    std::string ending = "well";
    if (job_->world().killed(rank)) {
      ending = "killed";
    } else if (joined == nullptr) {
      ending = job_->left(rank) ? "left" : "did not end";
      ++outcome->failed;
    } else if (!joined->ok()) {
      ending = joined->message();
      ++outcome->failed;
    }
    outcome->endings.push_back(ending);
  }
  if (outcome->wrong.empty()) outcome->wrong = JudgeRequests();
  if (outcome->wrong.empty()) outcome->wrong = JudgeEndings(*outcome);
}

// Requests that ended with ok have correct results; without fault and deviation, all ended with ok.
std::string Schedule::JudgeRequests() const {
  const bool all_alike = plan_.deviation == Deviation::kNone && IsFaultless();
  const std::string verdict = job_->referee().Verdict(all_alike);
  if (!verdict.empty()) return verdict;
  if (const std::string wrong = job_->trace().Check(); !wrong.empty()) return wrong;
  for (const Referee::Call& call : job_->referee().calls()) {
    const std::string who = "rank " + std::to_string(call.rank) + ", '" + call.item.name +
                            "' number " + std::to_string(call.number);
    if (!call.done && !job_->world().killed(call.rank)) return who + " has not ended";
    if (all_alike && !call.status.ok()) return who + ": " + call.status.message();
  }
  return "";
}

// Ranks end the same way, all with ok or each with an error, and in time.
std::string Schedule::JudgeEndings(const ScheduleResult& outcome) const {
  int living = 0;
  for (int rank = 0; rank < plan_.ranks; ++rank) living += !job_->world().killed(rank);
  if (outcome.failed != 0 && outcome.failed != living) return "some ranks fail, others do not know";
  const bool may_fail = struck_ || plan_.deviation == Deviation::kLeaves ||
                        (!plan_.goes_on && plan_.deviation != Deviation::kNone);
  if (outcome.failed != 0 && !may_fail) return "ranks fail for no reason";
  const double limit = std::chrono::duration<double>(kStallTimeout + kCollectiveTimeout + kGrace +
                                                     kFinalize + plan_.duration)
                           .count();
  if (outcome.seconds > limit) {
    return "the end came after " + std::to_string(outcome.seconds) + " s";
  }
  return "";
}

}  // namespace

ScheduleResult RunPlan(const Plan& plan) { return Schedule(plan).Run(); }

}  // namespace tfmpi
