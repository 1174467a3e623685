// Many tensors that an op averages together: which share a request, what the results are, who
// disagrees.

#include "tensorflow_patches/core/reduction/average_plan.h"

#include <algorithm>
#include <cmath>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/base/sizes.h"
#include "tensorflow_patches/core/cpu/reduce.h"
#include "tests/core/support/job.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

constexpr size_t kLargeElements = kAloneBytes / sizeof(float);

class AveragePlanTest : public TimedTest {
 protected:
  // Small and large tensors of several types, one empty; `seed` by step.
  static std::vector<Job> SomeJobs(int seed) {
    std::vector<Job> jobs;
    const DataType types[] = {DataType::kFloat32, DataType::kFloat16, DataType::kFloat32,
                              DataType::kFloat64, DataType::kComplex64};
    for (size_t i = 0; i < 40; ++i) {
      const size_t count = i == 7 ? 0 : i % 13 == 5 ? kLargeElements : 3 * i + 1;
      jobs.push_back({"t" + std::to_string(i), types[i % 5], ReduceOp::kAverage, count,
                      seed + static_cast<int>(i)});
    }
    return jobs;
  }

  static AveragePlan PlanFor(const std::vector<Job>& jobs, size_t threshold) {
    std::vector<std::string> names;
    std::vector<DataType> dtypes;
    std::vector<Shape> shapes;
    for (const Job& job : jobs) {
      names.push_back(job.name);
      dtypes.push_back(job.type);
      shapes.push_back({static_cast<int64_t>(job.count)});
    }
    return AveragePlan(names, dtypes, shapes, threshold);
  }

  struct Data {
    std::vector<std::vector<char>> tensors;
    std::vector<Request::Buffers> buffers;
    std::vector<std::vector<char>> together;  // by entry: where the results of several go
    std::vector<void*> outputs;
  };

  // Entries of several tensors get an output if `together`, as far as that can be.
  static void AddOutputs(const AveragePlan& plan, bool together, Data* data) {
    for (const AveragePlan::Entry& entry : plan.entries()) {
      const Signature& signature = entry.signature;
      const bool one = together && entry.tensors.size() > 1 && IsWireForm(signature.dtype);
      data->together.emplace_back(one ? Bytes(signature) : 0, '\x7f');
      data->outputs.push_back(one ? data->together.back().data() : nullptr);
      for (size_t i : entry.tensors) {
        if (one) data->buffers[i].output = nullptr;
      }
    }
  }

  // What lies together back to where each tensor came from.
  static void TakeApart(const AveragePlan& plan, Data* data) {
    for (size_t e = 0; e < plan.entries().size(); ++e) {
      if (data->outputs[e] == nullptr) continue;
      const AveragePlan::Entry& entry = plan.entries()[e];
      for (size_t k = 0; k < entry.tensors.size(); ++k) {
        const size_t start = entry.starts[k] * SizeOf(entry.signature.dtype);
        EXPECT_EQ(start % 64, 0u);
        std::vector<char>& tensor = data->tensors[entry.tensors[k]];
        std::copy_n(data->together[e].data() + start, tensor.size(), tensor.data());
      }
    }
  }

  static std::vector<Request> Requests(const AveragePlan& plan,
                                       const std::vector<Request::Buffers>& buffers, double scale) {
    return plan.Requests(buffers, std::vector<void*>(plan.entries().size()), {scale, nullptr},
                         false);
  }

  // In place.
  static Data DataFor(const std::vector<Job>& jobs, int rank) {
    Data data;
    for (const Job& job : jobs) data.tensors.push_back(MakeInput(job, rank));
    for (std::vector<char>& tensor : data.tensors) {
      data.buffers.push_back({tensor.data(), tensor.data()});
    }
    return data;
  }
};

TEST_F(AveragePlanTest, SmallTensorsOfOneTypeShareARequestUpToTheThreshold) {
  const std::vector<Job> jobs = SomeJobs(0);
  Data data = DataFor(jobs, 0);
  size_t tensors = 0, alone = 0;
  for (const Request& request : Requests(PlanFor(jobs, 1000), data.buffers, 1)) {
    tensors += std::max<size_t>(1, request.parts.size());
    if (request.signature.parts == nullptr) {
      ++alone;
      continue;
    }
    EXPECT_EQ(request.parts.size(), request.signature.parts->names.size());
    EXPECT_LE(NumElements(request.signature.shape) * WireElements(request.signature.dtype) *
                  SizeOf(WireType(request.signature.dtype)),
              1000u);
  }
  EXPECT_EQ(tensors, jobs.size());
  EXPECT_GE(alone, 3u) << "the large ones";
  EXPECT_EQ(Requests(PlanFor(jobs, 0), data.buffers, 1).size(), jobs.size())
      << "a threshold of 0 lets every tensor travel alone";
}

