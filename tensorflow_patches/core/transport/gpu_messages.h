// Messages between ranks whose bytes lie in memory of GPUs: of a transport that takes such memory,
// as a CUDA-aware MPI does.

#ifndef TFMPI_CORE_TRANSPORT_GPU_MESSAGES_H_
#define TFMPI_CORE_TRANSPORT_GPU_MESSAGES_H_

#include <cstddef>
#include <vector>

#include "tensorflow_patches/core/base/status.h"

namespace tfmpi {

// Memory of this rank's GPU that one message holds.
struct GpuPart {
  void* data = nullptr;
  size_t bytes = 0;
};

// Communication thread, of which the GPU is current (Gpu::MakeCurrent). Waits for nobody.
//
// The transport knows no streams: what is to be sent has come into memory, and what is to be
// overwritten is read by nobody any more, when Start is called; what was received is there when
// Test says so. Until then the memory is the transport's, and after a failure for good.
class GpuMessages {
 public:
  static constexpr int kLanes = 4;
  static constexpr size_t kMaxBytes = size_t{1} << 30;  // of a part

  virtual ~GpuMessages() = default;

  // An exchange of all ranks: to[r] becomes what rank r has given as from[this rank]; both have as
  // many bytes, and none is no message. A rank's own parts are left out. All ranks start the same
  // exchanges on a lane, in the same order; a lane has one at a time.
  virtual Status Start(int lane, const std::vector<GpuPart>& to,
                       const std::vector<GpuPart>& from) = 0;
  // Whether what was started on the lane has ended.
  virtual Status Test(int lane, bool* ended) = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_GPU_MESSAGES_H_
