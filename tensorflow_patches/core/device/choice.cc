#include "tensorflow_patches/core/device/choice.h"

#include <cstddef>
#include <map>

#include "tensorflow_patches/core/device/nccl_api.h"

namespace tfmpi {
namespace {

// From this version on, NCCL's ranks can share a GPU. That is designed for two ranks; more would
// each need a part of the GPU (NCCL_MAX_CTAS), which has not been measured.
constexpr int kSharedGpuVersion = 23000;
constexpr size_t kMaxSharing = 2;

// For kShared: each rank takes memory, and processes take turns on a GPU.
constexpr size_t kMaxOnOneGpu = 8;

// For kMpi: our kernel's parameters contain an address and a scale per rank.
constexpr size_t kMaxByMpi = 128;

std::string Rank(size_t rank) { return "rank " + std::to_string(rank); }

// The WhyNot functions return why these ranks cannot use that way; "" if they can.
std::string WhyNotShared(const std::vector<DeviceFacts>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].gpu == ranks[0].gpu) continue;
    return "rank 0 has " + ranks[0].gpu + ", " + Rank(rank) + " has " + ranks[rank].gpu;
  }
  if (ranks.size() <= kMaxOnOneGpu) return "";
  return std::to_string(ranks.size()) + " ranks share " + ranks[0].gpu + ", and at most " +
         std::to_string(kMaxOnOneGpu) + " can do so";
}

std::string WhyNotMpi(const std::vector<DeviceFacts>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].cuda_aware) {
      return "the MPI of " + Rank(rank) + " does not report that it is CUDA-aware";
    }
  }
  if (ranks.size() <= kMaxByMpi) return "";
  return std::to_string(ranks.size()) + " ranks are more than the " + std::to_string(kMaxByMpi) +
         " whose data a GPU can sum";
}

struct Nodes {
  size_t count = 0;
  size_t ranks = 0;  // per node; 0: the nodes have different numbers
};

Nodes NodesOf(const std::vector<DeviceFacts>& ranks) {
  std::map<int, size_t> sizes;
  for (const DeviceFacts& rank : ranks) ++sizes[rank.node];
  Nodes nodes = {sizes.size(), sizes.begin()->second};
  for (const auto& [node, size] : sizes) {
    if (size != nodes.ranks) return {nodes.count, 0};
  }
  return nodes;
}

// For ranks that can use NCCL: over all of them, inside each node, or not at all.
Status ChooseBetweenNodes(const std::vector<DeviceFacts>& ranks, DeviceTransport wanted,
                          const BetweenNodes& between, DeviceChoice* choice) {
  const std::string version = NcclVersionText(ranks[0].nccl_version);
  const Nodes nodes = NodesOf(ranks);
  choice->way = DeviceWay::kNccl;
  choice->reason = "NCCL " + version + " on all ranks";
  if (nodes.count == 1 || (!between.by_shape && !between.rounds)) return Status();
  if (nodes.ranks > 1) {
    choice->way = DeviceWay::kNodes;
    choice->reason = "NCCL " + version + " inside each of " + std::to_string(nodes.count) +
                     " nodes of " + std::to_string(nodes.ranks) + " ranks, MPI between them: " +
                     (between.rounds ? "TF_MPI_COMPRESSION rounds there" : "TF_MPI_TOPOLOGY");
  } else if (nodes.ranks == 0) {
    choice->reason +=
        ", not inside nodes with MPI between them, because the nodes have different "
        "numbers of ranks";
    if (between.rounds) choice->reason += "; TF_MPI_COMPRESSION has no effect";
  } else if (between.rounds && wanted == DeviceTransport::kNccl) {
    return Status(Code::kFailedPrecondition,
                  "TF_MPI_GPU_TRANSPORT=nccl, but TF_MPI_COMPRESSION rounds data between "
                  "nodes, which NCCL cannot do, and each node has one rank. Set "
                  "TF_MPI_GPU_TRANSPORT=auto to stage through the host");
  } else if (between.rounds) {
    choice->way = DeviceWay::kStaged;
    choice->reason =
        "staged through the host, because TF_MPI_COMPRESSION rounds data between "
        "nodes, each has one rank, and NCCL does not round";
  }
  return Status();
}

