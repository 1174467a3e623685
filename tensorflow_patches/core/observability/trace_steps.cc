#include "tensorflow_patches/core/observability/trace_steps.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tfmpi {

std::vector<Step> FindSteps(const Events& events) {
  std::vector<std::pair<int64_t, uint32_t>> submits;
  std::unordered_map<uint32_t, int64_t> response_end;
  for (const ThreadEvents& thread : events.threads) {
    for (const Event& event : thread.events) {
      if (event.stage == Stage::kSubmit && event.group == 1) {
        submits.emplace_back(event.start, event.name);
      } else if (event.stage == Stage::kResponse) {
        response_end[event.group] = event.end;
      }
    }
  }
  std::sort(submits.begin(), submits.end());
  std::vector<Step> steps;
  std::unordered_set<uint32_t> gradients, in_this_step;
  for (const auto& [time, name] : submits) {
    gradients.insert(name);
    if (steps.empty() || !in_this_step.insert(name).second) {
      in_this_step = {name};
      steps.push_back({time, time, time, time, time, 0});
    }
    steps.back().last_submit = time;
    const auto parts = events.parts.find(name);
    steps.back().gradients += parts != events.parts.end() ? parts->second.size() : 1;
  }
  if (steps.empty()) return steps;
  // The step of an event that begins at `time`: a step lasts until the next one's first submission.
  const auto step_of = [&steps](int64_t time) {
    auto next = std::upper_bound(steps.begin(), steps.end(), time,
                                 [](int64_t t, const Step& step) { return t < step.first_submit; });
    return next == steps.begin() ? steps.begin() : std::prev(next);
  };
  for (const ThreadEvents& thread : events.threads) {
    for (const Event& event : thread.events) {
      if (event.stage == Stage::kApply) {
        const auto step = step_of(event.start);
        step->end = std::max(step->end, event.end);
      } else if (event.stage == Stage::kWait && gradients.count(event.name) != 0) {
        const auto end = response_end.find(event.group);
        const auto step = step_of(event.start);
        if (end != response_end.end()) {
          step->last_response = std::max(step->last_response, end->second);
        }
      }
    }
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    Step& step = steps[i];
    step.end = std::max({step.end, step.last_submit, step.last_response});
    if (i + 1 < steps.size()) {  // overlapping steps are cut, so that spans nest
      step.end = std::min(step.end, steps[i + 1].first_submit);
      step.last_response = std::min(step.last_response, step.end);
      steps[i + 1].begin = step.end;
    }
  }
  return steps;
}

}  // namespace tfmpi
