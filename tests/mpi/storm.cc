#include "tests/mpi/storm.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/cpu/reduce.h"

namespace tfmpi {
namespace {

constexpr int kSteps = 300;
constexpr int kSamples = 840;  // per step; any number of ranks up to 8 divides them evenly
constexpr float kRate = 0.05f;
constexpr size_t kSizes[] = {10, 20000, 200000};

using Model = std::vector<std::vector<float>>;

Model Zeros() {
  Model model;
  for (const size_t size : kSizes) model.emplace_back(size);
  return model;
}

// A sample's target at a step; the mean over all samples is about 1.
float Target(int step, int sample) {
  return 1 + 0.5f * static_cast<float>(std::sin(step * 12.9898 + sample * 78.233));
}

// The mean over one rank's samples, of `size` ranks.
Model Gradient(const Model& model, int step, int rank, int size) {
  double targets = 0;
  int samples = 0;
  for (int sample = rank; sample < kSamples; sample += size, ++samples) {
    targets += Target(step, sample);
  }
  const auto mean = static_cast<float>(targets / samples);
  Model gradient = model;
  for (std::vector<float>& part : gradient) {
    for (float& element : part) element -= mean;
  }
  return gradient;
}

void Update(const Model& gradient, Model* model) {
  for (size_t i = 0; i < model->size(); ++i) {
    for (size_t j = 0; j < (*model)[i].size(); ++j) (*model)[i][j] -= kRate * gradient[i][j];
  }
}

// The step in which each rank is killed, by rank; at least one rank survives.
std::map<int, int> Fates(uint64_t seed, int ranks) {
  std::mt19937_64 random(seed);
  std::vector<int> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
  std::shuffle(all.begin(), all.end(), random);
  std::map<int, int> fates;
  for (int i = 0; i + 1 < ranks; ++i) fates[all[static_cast<size_t>(i)]] = 10 + random() % 240;
  return fates;
}

void DieSoon(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto wait = std::chrono::microseconds(random() % 20000);
  std::thread([wait] {
    std::this_thread::sleep_for(wait);
    kill(getpid(), SIGKILL);
  }).detach();
}

Status Average(Engine& engine, Model* gradient) {
  std::vector<std::future<Status>> endings;
  for (size_t i = 0; i < gradient->size(); ++i) {
    std::vector<float>& part = (*gradient)[i];
    auto promise = std::make_shared<std::promise<Status>>();
    endings.push_back(promise->get_future());
    Request request;
    request.name = "w" + std::to_string(i);
    request.signature.shape = {static_cast<int64_t>(part.size())};
    request.input = request.output = part.data();
    request.done = [promise](const Status& status) { promise->set_value(status); };
    engine.Submit(std::move(request));
  }
  Status status;
  for (std::future<Status>& ending : endings) {
    const Status one = ending.get();
    if (!one.ok()) status = one;
  }
  return status;
}

double Difference(const Model& a, const Model& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) {
      most = std::max(most, std::abs(static_cast<double>(a[i][j]) - static_cast<double>(b[i][j])));
    }
  }
  return most;
}

}  // namespace

void TrainInStorm(Engine& engine, uint64_t seed) {
  const int first_rank = engine.topology().rank, ranks = engine.topology().size;
  const std::map<int, int> fates = Fates(seed, ranks);
  const auto fate = fates.find(first_rank);
  Model model = Zeros(), undisturbed = Zeros();
  uint64_t digest = 0;
  for (int step = 0; step < kSteps; ++step) {
    if (fate != fates.end() && fate->second == step) {
      DieSoon(seed * 100 + static_cast<uint64_t>(first_rank));
    }
    const Topology& topology = engine.topology();
    Model gradient = Gradient(model, step, topology.rank, topology.size);
    const Status status = Average(engine, &gradient);
    if (!status.ok()) {
      std::fprintf(stderr, "FAILED: %s\n", status.message().c_str());
      std::fflush(nullptr);
      std::_Exit(1);
    }
    for (const std::vector<float>& part : gradient) {
      digest = digest * 31 + Fingerprint(part.data(), part.size() * sizeof(float));
    }
    Update(gradient, &model);
    Update(Gradient(undisturbed, step, 0, 1), &undisturbed);
  }
  const Status status = engine.Join();
  std::printf(
      "RESULT {\"rank\": %d, \"size\": %d, \"deaths\": %llu, \"digest\": \"%016llx\", "
      "\"difference\": %.9f, \"model\": %.6f, \"joined\": \"%s\"}\n",
      engine.topology().rank, engine.topology().size,
      static_cast<unsigned long long>(engine.published().generation()),
      static_cast<unsigned long long>(digest), Difference(model, undisturbed),
      static_cast<double>(model[0][0]), status.message().c_str());
}

}  // namespace tfmpi
