// Carries out a response whose tensors lie on GPUs that reduce among themselves: by NCCL, in the
// memory of one that all ranks share, or by a CUDA-aware MPI.
//
// All of it is enqueued on a stream of ours, which waits for the submitters' streams, and they for
// it. The communication thread waits for the GPU only where it has to read a weight there.
// Communication thread only; all ranks make the same calls.

#ifndef TFMPI_CORE_GPU_DIRECT_DIRECT_REDUCTION_H_
#define TFMPI_CORE_GPU_DIRECT_DIRECT_REDUCTION_H_

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/base/clock.h"
#include "tensorflow_patches/core/device/collectives.h"
#include "tensorflow_patches/core/device/gpu.h"
#include "tensorflow_patches/core/request/fusion_entry.h"

namespace tfmpi {

class DirectReduction {
 public:
  // Of this GPU's memory.
  DirectReduction(Gpu* gpu, std::unique_ptr<DeviceCollectives> collectives)
      : gpu_(gpu), collectives_(std::move(collectives)) {}
  ~DirectReduction();
  DirectReduction(const DirectReduction&) = delete;
  DirectReduction& operator=(const DirectReduction&) = delete;

  Status Prepare();
  std::string description() const { return collectives_->description(); }

  // Whether all ranks can take this response this way: a function of what they have agreed on.
  bool Takes(const std::vector<FusionEntry>& entries) const;
  // As Fusion::Allreduce; every entry has a request, on every rank. When it returns, all is
  // enqueued, and every submitter's stream waits for it.
  Status Allreduce(const std::vector<FusionEntry>& entries, double scale, TimePoint deadline);
  // Of what is under way: fails if a deadline has passed, or something has gone wrong.
  Status Check(TimePoint now);
  // Waits until nothing is under way any more.
  Status Drain(TimePoint deadline);
  // Then, by all ranks; see DeviceCollectives.
  void Close() { collectives_->Close(); }
  void Closed() { collectives_->Closed(); }
  // What is under way ends without a result, so that no stream waits for it for good.
  void Abort() { collectives_->Abort(); }

 private:
  // Entries that one call of the collectives reduces: a weighted one, or several without weights.
  struct Run;

  Status ReadWeights(const std::vector<FusionEntry>& entries, std::vector<double>* weights,
                     TimePoint deadline);
  Status Reduce(const std::vector<FusionEntry>& entries, const Run& run, TimePoint deadline);
  Status ReduceOne(const FusionEntry& entry, const Run& run, TimePoint deadline);
  Status ReduceTogether(const std::vector<FusionEntry>& entries, const Run& run,
                        TimePoint deadline);
  Status BetweenGpus(const void* in, void* out, size_t count, DataType type, const Run& run,
                     TimePoint deadline);
  Status Clear(char* memory, size_t bytes);
  Status Buffer(size_t bytes, char** buffer);
  Status WaitForSubmitters(const std::vector<FusionEntry>& entries);
  Status Release(const std::vector<FusionEntry>& entries, TimePoint deadline);
  Status Await(GpuEvent event, const std::string& name, TimePoint deadline);
  Status NewEvent(GpuEvent* event);

  Gpu* const gpu_;
  std::unique_ptr<DeviceCollectives> collectives_;
  GpuStream stream_ = nullptr;
  GpuEvent read_ = nullptr;                        // weights have come
  float* weights_ = nullptr;                       // pinned
  char* zeros_ = nullptr;                          // pinned
  std::vector<std::pair<char*, size_t>> buffers_;  // the last is the largest, and in use
  struct UnderWay {
    GpuEvent event;
    TimePoint deadline;
  };
  std::deque<UnderWay> under_way_;
  std::vector<GpuEvent> events_;  // free ones
  Status refused_;                // a weight that is none, of the response under way
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_DIRECT_DIRECT_REDUCTION_H_