std::string WhyNotNccl(const std::vector<DeviceFacts>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].nccl_version == 0) return Rank(rank) + " finds no NCCL";
  }
  std::map<std::string, std::vector<size_t>> users;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].nccl_version != ranks[0].nccl_version) {
      return "rank 0 has NCCL " + NcclVersionText(ranks[0].nccl_version) + ", " + Rank(rank) +
             " has " + NcclVersionText(ranks[rank].nccl_version);
    }
    users[ranks[rank].gpu].push_back(rank);
  }
  // If several GPUs are shared, report the one of the lowest rank.
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::vector<size_t>& sharing = users[ranks[rank].gpu];
    if (sharing.size() == 1) continue;
    const std::string who = "ranks " + std::to_string(sharing[0]) + " and " +
                            std::to_string(sharing[1]) + " share " + ranks[rank].gpu;
    const std::string version = "NCCL " + NcclVersionText(ranks[0].nccl_version);
    if (ranks[0].nccl_version < kSharedGpuVersion) {
      return who + ", and " + version + " needs a GPU for each (2.30 and newer do not)";
    }
    for (const size_t user : sharing) {
      if (ranks[user].shares_gpu) continue;
      return who + ", which " + version +
             " can only do with NCCL_MULTI_RANK_GPU_ENABLE=1 (experimental) on all of them";
    }
    if (sharing.size() > kMaxSharing) {
      return std::to_string(sharing.size()) + " ranks share " + ranks[rank].gpu + ", and " +
             version + " supports " + std::to_string(kMaxSharing);
    }
  }
  return "";
}

}  // namespace

Status ChooseDeviceTransport(const std::vector<DeviceFacts>& ranks, DeviceTransport wanted,
                             const BetweenNodes& between, DeviceChoice* choice) {
  *choice = DeviceChoice();
  if (wanted == DeviceTransport::kStaged) {
    choice->reason = "staged through the host: TF_MPI_GPU_TRANSPORT=staged";
    return Status();
  }
  if (ranks.size() == 1) {
    choice->reason = "one rank alone exchanges nothing";
    return Status();
  }
  const std::string not_shared = WhyNotShared(ranks);
  const bool automatic = wanted == DeviceTransport::kAuto;
  if (not_shared.empty() && (automatic || wanted == DeviceTransport::kIpc)) {
    choice->way = DeviceWay::kShared;
    choice->reason = "on " + ranks[0].gpu + ", which all ranks share";
    if (between.rounds && NodesOf(ranks).count > 1) {
      choice->reason += "; nothing leaves it, so TF_MPI_COMPRESSION has no effect";
    }
    return Status();
  }
  if (wanted == DeviceTransport::kIpc) {
    return Status(Code::kFailedPrecondition, "TF_MPI_GPU_TRANSPORT=ipc, but " + not_shared +
                                                 ". TF_MPI_GPU_TRANSPORT=auto selects another way");
  }
  const std::string not_mpi = WhyNotMpi(ranks);
  const std::string not_nccl = WhyNotNccl(ranks);
  if (not_nccl.empty() && wanted != DeviceTransport::kMpi) {
    return ChooseBetweenNodes(ranks, wanted, between, choice);
  }
  if (wanted == DeviceTransport::kNccl) {
    return Status(Code::kFailedPrecondition, "TF_MPI_GPU_TRANSPORT=nccl, but " + not_nccl +
                                                 ". TF_MPI_GPU_TRANSPORT=auto selects another way");
  }
  const Nodes nodes = NodesOf(ranks);
  const bool rounds = between.rounds && nodes.count > 1;
  if (not_mpi.empty() && rounds && nodes.ranks != 0) {
    choice->reason =
        "staged through the host, because TF_MPI_COMPRESSION rounds data between "
        "nodes, and CUDA-aware MPI does not round";
    if (automatic) choice->reason += ", and " + not_nccl;
  } else if (not_mpi.empty()) {
    choice->way = DeviceWay::kMpi;
    choice->reason = "by CUDA-aware MPI on all ranks";
    if (automatic) choice->reason += ", because " + not_nccl;
    if (rounds) {
      choice->reason +=
          "; TF_MPI_COMPRESSION has no effect, because the nodes have different numbers "
          "of ranks";
    }
  } else {
    choice->reason = "staged through the host, because " + (automatic ? not_nccl : not_mpi);
    if (automatic) choice->reason += ", and " + not_mpi;
  }
  return Status();
}

}  // namespace tfmpi
