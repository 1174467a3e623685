// Times one collective in three ways (BenchWay): plain blocking MPI, the transport, the whole
// engine.
//
// All ranks call RunBench with the same case, each on a thread other than the communication thread,
// and nothing else uses the engine meanwhile. The first two run inside the `done` of a barrier:
// there every rank's communication thread is at the same agreed point and may use the transport
// directly. The ways alternate, so that other load on the machine affects all of them equally.
// Every result is checked: ranks contribute different numbers.

#ifndef TFMPI_CORE_BENCH_BENCH_H_
#define TFMPI_CORE_BENCH_BENCH_H_

#include <vector>

#include "tensorflow_patches/core/engine/engine.h"

namespace tfmpi {

enum class BenchWay { kPlain = 0, kTransport = 1, kEngine = 2 };
inline constexpr int kNumBenchWays = 3;

struct BenchCase {
  OpKind kind = OpKind::kAllreduce;     // a sum, in place; or kAllgather, without kPlain
  DataType dtype = DataType::kFloat32;  // also half, bfloat16, float64, int32, int64
  size_t count = 1;                     // elements of one tensor on each rank
  int tensors = 1;                      // submitted together in one round
  int direct_rounds = 1;                // per sample, kPlain and kTransport
  int engine_rounds = 1;                // per sample, kEngine
  int min_samples = 3;                  // of each way
  int max_samples = 100;                // taken if they fit into `budget`
  double budget = 1;                    // seconds
  double timeout = 60;                  // seconds; for a sample, or a round of kEngine
};

// Seconds per round, by sample: the mean over the sample's rounds on the slowest rank. The same on
// all ranks. A round of kEngine lasts from before Submit until the last `done`.
struct BenchResult {
  std::vector<double> seconds[kNumBenchWays];
};

// On kDeadlineExceeded the communication thread may still be inside MPI: end the process.
Status RunBench(Engine* engine, const BenchCase& bench_case, BenchResult* result);

}  // namespace tfmpi

#endif  // TFMPI_CORE_BENCH_BENCH_H_
