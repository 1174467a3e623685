// Executes a response whose tensors are on GPUs by one of the DeviceCollectives: NCCL; NCCL inside
// nodes, and the hosts between them; the memory of a GPU that all ranks share; a CUDA-aware MPI.
//
// Everything is enqueued on a stream of our own, which waits for the submitters' streams, and they
// for it. Allreduce waits for the GPU only to read weights there; the collectives may wait, too.
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
  // `gpu`: where this rank's tensors are.
  DirectReduction(Gpu* gpu, std::unique_ptr<DeviceCollectives> collectives)
      : gpu_(gpu), collectives_(std::move(collectives)) {}
  ~DirectReduction();
  DirectReduction(const DirectReduction&) = delete;
  DirectReduction& operator=(const DirectReduction&) = delete;

  // Call it once, before Allreduce: creates the stream and pinned memory.
  Status Prepare();
  std::string description() const { return collectives_->description(); }

  // Whether all ranks can execute this response this way. Depends only on what they have agreed on.
  bool Takes(const std::vector<FusionEntry>& entries) const;
  // Like Fusion::Allreduce, but takes `scale` instead of the number n of contributors: 1/n for an
  // average, otherwise 1. Every entry has a request on every rank. On return everything is
  // enqueued, and every submitter's stream waits for it. kInvalidArgument: a weight is invalid; the
  // ranks have reduced nevertheless, and only these requests fail. Any other error ends the job.
  Status Allreduce(const std::vector<FusionEntry>& entries, double scale, TimePoint deadline);
  // Checks work in flight: fails if a deadline has passed or an error has occurred.
  Status Check(TimePoint now);
  // Waits until no work is in flight.
  Status Drain(TimePoint deadline);
  // Call it after Drain, on all ranks; see DeviceCollectives.
  void Close() { collectives_->Close(); }
  void Closed() { collectives_->Closed(); }
  // Work in flight ends without a result, so that no stream waits for it forever.
  void Abort() { collectives_->Abort(); }

 private:
  // Entries that one call of the collectives reduces: one with a weight, or several without.
  struct Run;

  Status ReadWeights(const std::vector<FusionEntry>& entries, std::vector<double>* weights,
                     TimePoint deadline);
  Status Reduce(const std::vector<FusionEntry>& entries, const Run& run, TimePoint deadline);
  Status ReduceOne(const FusionEntry& entry, const Run& run, TimePoint deadline);
  Status ReduceTogether(const std::vector<FusionEntry>& entries, const Run& run,
                        TimePoint deadline);
  Status ReduceBetweenGpus(const void* in, void* out, size_t count, DataType type, const Run& run,
                           TimePoint deadline);
  Status Clear(char* memory, size_t bytes);
  Status GetBuffer(size_t bytes, char** buffer);
  Status WaitForSubmitters(const std::vector<FusionEntry>& entries);
  Status LetSubmittersContinue(const std::vector<FusionEntry>& entries, TimePoint deadline);
  Status AwaitWeights(const std::string& name, TimePoint deadline);
  Status NewEvent(GpuEvent* event);

  Gpu* const gpu_;
  std::unique_ptr<DeviceCollectives> collectives_;
  GpuStream stream_ = nullptr;
  GpuEvent read_ = nullptr;                        // the GPU's weights are in weights_
  float* weights_ = nullptr;                       // pinned
  char* zeros_ = nullptr;                          // pinned
  std::vector<std::pair<char*, size_t>> buffers_;  // only the last one, the largest, is used again
  struct InFlight {
    GpuEvent event;
    TimePoint deadline;
  };
  std::deque<InFlight> in_flight_;
  std::vector<GpuEvent> events_;  // free ones
  Status refused_;                // an invalid weight in the current response
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_DIRECT_DIRECT_REDUCTION_H_
