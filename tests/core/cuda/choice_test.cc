// When GPUs reduce by NCCL, and what people are told.

#include "tensorflow_patches/core/device/choice.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tfmpi {
namespace {

constexpr int kNew = 23203;
constexpr int kOld = 22803;

// The reason, behind "NCCL: ", "nodes: ", "shared: ", "MPI: ", "staged: " or "error: ".
std::string Choose(const std::vector<DeviceFacts>& ranks,
                   DeviceTransport wanted = DeviceTransport::kAuto,
                   const BetweenNodes& between = {}) {
  DeviceChoice choice;
  const Status status = ChooseDeviceTransport(ranks, wanted, between, &choice);
  if (!status.ok()) return "error: " + status.message();
  const char* const way = choice.way == DeviceWay::kNccl     ? "NCCL: "
                          : choice.way == DeviceWay::kNodes  ? "nodes: "
                          : choice.way == DeviceWay::kShared ? "shared: "
                          : choice.way == DeviceWay::kMpi    ? "MPI: "
                                                             : "staged: ";
  return way + choice.reason;
}

TEST(ChoiceTest, ARankForEachGpu) {
  EXPECT_EQ(Choose({{"a", kOld, false}, {"b", kOld, false}}), "NCCL: NCCL 2.28.3 on all ranks");
  EXPECT_EQ(Choose({{"a", kOld, false}, {"b", kOld, false}}, DeviceTransport::kNccl),
            "NCCL: NCCL 2.28.3 on all ranks");
  EXPECT_EQ(Choose({{"a", kOld, false}, {"b", kOld, false}}, DeviceTransport::kStaged),
            "staged: staged through the host: TF_MPI_GPU_TRANSPORT=staged");
}

TEST(ChoiceTest, OneRankAlone) {
  EXPECT_EQ(Choose({{"a", 0, false}}), "staged: one rank alone exchanges nothing");
  EXPECT_EQ(Choose({{"a", 0, false}}, DeviceTransport::kNccl),
            "staged: one rank alone exchanges nothing");
}

TEST(ChoiceTest, ARankWithoutNcclOrWithAnother) {
  EXPECT_EQ(
      Choose({{"a", kNew, false}, {"b", 0, false}}),
      "staged: staged through the host, because rank 1 finds no NCCL, and the MPI of rank 0 does "
      "not report that it is CUDA-aware");
  EXPECT_EQ(
      Choose({{"a", kNew, false}, {"b", kOld, false}}),
      "staged: staged through the host, because rank 0 has NCCL 2.32.3, rank 1 has 2.28.3, and "
      "the MPI of rank 0 does not report that it is CUDA-aware");
  EXPECT_EQ(Choose({{"a", kNew, false}, {"b", 0, false}}, DeviceTransport::kNccl),
            "error: TF_MPI_GPU_TRANSPORT=nccl, but rank 1 finds no NCCL. "
            "TF_MPI_GPU_TRANSPORT=auto selects another way");
}

TEST(ChoiceTest, RanksThatShareAGpu) {
  EXPECT_EQ(
      Choose({{"c", kOld, true}, {"a", kOld, true}, {"a", kOld, true}}),
      "staged: staged through the host, because ranks 1 and 2 share a, and NCCL 2.28.3 needs a "
      "GPU for each (2.30 and newer do not), and the MPI of rank 0 does not report that it is "
      "CUDA-aware");
  EXPECT_EQ(Choose({{"a", kNew, true}, {"a", kNew, false}}, DeviceTransport::kNccl),
            "error: TF_MPI_GPU_TRANSPORT=nccl, but ranks 0 and 1 share a, which NCCL 2.32.3 can "
            "only do with NCCL_MULTI_RANK_GPU_ENABLE=1 (experimental) on all of them. "
            "TF_MPI_GPU_TRANSPORT=auto selects another way");
  EXPECT_EQ(
      Choose({{"a", 23000, true}, {"b", 23000, true}, {"b", 23000, true}, {"a", 23000, true}}),
      "NCCL: NCCL 2.30.0 on all ranks");
  // Who shares no GPU need not say that it may.
  EXPECT_EQ(Choose({{"a", kNew, true}, {"a", kNew, true}, {"b", kNew, false}}),
            "NCCL: NCCL 2.32.3 on all ranks");
  EXPECT_EQ(
      Choose({{"a", kNew, true}, {"a", kNew, true}, {"a", kNew, true}, {"b", kNew, true}}),
      "staged: staged through the host, because 3 ranks share a, and NCCL 2.32.3 supports 2, and "
      "the MPI of rank 0 does not report that it is CUDA-aware");
}

TEST(ChoiceTest, OneGpuOfAll) {
  constexpr DeviceTransport kIpc = DeviceTransport::kIpc;
  const std::vector<DeviceFacts> two = {{"a", 0, false}, {"a", 0, false}};
  EXPECT_EQ(Choose(two), "shared: on a, which all ranks share");
  EXPECT_EQ(Choose(two, kIpc), "shared: on a, which all ranks share");
  EXPECT_EQ(Choose(two, DeviceTransport::kStaged),
            "staged: staged through the host: TF_MPI_GPU_TRANSPORT=staged");
  // Also where NCCL could: it is faster. But who asks for NCCL gets it.
  EXPECT_EQ(Choose({{"a", kNew, true}, {"a", kNew, true}}), "shared: on a, which all ranks share");
  EXPECT_EQ(Choose({{"a", kNew, true}, {"a", kNew, true}}, DeviceTransport::kNccl),
            "NCCL: NCCL 2.32.3 on all ranks");
  EXPECT_EQ(Choose({{"a", kNew, true}, {"b", kNew, true}}, kIpc),
            "error: TF_MPI_GPU_TRANSPORT=ipc, but rank 0 has a, rank 1 has b. "
            "TF_MPI_GPU_TRANSPORT=auto selects another way");
  EXPECT_EQ(Choose(std::vector<DeviceFacts>(9, {"a", 0, false}), kIpc),
            "error: TF_MPI_GPU_TRANSPORT=ipc, but 9 ranks share a, and at most 8 can do so. "
            "TF_MPI_GPU_TRANSPORT=auto selects another way");
}

TEST(ChoiceTest, AnMpiThatTakesMemoryOfGpus) {
  constexpr DeviceTransport kMpi = DeviceTransport::kMpi;
  const std::vector<DeviceFacts> two = {{"a", kOld, false, true}, {"b", kOld, false, true}};
  EXPECT_EQ(Choose(two), "NCCL: NCCL 2.28.3 on all ranks");
  EXPECT_EQ(Choose(two, kMpi), "MPI: by CUDA-aware MPI on all ranks");
  EXPECT_EQ(Choose(two, DeviceTransport::kStaged),
            "staged: staged through the host: TF_MPI_GPU_TRANSPORT=staged");
  EXPECT_EQ(Choose({{"a", 0, false, true}, {"b", 0, false, true}}),
            "MPI: by CUDA-aware MPI on all ranks, because rank 0 finds no NCCL");
  // Four ranks on two GPUs, which NCCL 2.28 refuses.
  EXPECT_EQ(
      Choose({{"a", kOld, false, true},
              {"b", kOld, false, true},
              {"a", kOld, false, true},
              {"b", kOld, false, true}}),
      "MPI: by CUDA-aware MPI on all ranks, because ranks 0 and 2 share a, and NCCL 2.28.3 needs "
      "a GPU for each (2.30 and newer do not)");
  // On one GPU it would be a way around.
  const std::vector<DeviceFacts> one = {{"a", 0, false, true}, {"a", 0, false, true}};
  EXPECT_EQ(Choose(one), "shared: on a, which all ranks share");
  EXPECT_EQ(Choose(one, kMpi), "MPI: by CUDA-aware MPI on all ranks");
  // Whoever asks for MPI gets what it can do.
  EXPECT_EQ(Choose({{"a", kOld, false, true}, {"b", kOld, false, false}}, kMpi),
            "staged: staged through the host, because the MPI of rank 1 does not report that it is "
            "CUDA-aware");
  EXPECT_EQ(Choose(std::vector<DeviceFacts>(129, {"a", 0, false, true}), kMpi),
            "staged: staged through the host, because 129 ranks are more than the 128 whose data a "
            "GPU can sum");
}

TEST(ChoiceTest, SeveralNodes) {
  constexpr DeviceTransport kAuto = DeviceTransport::kAuto;
  constexpr DeviceTransport kNccl = DeviceTransport::kNccl;
  const BetweenNodes by_shape = {true, false}, rounds = {false, true}, both = {true, true};
  const auto ranks_of = [](const std::vector<int>& nodes) {
    std::vector<DeviceFacts> ranks;
    for (size_t rank = 0; rank < nodes.size(); ++rank) {
      ranks.push_back({"gpu " + std::to_string(rank), kNew, false, false, nodes[rank]});
    }
    return ranks;
  };
  const std::string all = "NCCL: NCCL 2.32.3 on all ranks";
  const std::string inside = "nodes: NCCL 2.32.3 inside each of 2 nodes of 2 ranks, MPI between ";
  // In turns: a node's ranks need not follow one another.
  const std::vector<DeviceFacts> even = ranks_of({0, 1, 0, 1});
  EXPECT_EQ(Choose(even), all);
  EXPECT_EQ(Choose(even, kAuto, by_shape), inside + "them: TF_MPI_TOPOLOGY");
  EXPECT_EQ(Choose(even, kNccl, by_shape), inside + "them: TF_MPI_TOPOLOGY");
  EXPECT_EQ(Choose(even, kAuto, rounds), inside + "them: TF_MPI_COMPRESSION rounds there");
  EXPECT_EQ(Choose(even, kAuto, both), inside + "them: TF_MPI_COMPRESSION rounds there");
  EXPECT_EQ(Choose(even, DeviceTransport::kStaged, both),
            "staged: staged through the host: TF_MPI_GPU_TRANSPORT=staged");
  EXPECT_EQ(Choose(ranks_of({0, 0, 0}), kAuto, both), all) << "one node";

  const std::string uneven =
      all +
      ", not inside nodes with MPI between them, because the nodes have different numbers of ranks";
  EXPECT_EQ(Choose(ranks_of({0, 1, 1})), all);
  EXPECT_EQ(Choose(ranks_of({0, 1, 1}), kNccl, by_shape), uneven);
  EXPECT_EQ(Choose(ranks_of({0, 0, 2}), kAuto, rounds),
            uneven + "; TF_MPI_COMPRESSION has no effect");

  const std::vector<DeviceFacts> one_each = ranks_of({0, 1, 2});
  EXPECT_EQ(Choose(one_each, kAuto, by_shape), all);
  EXPECT_EQ(Choose(one_each, kAuto, rounds),
            "staged: staged through the host, because TF_MPI_COMPRESSION rounds data between "
            "nodes, each has one rank, and NCCL does not round");
  EXPECT_EQ(
      Choose(one_each, kNccl, rounds),
      "error: TF_MPI_GPU_TRANSPORT=nccl, but TF_MPI_COMPRESSION rounds data between "
      "nodes, which NCCL cannot do, and each node has one rank. Set TF_MPI_GPU_TRANSPORT=auto to "
      "stage through the host");

  // Who cannot use NCCL stages as before; on one GPU there are no nodes.
  std::vector<DeviceFacts> without = even;
  without[2].nccl_version = 0;
  EXPECT_EQ(Choose(without, kAuto, by_shape),
            "staged: staged through the host, because rank 2 finds no NCCL, and the MPI of rank 0 "
            "does not "
            "report that it is CUDA-aware");
  const std::vector<DeviceFacts> shared = {{"a", kNew, true, false, 0},
                                           {"a", kNew, true, false, 1}};
  EXPECT_EQ(Choose(shared, kAuto, by_shape), "shared: on a, which all ranks share");
  EXPECT_EQ(Choose(shared, kAuto, rounds),
            "shared: on a, which all ranks share; nothing leaves it, so TF_MPI_COMPRESSION has no "
            "effect");

  // Nor does a CUDA-aware MPI round: where something can, it is staged.
  std::vector<DeviceFacts> aware = even;
  for (DeviceFacts& rank : aware) rank.cuda_aware = true;
  constexpr DeviceTransport kMpi = DeviceTransport::kMpi;
  EXPECT_EQ(Choose(aware, kMpi, by_shape), "MPI: by CUDA-aware MPI on all ranks");
  EXPECT_EQ(Choose(aware, kMpi, rounds),
            "staged: staged through the host, because TF_MPI_COMPRESSION rounds data between "
            "nodes, and CUDA-aware MPI does not round");
  aware[1].nccl_version = 0;
  EXPECT_EQ(Choose(aware, kAuto, rounds),
            "staged: staged through the host, because TF_MPI_COMPRESSION rounds data between "
            "nodes, and CUDA-aware MPI does not round, and rank 1 finds no NCCL");
  aware.pop_back();
  EXPECT_EQ(
      Choose(aware, kMpi, rounds),
      "MPI: by CUDA-aware MPI on all ranks; TF_MPI_COMPRESSION has no effect, because the nodes "
      "have different numbers of ranks");
}

}  // namespace
}  // namespace tfmpi
