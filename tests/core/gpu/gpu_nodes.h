// Nodes whose ranks have a simulated GPU each, and a simulated NCCL: one per node, or one over all.

#ifndef TFMPI_TESTS_CORE_GPU_GPU_NODES_H_
#define TFMPI_TESTS_CORE_GPU_GPU_NODES_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/core/device/simulated_collectives.h"
#include "tests/core/gpu/on_gpu.h"
#include "tests/core/support/nodes.h"

namespace tfmpi {

// Must outlive the ranks and the GPUs.
class GpuNodes {
 public:
  // `inside`: one NCCL per node, which the ranks should choose.
  GpuNodes(const std::vector<int>& sizes, bool inside, const NodeOptions& options = NodeOptions())
      : nodes_(sizes, options), inside_(inside) {
    if (!inside) groups_.push_back(std::make_unique<SimulatedGroup>(nodes_.size()));
    for (const int size : sizes) {
      if (inside) groups_.push_back(std::make_unique<SimulatedGroup>(size));
    }
  }

  Nodes& nodes() { return nodes_; }
  // The NCCL of a rank, and the rank's place in it.
  SimulatedGroup& group(int rank) { return *groups_[inside_ ? nodes_.node_of(rank) : 0]; }
  int place(int rank) const { return inside_ ? nodes_.local_rank(rank) : rank; }
  int reductions(int rank) { return group(rank).reductions(place(rank)); }

  // Options for a rank; `gpus[rank]` is its GPU.
  EngineOptions Options(Gpus& gpus, int rank, const BetweenNodes& between,
                        DeviceTransport wanted = DeviceTransport::kAuto) {
    EngineOptions options = OptionsOf(wanted);
    options.gpus.between = between;
    options.gpus.facts = [rank](const Gpu&) {
      DeviceFacts facts;
      facts.gpu = "GPU of rank " + std::to_string(rank);
      facts.nccl_version = 23203;
      return facts;
    };
    options.gpus.make = [this, &gpus, rank](Gpu*, TimePoint,
                                            std::unique_ptr<DeviceCollectives>* made) {
      return group(rank).Join(place(rank), gpus[rank].simulated(), made);
    };
    options.log = said_.Log();
    return options;
  }

  // The lines that were logged since the last call.
  std::string said() { return said_.Take(); }

 private:
  Nodes nodes_;
  const bool inside_;
  std::vector<std::unique_ptr<SimulatedGroup>> groups_;
  Said said_;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_GPU_GPU_NODES_H_
