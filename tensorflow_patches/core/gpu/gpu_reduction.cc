#include "tensorflow_patches/core/gpu/gpu_reduction.h"

#include <cstring>
#include <string>

#include "tensorflow_patches/core/device/driver.h"
#include "tensorflow_patches/core/gpu/direct/all_ranks_ok.h"
#include "tensorflow_patches/core/gpu/direct/cuda_aware_collectives.h"
#include "tensorflow_patches/core/gpu/direct/hierarchical_collectives.h"
#include "tensorflow_patches/core/gpu/direct/peer_collectives.h"

namespace tfmpi {
namespace {

// NCCL's thread blocks if ranks share a GPU: few enough that the other ranks' kernels run, too.
constexpr int kSharedCtas = 8;

// DeviceFacts as sent to other ranks.
struct Record {
  char gpu[246];
  uint8_t shares_gpu;
  uint8_t cuda_aware;
  int32_t nccl_version;
  int32_t node;
};

bool SomeShareAGpu(const std::vector<DeviceFacts>& ranks) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (ranks[i].gpu == ranks[k].gpu) return true;
    }
  }
  return false;
}

}  // namespace

Status ShareFirstValue(Transport* transport, int first, void* data, size_t bytes,
                       TimePoint deadline) {
  const auto size = static_cast<size_t>(transport->topology().size);
  std::vector<char> all(size * bytes);
  const Status status =
      transport->Allgather(data, all.data(), std::vector<size_t>(size, bytes), deadline);
  if (status.ok()) std::memcpy(data, all.data() + static_cast<size_t>(first) * bytes, bytes);
  return status;
}

Status GpuReduction::Allreduce(const std::vector<FusionEntry>& entries, int contributors,
                               double scale, TimePoint deadline) {
  const bool all = contributors == transport_->topology().size;
  if (all && !has_chosen_) {
    TFMPI_RETURN_IF_NOT_OK(Choose(entries[0].request->memory, deadline));
    has_chosen_ = true;
  }
  const bool direct = direct_ != nullptr && all && direct_->Takes(entries);
  return direct ? direct_->Allreduce(entries, scale, deadline)
                : staged_.Allreduce(entries, scale, deadline);
}

Status GpuReduction::Choose(const GpuMemory& own, TimePoint deadline) {
  if (transport_->topology().size == 1) return Status();
  std::vector<DeviceFacts> ranks;
  TFMPI_RETURN_IF_NOT_OK(Gather(FactsOf(*own.gpu), &ranks, deadline));
  DeviceChoice choice;
  const Status chosen = ChooseDeviceTransport(ranks, options_.wanted, options_.between, &choice);
  if (!chosen.ok()) return Status(Code::kUnavailable, chosen.message());
  std::string reason = choice.reason;
  if (choice.way != DeviceWay::kStaged) {
    std::string why_not;
    TFMPI_RETURN_IF_NOT_OK(MakeDirect(choice.way, own, SomeShareAGpu(ranks), deadline, &why_not));
    if (direct_ == nullptr) {
      reason = choice.way == DeviceWay::kShared ? "not " + reason
               : choice.way == DeviceWay::kMpi
                   ? "MPI reports that it is CUDA-aware, but its test failed"
                   : "NCCL did not start";
      reason += why_not;
      const bool required =
          options_.wanted == DeviceTransport::kNccl || options_.wanted == DeviceTransport::kIpc;
      if (required) {
        return Status(Code::kUnavailable,
                      reason + ". TF_MPI_GPU_TRANSPORT=auto selects another way");
      }
      reason += "; gradients are staged through the hosts";
    }
  }
  if (direct_ == nullptr) {
    TFMPI_RETURN_IF_NOT_OK(ShareBuffers(own.gpu, deadline, &reason));
  }
  if (options_.log) options_.log(reason);
  if (options_.chosen) options_.chosen(direct_ == nullptr);
  return Status();
}

// On all nodes or on none, so that all ranks exchange the same way.
Status GpuReduction::ShareBuffers(Gpu* own, TimePoint deadline, std::string* reason) {
  std::unique_ptr<NodeBuffers> buffers;
  std::string why;
  Status status = transport_->MakeNodeBuffers(staged_.BufferBytes(), deadline, &buffers, &why);
  if (!status.ok() || (buffers == nullptr && why.empty())) return status;
  if (buffers != nullptr) why = staged_.Share(std::move(buffers), own).message();
  bool all = false;
  status = IsTrueOnAllRanks(transport_, why.empty(), deadline, &all);
  if (!status.ok() || all) return status;
  staged_.Unshare();
  *reason +=
      "; each chunk is copied twice there, because the ranks of a node cannot share memory with "
      "their GPUs: " +
      (why.empty() ? "another rank cannot" : why);
  return status;
}

DeviceFacts GpuReduction::FactsOf(const Gpu& own) {
  if (options_.facts) return options_.facts(own);
  DeviceFacts facts;
  facts.gpu = own.description();
  facts.shares_gpu = options_.shares_gpu;
  if (options_.wanted == DeviceTransport::kStaged) return facts;
  // Cray's library reports the capability it was built with, whether or not it is enabled.
  const bool is_cray = transport_->description().find("CRAY") != std::string::npos;
  facts.cuda_aware = transport_->gpu_messages() != nullptr && (!is_cray || options_.cray_gpus);
  if (options_.wanted == DeviceTransport::kMpi) return facts;
  if (!LoadNccl(options_.nccl_library, &nccl_).ok()) return facts;
  if (nccl_.GetVersion(&facts.nccl_version) != 0) facts.nccl_version = 0;
  return facts;
}