TEST_F(AveragePlanTest, EveryTensorIsAveraged) {
  Ranks ranks(3);
  ranks.Each([&](int rank, Engine& engine) {
    // Rank 2 ends after two steps.
    for (int step = 0; step < (rank == 2 ? 2 : 4); ++step) {
      const std::vector<int> contributors = AllRanks(step < 2 ? 3 : 2);
      const std::vector<Job> jobs = SomeJobs(step);
      Data data = DataFor(jobs, rank);
      const AveragePlan plan = PlanFor(jobs, 2000);
      AddOutputs(plan, (rank + step) % 2 == 0, &data);  // a rank's own affair
      std::vector<Ending> endings;
      for (Request& request : plan.Requests(data.buffers, data.outputs, {1, nullptr}, step == 0)) {
        endings.push_back(Submit(engine, std::move(request)));
      }
      EXPECT_EQ(AwaitAll(endings), "");
      TakeApart(plan, &data);
      for (size_t i = 0; i < jobs.size(); ++i) {
        EXPECT_EQ(CheckOutput(jobs[i], contributors, data.tensors[i].data()), "") << jobs[i].name;
      }
    }
    EXPECT_TRUE(engine.Join().ok());
  });
}

TEST_F(AveragePlanTest, AWeightOfZeroCountsAsZeros) {
  Ranks ranks(2);
  ranks.Each([&](int rank, Engine& engine) {
    std::vector<float> a = {NAN, 2}, b = {4};
    if (rank == 0) a = {6, 8};
    const AveragePlan plan({"a", "b"}, {DataType::kFloat32, DataType::kFloat32}, {{2}, {1}}, 1000);
    const std::vector<Request::Buffers> buffers = {{a.data(), a.data()}, {b.data(), b.data()}};
    std::vector<Ending> endings;
    for (Request& request : Requests(plan, buffers, rank == 0 ? 2 : 0)) {
      endings.push_back(Submit(engine, std::move(request)));
    }
    EXPECT_EQ(AwaitAll(endings), "");
    EXPECT_EQ(a, std::vector<float>({6, 8}));
    EXPECT_EQ(b, std::vector<float>({4}));
  });
  ranks.JoinAll();
}

TEST_F(AveragePlanTest, TheTensorThatDiffersIsNamed) {
  const auto disagreement = [](const std::vector<std::string>& names_of_one,
                               const std::vector<Shape>& shapes_of_one) {
    Ranks ranks(2);
    std::string errors[2];
    ranks.Each([&](int rank, Engine& engine) {
      const std::vector<std::string> names =
          rank == 0 ? std::vector<std::string>{"a", "b", "c"} : names_of_one;
      const std::vector<Shape> shapes =
          rank == 0 ? std::vector<Shape>{{2}, {3, 2}, {1}} : shapes_of_one;
      const AveragePlan plan(names, std::vector<DataType>(names.size(), DataType::kFloat32), shapes,
                             1000);
      float data[9] = {};
      const std::vector<Request::Buffers> buffers(names.size(), {data, data});
      std::vector<Ending> endings;
      for (Request& request : Requests(plan, buffers, 1)) {
        endings.push_back(Submit(engine, std::move(request)));
      }
      errors[rank] = AwaitAll(endings);
    });
    EXPECT_EQ(errors[0], errors[1]);
    ranks.JoinAll();
    return errors[0];
  };
  std::string error = disagreement({"a", "b", "c"}, {{2}, {2, 3}, {1}});
  EXPECT_NE(error.find("'b'"), std::string::npos) << error;
  EXPECT_NE(error.find("[3, 2]"), std::string::npos) << error;
  EXPECT_NE(error.find("[2, 3]"), std::string::npos) << error;
  error = disagreement({"a", "x", "c"}, {{2}, {3, 2}, {1}});
  EXPECT_NE(error.find("'b'"), std::string::npos) << error;
  EXPECT_NE(error.find("'x'"), std::string::npos) << error;
}

}  // namespace
}  // namespace tfmpi
