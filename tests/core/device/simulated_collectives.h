// A simulated NCCL, for simulated GPUs: a collective is a piece of work on each rank's stream, and
// begins when all ranks' streams have reached it.

#ifndef TFMPI_TESTS_CORE_DEVICE_SIMULATED_COLLECTIVES_H_
#define TFMPI_TESTS_CORE_DEVICE_SIMULATED_COLLECTIVES_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tensorflow_patches/core/device/collectives.h"
#include "tests/core/device/simulated_gpu.h"

namespace tfmpi {

// The ranks of one group. It must outlive their GPUs, which must outlive its collectives.
class SimulatedGroup {
 public:
  explicit SimulatedGroup(int size, bool ranks_share_gpus = false);
  // Fails the test if ranks requested different collectives.
  ~SimulatedGroup();

  // Refuses a GPU that another rank has, unless ranks share GPUs. Unlike NCCL, waits for no rank.
  Status Join(int rank, SimulatedGpu* gpu, std::unique_ptr<DeviceCollectives>* collectives);

  // The n-th collective of `rank` from now on fails when it is requested; n = 1 is the next.
  void FailCall(int rank, int n);
  // The n-th collective of `rank` that begins from now on does not end before Abort; Poll returns
  // the error on all ranks. LoseWork: the same, but Poll returns no error, as when the rank dies.
  void FailWork(int rank, int n);
  void LoseWork(int rank, int n);

  // The number of collectives of `rank` that have succeeded.
  int reductions(int rank) const;
  std::vector<std::string> TakeComplaints();

 private:
  class Collectives;

  enum class Kind { kAllreduce, kReduceScatter, kAllgather };

  struct Terms {
    Kind kind;
    size_t count;  // of elements that each rank passes in
    DataType type;
    ReduceOp op;
  };

  struct Round {
    Terms terms = {};
    int arrived = 0;
    bool broken = false;                    // it never ends
    std::vector<std::vector<char>> inputs;  // by rank, scaled
  };

  struct Member {
    SimulatedGpu* gpu = nullptr;
    bool aborted = false;
    size_t begun = 0;
    int ended = 0;
    int until_call_fails = 0;
    int until_work_fails = 0;
    int until_work_is_lost = 0;
  };

  // On the stream's thread of `rank`.
  void Run(int rank, const void* in, void* out, const Terms& terms, double scale);
  std::vector<char> ResultOf(const Round& round, int rank) const;
  // Null if aborted.
  Round* Meet(int rank, const Terms& terms, std::vector<char> input);

  const int size_;
  const bool ranks_share_gpus_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string failed_;
  std::vector<Member> members_;
  std::vector<std::unique_ptr<Round>> rounds_;
  std::vector<std::string> complaints_;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_DEVICE_SIMULATED_COLLECTIVES_H_
