// Times one collective in three ways: plain blocking MPI, the transport, the whole engine.
//
// All ranks call RunBench with the same case, each on a thread that is not the communication
// thread, and nothing else uses the engine meanwhile. The plain and the direct way run inside the
// `done` of a barrier: there every rank's communication thread is at one agreed point, and may
// drive the transport. The ways take turns, so that what else the machine does meets all alike.
// Every sum is checked: ranks hand in different numbers.

#ifndef TFMPI_CORE_BENCH_BENCH_H_
#define TFMPI_CORE_BENCH_BENCH_H_

#include <vector>

#include "tensorflow_patches/core/engine/engine.h"

namespace tfmpi {

enum class BenchWay { kPlain = 0, kTransport = 1, kEngine = 2 };
inline constexpr int kNumBenchWays = 3;

struct BenchCase {
  OpKind kind = OpKind::kAllreduce;     // of a sum, in place; or kAllgather, which has no plain way
  DataType dtype = DataType::kFloat32;  // also half, bfloat16, float64, int32, int64
  size_t count = 1;                     // elements of one tensor on each rank
  int tensors = 1;                      // handed in together: one round
  int direct_rounds = 1;                // of a sample of the plain and the transport's way
  int engine_rounds = 1;                // of a sample of the engine's
  int least_samples = 3;                // of each way
  int most_samples = 100;               // taken if they fit into `budget`
  double budget = 1;                    // seconds
  double timeout = 60;                  // seconds; of one sample
};

// Seconds of one round by sample: the mean over the sample's rounds, on the slowest rank. The same
// on all ranks. A round of the engine's way lasts from before Submit to the last `done`.
struct BenchResult {
  std::vector<double> seconds[kNumBenchWays];
};

// On kDeadlineExceeded the communication thread may still be inside MPI: end the process.
Status RunBench(Engine* engine, const BenchCase& bench_case, BenchResult* result);

}  // namespace tfmpi

#endif  // TFMPI_CORE_BENCH_BENCH_H_
