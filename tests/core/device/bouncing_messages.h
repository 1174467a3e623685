// GPU messages for tests on top of any MPI, or none: each part is copied to the host, sent from
// there and copied to the other GPU. The copies are on a separate stream, which nothing orders with
// the streams of the code under test.

#ifndef TFMPI_TESTS_CORE_DEVICE_BOUNCING_MESSAGES_H_
#define TFMPI_TESTS_CORE_DEVICE_BOUNCING_MESSAGES_H_

#include <memory>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/device/gpu.h"
#include "tensorflow_patches/core/transport/gpu_messages.h"
#include "tests/core/device/simulated_gpu.h"
#include "tests/core/support/decorated.h"

namespace tfmpi {

// For one rank. Overwrites memory for receiving as early as it may, and reads memory for sending
// late.
class BouncingMessages : public GpuMessages {
 public:
  // `host` sends host memory. `simulated` is `gpu` if that is simulated, and is checked to be the
  // thread's current GPU; else null.
  BouncingMessages(Gpu* gpu, SimulatedGpu* simulated, GpuMessages* host)
      : gpu_(gpu), simulated_(simulated), host_(host) {}
  ~BouncingMessages() override;

  Status Start(int lane, const std::vector<GpuPart>& send,
               const std::vector<GpuPart>& receive) override;
  Status Test(int lane, bool* ended) override;

  int started() const { return started_; }

 private:
  enum class Stage { kIdle, kFetching, kSending, kLanding };
  struct Lane {
    Stage stage = Stage::kIdle;
    GpuEvent event = nullptr;
    std::vector<GpuPart> receive;         // the GPU's
    std::vector<GpuPart> sent, received;  // pinned, of the same lengths
  };

  Status Pinned(const std::vector<GpuPart>& parts, std::vector<GpuPart>* pinned);

  Gpu* const gpu_;
  SimulatedGpu* const simulated_;
  GpuMessages* const host_;
  GpuStream stream_ = nullptr;
  Lane lanes_[kLanes];
  std::vector<void*> pinned_;
  int started_ = 0;
};

// A transport whose MPI supports GPU memory. `host`, if given, replaces its own messages.
class CudaAware : public Decorated {
 public:
  CudaAware(std::unique_ptr<Transport> next, Gpu* gpu, SimulatedGpu* simulated,
            std::unique_ptr<GpuMessages> host = nullptr)
      : Decorated(std::move(next)),
        host_(std::move(host)),
        messages_(gpu, simulated, host_ != nullptr ? host_.get() : next_->gpu_messages()) {}

  GpuMessages* gpu_messages() override { return &messages_; }

 private:
  const std::unique_ptr<GpuMessages> host_;
  BouncingMessages messages_;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_DEVICE_BOUNCING_MESSAGES_H_
