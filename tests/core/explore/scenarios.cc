#include "tests/core/explore/scenarios.h"

#include <algorithm>
#include <utility>

namespace tfmpi {
namespace {

using Script = std::function<void(SimulatedJob* job, int rank)>;
using Judge = std::function<std::string(const SimulatedJob& job)>;

// After this many equal steps the ranks vote.
constexpr int kStepsUntilVotes = 4;

Item Sum(const std::string& name, int more = 0) {
  Item item;
  item.name = name;
  item.more = more;
  return item;
}

std::string Who(const Referee::Call& call) {
  return "rank " + std::to_string(call.rank) + "'s '" + call.item.name + "' number " +
         std::to_string(call.number);
}

// Checks every request's status against `expected`, and that every rank has joined with ok.
Judge Each(bool alike, const std::function<std::vector<Code>(const Referee::Call&)>& expected) {
  return [alike, expected](const SimulatedJob& job) -> std::string {
    const std::string verdict = job.referee().Verdict(alike);
    if (!verdict.empty()) return verdict;
    for (const Referee::Call& call : job.referee().calls()) {
      const std::vector<Code> codes = expected(call);
      if (!call.done) return Who(call) + " has not ended";
      if (std::find(codes.begin(), codes.end(), call.status.code()) == codes.end()) {
        return Who(call) + " has ended so: " + (call.status.ok() ? "well" : call.status.message());
      }
    }
    for (int rank = 0; rank < job.ranks(); ++rank) {
      if (job.left(rank)) continue;
      const Status* const status = job.joined(rank);
      if (status == nullptr) return "rank " + std::to_string(rank) + " has not joined";
      if (!status->ok()) return "rank " + std::to_string(rank) + " joined so: " + status->message();
    }
    return "";
  };
}

Judge AllRanksOk(bool alike = true) {
  return Each(alike, [](const Referee::Call&) { return std::vector<Code>{Code::kOk}; });
}

Scenario Make(const std::string& name, int ranks, const Script& script, const Judge& judge) {
  Scenario scenario;
  scenario.name = name;
  scenario.simulation.ranks = ranks;
  scenario.engine.coordinator.stall_warning = std::chrono::seconds(0);
  scenario.engine.coordinator.stall_timeout = std::chrono::seconds(2);
  scenario.engine.collective_timeout = std::chrono::seconds(2);
  scenario.prepare = [script](SimulatedJob* job, const std::function<void()>&) {
    for (int rank = 0; rank < job->ranks(); ++rank) {
      job->AddScript(rank, [job, rank, script] { script(job, rank); });
    }
  };
  scenario.judge = judge;
  return scenario;
}

// After equal steps of all ranks, until they vote for the next one.
Scenario AfterSteps(const std::string& name, int ranks, const std::vector<Item>& step,
                    const Script& script, const Judge& judge) {
  Scenario scenario = Make(name, ranks, nullptr, judge);
  scenario.from_the_start = false;
  scenario.prepare = [step, script](SimulatedJob* job, const std::function<void()>& begin) {
    const auto ready = std::make_shared<int>(0);
    for (int rank = 0; rank < job->ranks(); ++rank) {
      job->AddScript(rank, [=] {
        for (int i = 0; i < kStepsUntilVotes; ++i) {
          job->Ask(rank, step);
          job->Await(rank);
        }
        ++*ready;
        job->world().WaitUntil([=] { return *ready == job->ranks(); });
        begin();
        script(job, rank);
      });
    }
  };
  return scenario;
}

// Submits the items one after another, in an order that `choose` selects.
void AskInAnyOrder(SimulatedJob* job, int rank, std::vector<Item> items) {
  while (!items.empty()) {
    const int next = job->world().Choose(static_cast<int>(items.size()));
    job->Ask(rank, {items[next]});
    items.erase(items.begin() + next);
  }
}

// Rank 0 has only one order, because names are interchangeable.
Scenario Announcements(int ranks, const std::vector<Item>& items) {
  return Make(
      "announcements in any order: " + std::to_string(ranks) + " ranks, " +
          std::to_string(items.size()) + " tensors",
      ranks,
      [items](SimulatedJob* job, int rank) {
        if (rank == 0) {
          for (const Item& item : items) job->Ask(rank, {item});
        } else {
          AskInAnyOrder(job, rank, items);
        }
        job->Await(rank);
        job->Join(rank);
      },
      AllRanksOk());
}

// The last rank's script may end at any moment; from then on the others average without it.
Scenario Joins(int ranks, const std::vector<Item>& items) {
  return Make(
      "one rank ends early: " + std::to_string(ranks) + " ranks", ranks,
      [items](SimulatedJob* job, int rank) {
        const bool last = rank == job->ranks() - 1;
        for (size_t i = 0; i < items.size(); ++i) {
          if (last && i > 0) break;
          job->Ask(rank, {items[i]});
        }
        job->Await(rank);
        job->Join(rank);
      },
      AllRanksOk());
}

// Rank 1 withdraws its request, and submits it again if that was granted.
Scenario Withdrawals(int ranks, const std::vector<Item>& others) {
  return Make(
      "a request is withdrawn: " + std::to_string(ranks) + " ranks", ranks,
      [others](SimulatedJob* job, int rank) {
        const Referee::Call* const call = job->Ask(rank, {Sum("a")}).front();
        if (rank == 1) job->Withdraw(rank, *call);
        if (!others.empty()) job->Ask(rank, others);
        job->Await(rank);
        if (call->status.code() == Code::kCancelled) job->Ask(rank, {Sum("a")});
        job->Await(rank);
        job->Join(rank);
      },
      Each(false, [](const Referee::Call& call) {
        const bool taken_back = call.rank == 1 && call.number == 0 && call.item.name == "a";
        return taken_back ? std::vector<Code>{Code::kOk, Code::kCancelled}
                          : std::vector<Code>{Code::kOk};
      }));
}

// The last rank has another shape: an error on every rank, after which everything continues.
Scenario Errors(int ranks, const std::vector<Item>& others) {
  return Make(
      "signatures differ: " + std::to_string(ranks) + " ranks", ranks,
      [others](SimulatedJob* job, int rank) {
        job->Ask(rank, {Sum("a", rank == job->ranks() - 1 ? 3 : 0)});
        if (!others.empty()) job->Ask(rank, others);
        job->Await(rank);
        job->Ask(rank, {Sum("a")});
        job->Await(rank);
        job->Join(rank);
      },
      Each(true, [](const Referee::Call& call) {
        const bool differs = call.item.name == "a" && call.number == 0;
        return std::vector<Code>{differs ? Code::kInvalidArgument : Code::kOk};
      }));
}

// A rank stops with an error: every other one is told, whatever it waits for.
Scenario Leaves(int ranks, int leaving) {
  return Make(
      "rank " + std::to_string(leaving) + " stops: " + std::to_string(ranks) + " ranks", ranks,
      [leaving](SimulatedJob* job, int rank) {
        job->Ask(rank, {Sum("a")});
        if (rank != leaving) job->Ask(rank, {Sum("b")});
        if (rank != leaving || job->world().Choose(2) == 0) job->Await(rank);
        job->Leave(rank, "rank " + std::to_string(rank) + " is broken");
      },
      [leaving](const SimulatedJob& job) -> std::string {
        for (const Referee::Call& call : job.referee().calls()) {
          if (!call.done) return Who(call) + " has not ended";
          if (call.rank == leaving || (call.item.name == "a" && call.status.ok())) continue;
          const std::string why = "rank " + std::to_string(leaving) + " is broken";
          if (call.status.message().find(why) == std::string::npos) {
            return Who(call) + " has ended so: " + call.status.message();
          }
        }
        return job.referee().Verdict(false);
      });
}

// One rank never submits: after the stall timeout all others are told, and everything continues.
Scenario Stalls(int ranks) {
  return Make(
      "a rank does not ask: " + std::to_string(ranks) + " ranks", ranks,
      [](SimulatedJob* job, int rank) {
        if (rank != 1) job->Ask(rank, {Sum("a")});
        job->Ask(rank, {Sum("b")});
        job->Await(rank);
        job->Ask(rank, {Sum("c")});
        job->Await(rank);
        job->Join(rank);
      },
      Each(true, [](const Referee::Call& call) {
        if (call.item.name == "b") return std::vector<Code>{Code::kOk};
        if (call.item.name == "a") return std::vector<Code>{Code::kDeadlineExceeded};
        return std::vector<Code>{Code::kOk, Code::kDeadlineExceeded};  // rank 1 asked early
      }));
}

// All ranks submit the predicted step, together or in any order.
Scenario Votes(int ranks, const std::vector<Item>& step, int time_skips, bool in_any_order) {
  Scenario scenario = AfterSteps(
      "votes: " + std::to_string(ranks) + " ranks, " + std::to_string(step.size()) +
          " tensors at once" + (in_any_order ? ", in any order" : "") +
          (time_skips != 0 ? ", patience ends at any moment" : ""),
      ranks, step,
      [=](SimulatedJob* job, int rank) {
        if (in_any_order) {
          AskInAnyOrder(job, rank, step);
        } else {
          job->Ask(rank, step);
        }
        job->Await(rank);
        job->Join(rank);
      },
      AllRanksOk());
  scenario.simulation.time_skips = time_skips;
  return scenario;
}

// Ranks vote for the prediction, while the last one first does something else.
Scenario VotesAndMore(const std::string& what, int ranks, const Script& deviation,
                      const Judge& judge) {
  return AfterSteps(
      "votes, and " + what + ": " + std::to_string(ranks) + " ranks", ranks, {Sum("a")},
      [=](SimulatedJob* job, int rank) {
        deviation(job, rank);
        job->Await(rank);
        job->Join(rank);
      },
      judge);
}

Scenario VotesAndAnother(int ranks) {
  return VotesAndMore(
      "one more name", ranks,
      [](SimulatedJob* job, int rank) {
        if (rank == job->ranks() - 1) {
          AskInAnyOrder(job, rank, {Sum("a"), Sum("x")});
        } else {
          job->Ask(rank, {Sum("a")});
          job->Ask(rank, {Sum("x")});
        }
      },
      AllRanksOk());
}

// The others announce a name after rank 0 has voted for the next step, which they may also have.
Scenario VotesAndALateName(int ranks) {
  return VotesAndMore(
      "a name that comes late", ranks,
      [](SimulatedJob* job, int rank) {
        Item again = Sum("a");
        again.twice = true;
        if (rank == 0) job->Ask(rank, {Sum("x")});
        job->Ask(rank, {again});
        if (rank != 0) job->Ask(rank, {Sum("x")});
      },
      AllRanksOk());
}

Scenario VotesAndAWithdrawal(int ranks) {
  return VotesAndMore(
      "a withdrawal", ranks,
      [](SimulatedJob* job, int rank) {
        const Referee::Call* const call = job->Ask(rank, {Sum("a")}).front();
        if (rank != job->ranks() - 1) return;
        job->Withdraw(rank, *call);
        job->Await(rank);
        if (!call->status.ok()) job->Ask(rank, {Sum("a")});
      },
      Each(false, [](const Referee::Call& call) {
        return std::vector<Code>{Code::kOk,
                                 call.number == kStepsUntilVotes ? Code::kCancelled : Code::kOk};
      }));
}

Scenario VotesAndAnEnd(int ranks) {
  return VotesAndMore(
      "an end", ranks,
      [](SimulatedJob* job, int rank) {
        if (rank != job->ranks() - 1) job->Ask(rank, {Sum("a")});
      },
      AllRanksOk());
}

Scenario VotesAndAnError(int ranks) {
  return VotesAndMore(
      "an error", ranks,
      [](SimulatedJob* job, int rank) {
        job->Ask(rank, {Sum("a", rank == job->ranks() - 1 ? 2 : 0)});
        job->Await(rank);
        job->Ask(rank, {Sum("a")});
      },
      Each(true, [](const Referee::Call& call) {
        return std::vector<Code>{call.number == kStepsUntilVotes ? Code::kInvalidArgument
                                                                 : Code::kOk};
      }));
}

}  // namespace

std::vector<Scenario> QuickScenarios() {
  return {Announcements(2, {Sum("a"), Sum("b")}),
          Joins(2, {Sum("a"), Sum("b")}),
          Withdrawals(2, {}),
          Errors(2, {Sum("b")}),
          Leaves(2, 0),
          Leaves(2, 1),
          Stalls(2),
          Votes(2, {Sum("a")}, 0, false),
          VotesAndAWithdrawal(2),
          VotesAndAnEnd(2),
          VotesAndAnError(2)};
}

std::vector<Scenario> MutantScenarios() {
  std::vector<Scenario> scenarios = QuickScenarios();
  scenarios.push_back(VotesAndALateName(2));
  scenarios.push_back(VotesAndAnother(2));
  scenarios.push_back(Votes(2, {Sum("a"), Sum("b")}, 0, true));
  return scenarios;
}

std::vector<Scenario> FullScenarios() {
  return {Announcements(2, {Sum("a"), Sum("b"), Sum("c")}),
          Announcements(3, {Sum("a")}),
          Announcements(3, {Sum("a"), Sum("b")}),
          Announcements(3, {Sum("a"), Sum("b"), Sum("c")}),
          Joins(3, {Sum("a"), Sum("b")}),
          Withdrawals(2, {Sum("b")}),
          Withdrawals(3, {}),
          Errors(3, {}),
          Leaves(3, 0),
          Leaves(3, 1),
          Stalls(3),
          Votes(2, {Sum("a"), Sum("b")}, 0, true),
          Votes(2, {Sum("a"), Sum("b"), Sum("c")}, 0, true),
          Votes(2, {Sum("a")}, 2, false),
          VotesAndAnother(2),
          VotesAndALateName(2),
          Votes(3, {Sum("a")}, 0, false),
          VotesAndAnother(3),
          VotesAndAWithdrawal(3),
          VotesAndAnEnd(3),
          VotesAndAnError(3)};
}

}  // namespace tfmpi
