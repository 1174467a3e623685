// The choice of how data on GPUs is reduced: by NCCL, over all ranks or inside each node; on a
// single GPU that all ranks share; by a CUDA-aware MPI; or staged through the hosts.

#ifndef TFMPI_CORE_DEVICE_CHOICE_H_
#define TFMPI_CORE_DEVICE_CHOICE_H_

#include <string>
#include <vector>

#include "tensorflow_patches/core/base/status.h"

namespace tfmpi {

// What one rank reports to the others.
struct DeviceFacts {
  std::string gpu;          // Gpu::description()
  int nccl_version = 0;     // as reported by ncclGetVersion; 0: no library found
  bool shares_gpu = false;  // whether its NCCL may share a GPU: NCCL_MULTI_RANK_GPU_ENABLE
  bool cuda_aware = false;  // whether its MPI reports support for GPU memory
  int node = 0;             // the first rank of its node
};

// TF_MPI_GPU_TRANSPORT=auto|mpi|nccl|ipc|staged, in the order of DEVICE_TRANSPORTS in Python.
enum class DeviceTransport { kAuto, kMpi, kNccl, kIpc, kStaged };

// The settings for several nodes, the same on all ranks.
struct BetweenNodes {
  bool by_shape = false;  // TF_MPI_TOPOLOGY is a shape, with several ranks per node
  bool rounds = false;    // TF_MPI_COMPRESSION rounds data
};

// kNccl: NCCL over all ranks. kNodes: NCCL inside each node; between the nodes each rail exchanges
// through the hosts (hierarchical_collectives.h). kShared: on the one GPU of all ranks.
enum class DeviceWay { kStaged, kNccl, kNodes, kShared, kMpi };

struct DeviceChoice {
  DeviceWay way = DeviceWay::kStaged;
  std::string reason;  // for people: "NCCL 2.32.3 on all ranks"
};

// A pure function of the facts of all ranks, by rank, and of their common settings, so all ranks
// choose the same. kAuto takes the first possible way of kShared, NCCL (kNccl or kNodes), kMpi and
// kStaged. If data must be rounded between nodes of equal size, kMpi is not possible, nor is NCCL
// with one rank per node. If the way that `wanted` names is not possible, kNccl and kIpc fail with
// the reason, and kMpi becomes kStaged. A single rank always gets kStaged, without an error.
Status ChooseDeviceTransport(const std::vector<DeviceFacts>& ranks, DeviceTransport wanted,
                             const BetweenNodes& between, DeviceChoice* choice);

}  // namespace tfmpi

#endif  // TFMPI_CORE_DEVICE_CHOICE_H_
