#include "tests/mpi/timings.h"

#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "tests/core/support/job.h"

namespace tfmpi {
namespace {

constexpr size_t kChunkElements = (size_t{2} << 20) / sizeof(float);

void Whole(float* data, size_t count) {
  MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

void BlockingChunks(float* data, size_t count) {
  for (size_t start = 0; start < count; start += kChunkElements) {
    Whole(data + start, std::min(kChunkElements, count - start));
  }
}

void NonblockingChunks(float* data, size_t count) {
  for (size_t start = 0; start < count; start += kChunkElements) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(MPI_IN_PLACE, data + start,
                   static_cast<int>(std::min(kChunkElements, count - start)), MPI_FLOAT, MPI_SUM,
                   MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
}

// The seconds of the slowest rank.
double Time(const std::function<void()>& run) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  run();
  double seconds = MPI_Wtime() - start;
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

void PrintTimings(Engine& engine) {
  const auto engine_sum = [&engine](float* data, size_t count) {
    const Job job = {"time" + std::to_string(count), DataType::kFloat32, ReduceOp::kSum, count, 0};
    std::promise<void> over;
    Request request = MakeRequest(job, data, data);
    request.done = [&over](const Status&) { over.set_value(); };
    engine.Submit(std::move(request));
    over.get_future().wait();
  };
  const std::vector<std::function<void(float*, size_t)>> forms = {engine_sum, Whole, BlockingChunks,
                                                                  NonblockingChunks};
  const bool print = engine.topology().rank == 0;
  if (print) {
    std::printf("%d ranks, median ms (least)\n%12s %20s %20s %20s %20s\n", engine.topology().size,
                "bytes", "engine", "MPI_Allreduce", "in 2 MB chunks", "MPI_Iallreduce 2 MB");
  }
  std::vector<float> data((size_t{100} << 20) / sizeof(float));
  for (size_t bytes : {size_t{4}, size_t{4} << 10, size_t{64} << 10, size_t{256} << 10,
                       size_t{1} << 20, size_t{4} << 20, size_t{25} << 20, size_t{100} << 20}) {
    // Alternates, so that other load on the machine affects all of them.
    std::vector<std::vector<double>> times(forms.size());
    const int rounds = bytes > (size_t{50} << 20) ? 5 : bytes > (size_t{8} << 20) ? 9 : 31;
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < forms.size(); ++i) {
        times[i].push_back(1e3 * Time([&] { forms[i](data.data(), bytes / sizeof(float)); }));
      }
    }
    if (!print) continue;
    std::printf("%12zu", bytes);
    for (const std::vector<double>& list : times) {
      std::printf(" %9.3f (%8.3f)", Median(list), *std::min_element(list.begin(), list.end()));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace tfmpi
