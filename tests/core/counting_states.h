// States that an update reads and writes, which know what they ought to be.

#ifndef TFMPI_TESTS_CORE_COUNTING_STATES_H_
#define TFMPI_TESTS_CORE_COUNTING_STATES_H_

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/request.h"

namespace tfmpi {

// `states` states of `count` float64 elements. State 0 goes down by the average of the gradients,
// state s up by s + 1 for each update, and by a quarter of state s - 1: of what it was before.
class CountingStates : public StateAccess {
 public:
  CountingStates(size_t count, int states) {
    for (int s = 0; s < states; ++s) {
      before_.emplace_back();
      for (size_t i = 0; i < count; ++i) before_[s].push_back(Start(s, i));
    }
    after_.assign(states, std::vector<double>(count, -1));
  }

  static double Start(int state, size_t i) { return 1000. * state + static_cast<double>(i % 97); }

  std::vector<char*> Begin() override {
    ++begun_;
    updated_ = 0;
    std::vector<char*> memory;
    for (std::vector<double>& state : after_)
      memory.push_back(reinterpret_cast<char*>(state.data()));
    return memory;
  }

  void Update(size_t begin, size_t end, const void* average) override {
    EXPECT_LT(begin, end);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(average) % 64, 0u);
    EXPECT_EQ(begin * sizeof(double) % 64, 0u);
    updated_ += end - begin;
    for (size_t i = begin; i < end; ++i) {
      const double gradient = static_cast<const double*>(average)[i - begin];
      for (size_t s = 0; s < after_.size(); ++s) {
        EXPECT_EQ(after_[s][i], -1) << "element " << i << " was updated twice";
        after_[s][i] = Updated(s, before_[s][i], s > 0 ? before_[s - 1][i] : 0, gradient);
      }
    }
  }

  void End() override { ++ended_; }

  // As the next step's.
  void Next() {
    before_ = after_;
    for (std::vector<double>& state : after_) state.assign(state.size(), -1);
  }

  static double Updated(size_t state, double own, double other, double gradient) {
    return state == 0 ? own - gradient : own + static_cast<double>(state + 1) + other / 4;
  }

  const std::vector<std::vector<double>>& before() const { return before_; }
  const std::vector<std::vector<double>>& after() const { return after_; }
  size_t updated() const { return updated_; }  // elements, by this rank, in the last update
  int begun() const { return begun_; }
  int ended() const { return ended_; }

 private:
  std::vector<std::vector<double>> before_, after_;
  size_t updated_ = 0;
  int begun_ = 0;
  int ended_ = 0;
};

inline Request MakeUpdate(const std::string& name, const std::vector<double>& gradient,
                          CountingStates* states) {
  Request request;
  request.name = name;
  request.signature.kind = OpKind::kUpdate;
  request.signature.dtype = DataType::kFloat64;
  request.signature.shape = {static_cast<int64_t>(gradient.size())};
  request.signature.states = static_cast<int32_t>(states->after().size());
  request.input = gradient.data();
  request.states = states;
  return request;
}

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_COUNTING_STATES_H_
