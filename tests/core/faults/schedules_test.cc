// SCHEDULES schedules without a hang, a wrong sum, or a rank that is not told. Built with MUTANT
// the product has a bug, with which one of them must go wrong.

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/faults/schedule.h"
#include "tests/core/faults/seeds.h"

namespace tfmpi {
namespace {

// The engines run on one thread, so ThreadSanitizer, which does not support such stacks, is not
// needed.
#if !defined(__SANITIZE_THREAD__)

// Ranks that compute after the last step for longer than a waiting rank tolerates silence. In a
// tree rank 1, which ends first, forwards for rank 2.
std::string AfterALongEnd(bool tree) {
  constexpr std::chrono::seconds kWork[] = {std::chrono::seconds(200), std::chrono::seconds(0),
                                            std::chrono::seconds(100)};
  SimulationOptions simulation;
  simulation.choose = [](int) { return 0; };
  if (tree) {
    simulation.leaders = {0, 1, 2};
    // Most of the time a heartbeat would be in transit, if any were still sent.
    simulation.on_message = [](int, int, std::string*) {
      Fate fate;
      fate.latency = std::chrono::milliseconds(900);
      return fate;
    };
  }
  EngineOptions engine;
  engine.coordinator.stall_timeout = std::chrono::milliseconds(tree ? 6000 : 1500);
  SimulatedJob job(simulation, engine);
  for (int rank = 0; rank < job.ranks(); ++rank) {
    job.AddScript(rank, [&job, rank, kWork] {
      job.world().WaitUntil([] { return false; }, job.world().Now() + kWork[rank]);
      job.Join(rank);
    });
  }
  const std::string wrong = job.Run();
  if (!wrong.empty()) return wrong;
  for (int rank = 0; rank < job.ranks(); ++rank) {
    if (!job.joined(rank)->ok()) return job.joined(rank)->message();
  }
  return job.world().HasLeftMessages() ? "a message is left when MPI ends" : "";
}

// Rank 0 fails because a message of rank 1 is damaged. The others, which wait for its answer, are
// told, in a tree rank 2 by rank 1: they need not wait until rank 0 has been silent for too long.
std::string AfterAnErrorOfRank0(bool tree) {
  constexpr std::chrono::seconds kSilence{100};
  SimulationOptions simulation;
  simulation.choose = [](int) { return 0; };
  if (tree) simulation.leaders = {0, 1, 2};
  bool damaged = false;
  simulation.on_message = [&damaged](int from, int, std::string* bytes) {
    if (from == 1 && !std::exchange(damaged, true)) bytes->back() ^= 1;
    return Fate();
  };
  EngineOptions engine;
  engine.coordinator.stall_timeout = kSilence;
  SimulatedJob job(simulation, engine);
  std::vector<TimePoint> ends(job.ranks());
  for (int rank = 0; rank < job.ranks(); ++rank) {
    job.AddScript(rank, [&job, &ends, rank] {
      Item item;
      item.name = "w";
      job.Ask(rank, {item});
      if (!job.Await(rank)) ends[rank] = job.world().Now();
      job.Leave(rank, "an error");
    });
  }
  const TimePoint begun = job.world().Now();
  const std::string wrong = job.Run();
  if (!wrong.empty()) return wrong;
  for (int rank = 0; rank < job.ranks(); ++rank) {
    const std::string who = "rank " + std::to_string(rank);
    if (ends[rank] == TimePoint()) return who + " got a result";
    if (ends[rank] - begun > kSilence / 2) return who + " was not told";
  }
  return "";
}

#if defined(MUTANT)

TEST(MutantTest, IsFound) {
  for (const bool tree : {false, true}) {
    for (const auto& run : {AfterALongEnd, AfterAnErrorOfRank0}) {
      const std::string wrong = run(tree);
      if (wrong.empty()) continue;
      std::printf("found: %s\n", wrong.c_str());
      return;
    }
  }
  for (uint64_t seed = 0; seed < SCHEDULES; ++seed) {
    const Plan plan = MakePlan(seed);
    const std::string wrong = RunPlan(plan).wrong;
    if (wrong.empty()) continue;
    std::printf("found: %s (%s)\n", wrong.c_str(), plan.Describe().c_str());
    return;
  }
  for (uint64_t seed = 0; seed < SCHEDULES; ++seed) {
    const Plan plan = MakeTreePlan(seed);
    const std::string wrong = RunPlan(plan).wrong;
    if (wrong.empty()) continue;
    std::printf("found: %s (%s)\n", wrong.c_str(), plan.Describe().c_str());
    return;
  }
  FAIL() << "no schedule has found it";
}

#else

TEST(SchedulesTest, EveryRankEndsRightlyOrWithAnError) { EXPECT_EQ(RunSeeds(0, SCHEDULES), ""); }

TEST(SchedulesTest, SoDoTheyOverATreeOfNodes) {
  EXPECT_EQ(RunSeeds(0, SCHEDULES, &MakeTreePlan), "");
}

TEST(SchedulesTest, WhoComputesAfterItsLastStepIsWaitedFor) {
  EXPECT_EQ(AfterALongEnd(false), "");
  EXPECT_EQ(AfterALongEnd(true), "");
}

TEST(SchedulesTest, WhoFailsTellsAllThatWaitForIt) {
  EXPECT_EQ(AfterAnErrorOfRank0(false), "");
  EXPECT_EQ(AfterAnErrorOfRank0(true), "");
}

// What ranks print, by rank, while they wait for one that submits the same request a minute later,
// or that is frozen in that minute.
std::vector<std::vector<std::string> > WhileWaiting(int late, bool frozen) {
  std::vector<std::vector<std::string> > lines(3);
  std::unique_ptr<SimulatedJob> job;
  bool begun = false;
  SimulationOptions simulation;
  simulation.choose = [](int) { return 0; };
  simulation.on_turn = [&](int rank) {
    if (!frozen || rank != late || std::exchange(begun, true)) return;
    job->world().Freeze(rank, job->world().Now() + std::chrono::seconds(60));
  };
  EngineOptions options;
  options.coordinator.stall_warning = std::chrono::seconds(10);
  options.coordinator.deadlock_timeout = Clock::duration::zero();
  options.log = [&](const std::string& line) { lines[job->world().rank()].push_back(line); };
  job = std::make_unique<SimulatedJob>(simulation, options);
  for (int rank = 0; rank < job->ranks(); ++rank) {
    job->AddScript(rank, [&job, rank, late, frozen] {
      Simulation& world = job->world();
      if (rank == late && !frozen) {
        world.WaitUntil([] { return false; }, world.Now() + std::chrono::seconds(60));
      }
      Item item;
      item.name = "w";
      job->Ask(rank, {item});
      EXPECT_TRUE(job->Await(rank));
      job->Join(rank);
    });
  }
  EXPECT_EQ(job->Run(), "");
  return lines;
}

// Rank 0 reports who is missing; if it is rank 0, rank 1 does.
TEST(SchedulesTest, ARank0ThatStandsStillIsReported) {
  for (const auto& [late, frozen] : {std::pair(2, true), {2, false}, {0, false}, {0, true}}) {
    const auto lines = WhileWaiting(late, frozen);
    const bool silent = late == 0 && frozen;
    for (int rank = 0; rank < 3; ++rank) {
      int reports = 0;
      for (const std::string& line : lines[rank]) {
        const bool of_silence = line.find("rank 0 has not answered about 'w'") == 0;
        reports += of_silence || line.find("for rank " + std::to_string(late)) != std::string::npos;
        EXPECT_EQ(of_silence, silent && rank == 1) << line;
      }
      EXPECT_EQ(reports > 0, rank == (silent ? 1 : 0)) << late << frozen << " rank " << rank;
      EXPECT_LE(reports, 5);  // in a minute
    }
  }
}

// Seeds that once failed: at the end of its script a rank waited for one that had died silently.
TEST(SchedulesTest, WhatHasGoneWrongDoesNotAgain) {
  for (const uint64_t seed : {6421, 7353, 7577, 8090, 8835}) {
    EXPECT_EQ(RunPlan(MakePlan(seed)).wrong, "") << seed;
  }
}

// The same seed gives the same run, to the last turn.
TEST(SchedulesTest, ASeedCanBePlayedAgain) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const ScheduleResult one = RunPlan(MakePlan(seed)), other = RunPlan(MakePlan(seed));
    EXPECT_EQ(one.turns, other.turns) << seed;
    EXPECT_EQ(one.endings, other.endings) << seed;
    EXPECT_EQ(one.seconds, other.seconds) << seed;
  }
}

#endif  // MUTANT
#endif  // __SANITIZE_THREAD__

}  // namespace
}  // namespace tfmpi
