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
constexpr size_t kMostSharing = 2;

constexpr size_t kMostOnOneGpu = 8;  // each takes memory, and turns

constexpr size_t kMostByMpi = 128;  // a kernel's parameters hold an address and a scale of each

std::string Rank(size_t rank) { return "rank " + std::to_string(rank); }

// "" or why these ranks have no GPU that all share.
std::string WhyNotShared(const std::vector<DeviceFacts>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].gpu.empty()) return Rank(rank) + " has no GPU";
    if (ranks[rank].gpu == ranks[0].gpu) continue;
    return "rank 0 has " + ranks[0].gpu + ", " + Rank(rank) + " has " + ranks[rank].gpu;
  }
  if (ranks.size() <= kMostOnOneGpu) return "";
  return std::to_string(ranks.size()) + " ranks share " + ranks[0].gpu + ", and it is for " +
         std::to_string(kMostOnOneGpu) + " at most";
}

// "" or why these ranks do not hand memory of GPUs to MPI.
std::string WhyNotMpi(const std::vector<DeviceFacts>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].gpu.empty()) return Rank(rank) + " has no GPU";
    if (!ranks[rank].cuda_aware) {
      return "the MPI of " + Rank(rank) + " does not say that it is CUDA-aware";
    }
  }
  if (ranks.size() <= kMostByMpi) return "";
  return std::to_string(ranks.size()) + " ranks are more than the " + std::to_string(kMostByMpi) +
         " that a GPU adds up";
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
    if (sharing.size() > kMostSharing) {
      return std::to_string(sharing.size()) + " ranks share " + ranks[rank].gpu + ", and " +
             version + " counts on " + std::to_string(kMostSharing);
    }
  }
  return "";
}

}  // namespace

Status ChooseDeviceTransport(const std::vector<DeviceFacts>& ranks, DeviceTransport wanted,
                             DeviceChoice* choice) {
  *choice = DeviceChoice();
  if (wanted == DeviceTransport::kStaged) {
    choice->reason = "staged through the host: TF_MPI_TRANSPORT=staged";
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
    return Status();
  }
  if (wanted == DeviceTransport::kIpc) {
    return Status(Code::kFailedPrecondition,
                  "TF_MPI_TRANSPORT=ipc, but " + not_shared +
                      ". TF_MPI_TRANSPORT=auto looks for another way there");
  }
  const std::string not_mpi = WhyNotMpi(ranks);
  const std::string not_nccl = WhyNotNccl(ranks);
  if (not_nccl.empty() && wanted != DeviceTransport::kMpi) {
    choice->way = DeviceWay::kNccl;
    choice->reason = "NCCL " + NcclVersionText(ranks[0].nccl_version) + " on all ranks";
  } else if (wanted == DeviceTransport::kNccl) {
    return Status(Code::kFailedPrecondition,
                  "TF_MPI_TRANSPORT=nccl, but " + not_nccl +
                      ". TF_MPI_TRANSPORT=auto looks for another way there");
  } else if (not_mpi.empty()) {
    choice->way = DeviceWay::kMpi;
    choice->reason = "by CUDA-aware MPI on all ranks";
    if (any) choice->reason += ", for " + not_nccl;
  } else {
    choice->reason = "staged through the host, for " + (any ? not_nccl : not_mpi);
    if (any && not_mpi != not_nccl) choice->reason += ", and " + not_mpi;
  }
  return Status();
}

}  // namespace tfmpi
