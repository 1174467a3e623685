#include "tests/core/explore/explorer.h"

#include <unordered_set>
#include <utility>

namespace tfmpi {
namespace {

struct Choice {
  int way;
  int ways;
};

// One run: `path` contains its choices.
class Run {
 public:
  Run(const Scenario& scenario, std::vector<Choice>* path, std::unordered_set<uint64_t>* states)
      : scenario_(scenario), path_(path), states_(states), branches_(scenario.from_the_start) {}

  std::string ToItsEnd() {
    SimulationOptions options = scenario_.simulation;
    options.fingerprints = true;
    options.choose = [this](int ways) { return Choose(ways); };
    job_ = std::make_unique<SimulatedJob>(options, scenario_.engine);
    scenario_.prepare(job_.get(), [this] { branches_ = true; });
    std::string wrong = job_->Run();
    // A wrong sum does not show in the state of engines, so every run is checked for it.
    if (wrong.empty()) wrong = job_->referee().Verdict(false);
    if (!wrong.empty() || job_->world().abandoned()) return wrong;
    wrong = job_->trace().Check();
    return wrong.empty() ? scenario_.judge(*job_) : wrong;
  }

  bool ended() const { return !job_->world().abandoned(); }
  uint64_t turns() const { return job_->world().turns(); }

 private:
  int Choose(int ways) {
    if (!branches_) return 0;
    if (next_ < path_->size()) return (*path_)[next_++].way;
    if (states_ != nullptr && !states_->insert(job_->world().Fingerprint()).second) {
      job_->world().Abandon();
      return 0;
    }
    ++next_;
    path_->push_back({0, ways});
    return 0;
  }

  const Scenario& scenario_;
  std::vector<Choice>* const path_;
  std::unordered_set<uint64_t>* const states_;
  bool branches_;
  size_t next_ = 0;
  std::unique_ptr<SimulatedJob> job_;
};

}  // namespace

Exploration Explore(const Scenario& scenario, uint64_t most_states) {
  Exploration exploration;
  std::unordered_set<uint64_t> states;
  std::vector<Choice> path;
  while (states.size() < most_states) {
    Run run(scenario, &path, &states);
    exploration.wrong = run.ToItsEnd();
    ++exploration.runs;
    exploration.to_the_end += run.ended();
    exploration.turns += run.turns();
    exploration.states = states.size();
    if (!exploration.wrong.empty()) {
      for (const Choice& choice : path) exploration.ways.push_back(choice.way);
      return exploration;
    }
    while (!path.empty() && path.back().way + 1 == path.back().ways) path.pop_back();
    if (path.empty()) {
      exploration.complete = true;
      return exploration;
    }
    ++path.back().way;
  }
  return exploration;
}

std::string Replay(const Scenario& scenario, const std::vector<int>& ways) {
  std::vector<Choice> path;
  for (const int way : ways) path.push_back({way, way + 1});
  return Run(scenario, &path, nullptr).ToItsEnd();
}

}  // namespace tfmpi
