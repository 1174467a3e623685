// Steps as a script executes them: every rank submits the same requests again and again.

#ifndef TFMPI_TESTS_CORE_AGREEMENT_STEPS_H_
#define TFMPI_TESTS_CORE_AGREEMENT_STEPS_H_

#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/support/job.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {

// Submits the requests together, as a step does.
inline std::vector<Ending> SubmitAll(Engine& engine, std::vector<Request> requests) {
  std::vector<Ending> endings;
  for (Request& request : requests) {
    auto promise = std::make_shared<std::promise<Status>>();
    endings.push_back(promise->get_future());
    request.done = [promise](const Status& status) { promise->set_value(status); };
  }
  engine.Submit(std::move(requests), nullptr);
  return endings;
}

// Submits one rank's requests and checks the results.
inline void Average(Engine& engine, int rank, int ranks, const std::vector<Job>& jobs) {
  std::vector<std::vector<char>> data;
  std::vector<Request> requests;
  for (const Job& job : jobs) {
    data.push_back(MakeInput(job, rank));
    requests.push_back(MakeRequest(job, data.back().data(), data.back().data()));
  }
  std::vector<Ending> endings = SubmitAll(engine, std::move(requests));
  ASSERT_EQ(AwaitAll(endings), "");
  for (size_t i = 0; i < jobs.size(); ++i) {
    ASSERT_EQ(CheckOutput(jobs[i], AllRanks(ranks), data[i].data()), "") << jobs[i].name;
  }
}

inline constexpr int kRepeats = 6;

inline void RepeatSteps(Ranks& ranks, int times = kRepeats) {
  ranks.Each([&](int rank, Engine& engine) {
    for (int step = 0; step < times; ++step) {
      Average(engine, rank, ranks.size(), {{"a", DataType::kFloat32, ReduceOp::kAverage, 3, step}});
    }
  });
}

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_AGREEMENT_STEPS_H_