Status GpuReduction::Gather(const DeviceFacts& own, std::vector<DeviceFacts>* all,
                            TimePoint deadline) {
  Record record = {};
  std::strncpy(record.gpu, own.gpu.c_str(), sizeof(record.gpu) - 1);
  record.shares_gpu = own.shares_gpu ? 1 : 0;
  record.cuda_aware = own.cuda_aware ? 1 : 0;
  record.nccl_version = own.nccl_version;
  record.node = transport_->topology().node_leader;
  const auto size = static_cast<size_t>(transport_->topology().size);
  std::vector<Record> records(size);
  TFMPI_RETURN_IF_NOT_OK(transport_->Allgather(
      &record, records.data(), std::vector<size_t>(size, sizeof(Record)), deadline));
  for (const Record& one : records) {
    DeviceFacts facts;
    facts.gpu = one.gpu;
    facts.nccl_version = one.nccl_version;
    facts.shares_gpu = one.shares_gpu != 0;
    facts.cuda_aware = one.cuda_aware != 0;
    facts.node = one.node;
    all->push_back(facts);
  }
  return Status();
}

Status GpuReduction::MakeDirect(DeviceWay way, const GpuMemory& own, bool shares,
                                TimePoint deadline, std::string* why_not) {
  std::unique_ptr<DeviceCollectives> collectives;
  Status status;
  if (way == DeviceWay::kNccl) {
    status = MakeNccl(own, /*in_node=*/false, shares, deadline, &collectives);
  } else if (way == DeviceWay::kNodes) {
    status = MakeHierarchical(own, shares, deadline, &collectives);
  } else if (way == DeviceWay::kShared) {
    status = PeerCollectives::Make(own.gpu, transport_, options_.shared_chunk_bytes, deadline,
                                   &collectives);
  } else {
    status = CudaAwareCollectives::Make(own.gpu, transport_, options_.mpi_chunk_bytes, deadline,
                                        &collectives);
  }
  if (status.ok()) {
    direct_ = std::make_unique<DirectReduction>(own.gpu, std::move(collectives));
    status = direct_->Prepare();
  }
  bool all = false;
  const Status agreed = IsTrueOnAllRanks(transport_, status.ok(), deadline, &all);
  if (!agreed.ok() || all) return agreed;
  *why_not = ": " + (status.ok() ? "another rank could not prepare it" : status.message());
  if (direct_ != nullptr) direct_->Close();
  // A barrier: after it no rank has another's memory open.
  const Status ended = IsTrueOnAllRanks(transport_, true, deadline, &all);
  if (direct_ != nullptr && ended.ok()) direct_->Closed();
  direct_ = nullptr;
  return ended;
}

Status GpuReduction::MakeHierarchical(const GpuMemory& own, bool shares, TimePoint deadline,
                                      std::unique_ptr<DeviceCollectives>* made) {
  std::unique_ptr<DeviceCollectives> inside;
  TFMPI_RETURN_IF_NOT_OK(MakeNccl(own, /*in_node=*/true, shares, deadline, &inside));
  // rail() is not null: kNodes is chosen only if all nodes have the same number of ranks.
  *made =
      std::make_unique<HierarchicalCollectives>(own.gpu, std::move(inside), transport_->topology(),
                                                transport_->rail(), options_.staged_chunk_bytes);
  return Status();
}

Status GpuReduction::MakeNccl(const GpuMemory& own, bool in_node, bool shares, TimePoint deadline,
                              std::unique_ptr<DeviceCollectives>* made) {
  // NCCL gets half of the time, so that the ranks can still agree if it never starts.
  const TimePoint now = Clock::now(), half = now + (deadline - now) / 2;
  if (options_.make) return options_.make(own.gpu, half, made);
  const Topology& topology = transport_->topology();
  NcclOptions options;
  options.rank = in_node ? topology.local_rank : topology.rank;
  options.size = in_node ? topology.local_size : topology.size;
  options.deadline = half;
  options.max_ctas = shares ? kSharedCtas : 0;
  const int first = in_node ? topology.node_leader : 0;
  Status status;
  if (topology.rank == first) status = NewNcclId(nccl_, &options.id);
  TFMPI_RETURN_IF_NOT_OK(
      ShareFirstValue(transport_, first, &options.id, sizeof(options.id), deadline));
  if (status.ok()) status = ContextOf(own.stream, &options.driver, &options.context);
  status = AllRanksOk(transport_, status, deadline);  // else the others would wait for this rank
  return status.ok() ? MakeNcclCollectives(nccl_, options, made) : status;
}

Status GpuReduction::Drain(TimePoint deadline) {
  if (direct_ == nullptr) return Status();
  const Status own = direct_->Drain(deadline);
  if (own.ok()) direct_->Close();
  bool all = false;
  const Status agreed = IsTrueOnAllRanks(transport_, own.ok(), deadline, &all);
  if (!own.ok()) return own;
  if (agreed.ok() && all) direct_->Closed();
  if (!agreed.ok() || all) return agreed;
  return Status(Code::kUnavailable, "a reduction on another rank's GPU has not ended");
}

}  // namespace tfmpi
