// Messages whose data is in GPU memory, for a transport that supports that, such as a CUDA-aware
// MPI.

#ifndef TFMPI_CORE_TRANSPORT_GPU_MESSAGES_H_
#define TFMPI_CORE_TRANSPORT_GPU_MESSAGES_H_

#include <cstddef>
#include <vector>

#include "tensorflow_patches/core/base/status.h"

namespace tfmpi {

// The data of one message, in the memory of this rank's GPU.
struct GpuPart {
  void* data = nullptr;
  size_t bytes = 0;
};

// Communication thread, with the rank's GPU as the current one (Gpu::MakeCurrent). Never waits.
//
// The transport does not know about streams. When Start is called, the data to send must be in
// memory, and nothing may still read what will be overwritten. Received data is complete when Test
// says so. Until then the memory belongs to the transport, and after a failure forever.
class GpuMessages {
 public:
  // Each lane carries one exchange at a time.
  static constexpr int kLanes = 4;

  virtual ~GpuMessages() = default;

  // An exchange among all ranks: sends send[r] to rank r, which receives it in its receive[this
  // rank]. Both have the same size, at most INT_MAX bytes; size 0 sends no message. A rank's own
  // parts are skipped. All ranks start the same exchanges on a lane in the same order.
  virtual Status Start(int lane, const std::vector<GpuPart>& send,
                       const std::vector<GpuPart>& receive) = 0;
  // Whether the exchange on this lane has ended.
  virtual Status Test(int lane, bool* ended) = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_GPU_MESSAGES_H_
