#include "tensorflow_patches/core/device/choice.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "tensorflow_patches/core/device/nccl_api.h"

namespace tfmpi {
namespace {

// From this version on ranks can share a GPU. It counts on two; more need a part of the GPU each
// (NCCL_MAX_CTAS) that nobody has measured.
constexpr int kSharedGpuVersion = 23000;
constexpr size_t kMaxSharing = 2;

constexpr size_t kMaxOnOneGpu = 8;  // each takes memory, and turns

constexpr size_t kMaxByMpi = 128;  // a kernel's parameters hold an address and a scale of each

std::string Rank(size_t rank) { return "rank " + std::to_string(rank); }

// "" or why these ranks have no GPU that all share.
std::string WhyNotShared(const std::vector<DeviceFacts>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].gpu.empty()) return Rank(rank) + " has no GPU";
    if (ranks[rank].gpu == ranks[0].gpu) continue;
    return "rank 0 has " + ranks[0].gpu + ", " + Rank(rank) + " has " + ranks[rank].gpu;
  }
  if (ranks.size() <= kMaxOnOneGpu) return "";
  return std::to_string(ranks.size()) + " ranks share " + ranks[0].gpu + ", and it is for " +
         std::to_string(kMaxOnOneGpu) + " at most";
}

// "" or why these ranks do not hand memory of GPUs to MPI.
std::string WhyNotMpi(const std::vector<DeviceFacts>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].gpu.empty()) return Rank(rank) + " has no GPU";
    if (!ranks[rank].cuda_aware) {
      return "the MPI of " + Rank(rank) + " does not say that it is CUDA-aware";
    }
  }
  if (ranks.size() <= kMaxByMpi) return "";
  return std::to_string(ranks.size()) + " ranks are more than the " + std::to_string(kMaxByMpi) +
         " that a GPU adds up";
}

struct Nodes {
  size_t count = 0;
  size_t ranks = 0;  // of each; 0: they have different numbers
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

// Among ranks that can use NCCL: over all of them, inside each node, or not at all.
Status ChooseBetweenNodes(const std::vector<DeviceFacts>& ranks, DeviceTransport wanted,
                          const BetweenNodes& between, DeviceChoice* choice) {
  const std::string nccl = "NCCL " + NcclVersionText(ranks[0].nccl_version);
  const Nodes nodes = NodesOf(ranks);
  choice->way = DeviceWay::kNccl;
  choice->reason = nccl + " on all ranks";
  if (nodes.count == 1 || (!between.by_shape && !between.rounds)) return Status();
  if (nodes.ranks > 1) {
    choice->way = DeviceWay::kNodes;
    choice->reason = nccl + " inside each of " + std::to_string(nodes.count) + " nodes of " +
                     std::to_string(nodes.ranks) + " ranks, MPI between them: " +
                     (between.rounds ? "TF_MPI_COMPRESSION rounds there" : "TF_MPI_TOPOLOGY");
  } else if (nodes.ranks == 0) {
    choice->reason +=
        ", not inside nodes and MPI between them, for the nodes have different "
        "numbers of ranks";
    if (between.rounds) choice->reason += "; TF_MPI_COMPRESSION rounds nothing";
  } else if (between.rounds && wanted == DeviceTransport::kNccl) {
    return Status(Code::kFailedPrecondition,
                  "TF_MPI_GPU_TRANSPORT=nccl, but TF_MPI_COMPRESSION rounds what travels between "
                  "nodes, which MPI does, and each node has one rank. TF_MPI_GPU_TRANSPORT=auto "
                  "stages there");
  } else if (between.rounds) {
    choice->way = DeviceWay::kStaged;
    choice->reason =
        "staged through the host, for TF_MPI_COMPRESSION rounds what travels between "
        "nodes, each has one rank, and NCCL does not round";
  }
  return Status();
}

// "" or why ranks of these facts cannot use NCCL.
std::string WhyNotNccl(const std::vector<DeviceFacts>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].gpu.empty()) return Rank(rank) + " has no GPU";
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
  // Of several GPUs that are shared, the one of the lowest rank is spoken of.
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::vector<size_t>& sharing = users[ranks[rank].gpu];
    if (sharing.size() == 1) continue;
    const std::string who = "ranks " + std::to_string(sharing[0]) + " and " +
                            std::to_string(sharing[1]) + " share " + ranks[rank].gpu;
    const std::string version = "NCCL " + NcclVersionText(ranks[0].nccl_version);
    if (ranks[0].nccl_version < kSharedGpuVersion) {
      return who + ", and " + version + " wants a GPU for each (2.30 and newer need not)";
    }
    for (const size_t user : sharing) {
      if (ranks[user].shares_gpu) continue;
      return who + ", which " + version +
             " can only do with NCCL_MULTI_RANK_GPU_ENABLE=1 (experimental) on all of them";
    }
    if (sharing.size() > kMaxSharing) {
      return std::to_string(sharing.size()) + " ranks share " + ranks[rank].gpu + ", and " +
             version + " counts on " + std::to_string(kMaxSharing);
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
  const bool any = wanted == DeviceTransport::kAuto;
  if (not_shared.empty() && (any || wanted == DeviceTransport::kIpc)) {
    choice->way = DeviceWay::kShared;
    choice->reason = "on " + ranks[0].gpu + ", which all ranks share";
    if (between.rounds && NodesOf(ranks).count > 1) {
      choice->reason += "; nothing leaves it, so TF_MPI_COMPRESSION rounds nothing";
    }
    return Status();
  }
  if (wanted == DeviceTransport::kIpc) {
    return Status(Code::kFailedPrecondition,
                  "TF_MPI_GPU_TRANSPORT=ipc, but " + not_shared +
                      ". TF_MPI_GPU_TRANSPORT=auto looks for another way there");
  }
  const std::string not_mpi = WhyNotMpi(ranks);
  const std::string not_nccl = WhyNotNccl(ranks);
  if (not_nccl.empty() && wanted != DeviceTransport::kMpi) {
    return ChooseBetweenNodes(ranks, wanted, between, choice);
  }
  if (wanted == DeviceTransport::kNccl) {
    return Status(Code::kFailedPrecondition,
                  "TF_MPI_GPU_TRANSPORT=nccl, but " + not_nccl +
                      ". TF_MPI_GPU_TRANSPORT=auto looks for another way there");
  }
  const Nodes nodes = NodesOf(ranks);
  const bool rounds = between.rounds && nodes.count > 1;
  if (not_mpi.empty() && rounds && nodes.ranks != 0) {
    choice->reason =
        "staged through the host, for TF_MPI_COMPRESSION rounds what travels between "
        "nodes, and CUDA-aware MPI does not round";
    if (any) choice->reason += ", and " + not_nccl;
  } else if (not_mpi.empty()) {
    choice->way = DeviceWay::kMpi;
    choice->reason = "by CUDA-aware MPI on all ranks";
    if (any) choice->reason += ", for " + not_nccl;
    if (rounds) {
      choice->reason +=
          "; TF_MPI_COMPRESSION rounds nothing, for the nodes have different numbers "
          "of ranks";
    }
  } else {
    choice->reason = "staged through the host, for " + (any ? not_nccl : not_mpi);
    if (any && not_mpi != not_nccl) choice->reason += ", and " + not_mpi;
  }
  return Status();
}

}  // namespace tfmpi
