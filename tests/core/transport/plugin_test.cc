// The start of a transport library, and its end: with a library that has nobody to talk to.

#include "tensorflow_patches/core/transport/mpi/plugin.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/transport/membership.h"
#include "tensorflow_patches/core/transport/mpi/plugin_transport.h"

namespace tfmpi {
namespace {

// One rank, which believes that there is another node. Whoever asks for agreement gets none.
TfMpiTransport Alone() {
  TfMpiTransport plugin = {};
  plugin.init = [](int32_t, TfMpiTransportInfo* info, char*) {
    info->size = 1;
    return static_cast<int>(kTfMpiOk);
  };
  plugin.split = [](int32_t, TfMpiTransportInfo* info, char*) {
    info->local_size = info->cores = 1;
    info->nodes = 2;
    return static_cast<int>(kTfMpiOk);
  };
  plugin.map_node = [](size_t bytes, size_t, void** memory, int32_t* ranks, char*) {
    static std::vector<std::unique_ptr<void, decltype(&std::free)>> all;
    all.emplace_back(std::aligned_alloc(64, (bytes + 63) / 64 * 64), &std::free);
    *memory = std::memset(all.back().get(), 0, bytes);
    ranks[0] = 0;
    return static_cast<int>(kTfMpiOk);
  };
  plugin.takes_gpu_memory = [] { return 0; };
  plugin.allgather = [](const void* in, void* out, const size_t* bytes, double, char*) {
    std::memcpy(out, in, bytes[0]);
    return static_cast<int>(kTfMpiOk);
  };
  plugin.can_shrink = [](char*) { return static_cast<int>(kTfMpiOk); };
  plugin.has_failed_rank = [] { return 0; };
  plugin.regroup = [](TfMpiTransportInfo* info, char*) {
    info->size = 1;
    return static_cast<int>(kTfMpiOk);
  };
  plugin.agree = [](int32_t, double, int32_t* all, char*) {
    *all = 0;
    return static_cast<int>(kTfMpiOk);
  };
  return plugin;
}

TEST(PluginTest, TheStartSaysWhatItWaitsFor) {
  const TfMpiTransport plugin = Alone();
  std::vector<std::string> waits;
  PluginOptions options;
  options.roll_call.report_wait = [&](const std::string& what) { waits.push_back(what); };
  std::unique_ptr<Transport> transport;
  EXPECT_EQ(StartPluginTransport(&plugin, options, &transport).message(), "");
  const std::vector<std::string> expected = {
      "all ranks to arrive in MPI_Init",        "all ranks to find out which of them share a node",
      "the ranks of this node to share memory", "",
      "all ranks to send their node",           "",
  };
  EXPECT_EQ(waits, expected);
}

TEST(PluginTest, SurvivorsThatNeverAllRegroupGiveUp) {
  const TfMpiTransport plugin = Alone();
  PluginOptions options;
  options.shrink_on_fault = true;
  std::unique_ptr<Transport> transport, next;
  ASSERT_EQ(StartPluginTransport(&plugin, options, &transport).message(), "");
  const Status status = transport->membership()->Regroup(&next);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.message(), "another rank could not regroup");
}

// What MPI writes after a timeout.
std::vector<std::pair<char*, size_t>>& LateWrites() {
  static std::vector<std::pair<char*, size_t>> late;
  return late;
}

int WriteLate(void* out, size_t bytes) {
  LateWrites().emplace_back(static_cast<char*>(out), bytes);
  return kTfMpiTimeout;
}

// Has a rail, which passes every call to the library.
TfMpiTransport AloneWithRail() {
  TfMpiTransport plugin = Alone();
  plugin.split = [](int32_t, TfMpiTransportInfo* info, char*) {
    info->local_size = info->cores = info->has_rails = 1;
    info->nodes = 2;
    return static_cast<int>(kTfMpiOk);
  };
  return plugin;
}

TEST(PluginTest, AfterAFailureASmallResultIsTheTransports) {
  TfMpiTransport plugin = AloneWithRail();
  std::unique_ptr<Transport> transport;
  ASSERT_EQ(StartPluginTransport(&plugin, PluginOptions(), &transport).message(), "");
  Transport& rail = *transport->rail();
  plugin.allreduce = [](int32_t, const void*, void* out, const TfMpiReduction* terms, double,
                        char*) { return WriteLate(out, terms->count * sizeof(float)); };
  plugin.allgather = [](const void*, void* out, const size_t* bytes, double, char*) {
    return WriteLate(out, bytes[0]);
  };
  plugin.broadcast = [](void* data, size_t bytes, int32_t, double, char*) {
    return WriteLate(data, bytes);
  };
  std::vector<float> in(8, 1), out(8, 1);
  const size_t bytes = 8 * sizeof(float);
  const TimePoint soon = Clock::now() + std::chrono::seconds(5);
  const Code late = Code::kDeadlineExceeded;
  const Reduction sum = {8, DataType::kFloat32, ReduceOp::kSum, 1};
  EXPECT_EQ(rail.Allreduce(in.data(), out.data(), sum, soon).code(), late);
  EXPECT_EQ(rail.Allgather(in.data(), out.data(), {bytes}, soon).code(), late);
  EXPECT_EQ(rail.Broadcast(out.data(), bytes, 0, soon).code(), late);
  ASSERT_EQ(LateWrites().size(), 3u);
  for (const auto& [memory, size] : LateWrites()) std::memset(memory, 7, size);
  EXPECT_EQ(out, in);
}

TEST(PluginTest, AfterAFailureTheMemoryOfAMessageIsNotReused) {
  TfMpiTransport plugin = AloneWithRail();
  std::unique_ptr<Transport> transport;
  ASSERT_EQ(StartPluginTransport(&plugin, PluginOptions(), &transport).message(), "");
  plugin.probe = [](int32_t* source, size_t* bytes, char*) {
    *source = 0;
    *bytes = 500;
    return static_cast<int>(kTfMpiOk);
  };
  plugin.receive = [](void* data, size_t bytes, char*) { return WriteLate(data, bytes); };
  std::vector<ControlMessage> inbox;
  EXPECT_EQ(transport->rail()->Receive(&inbox).code(), Code::kDeadlineExceeded);
  const std::string next(500, 'n');  // malloc reuses what was freed last
  std::memset(LateWrites().back().first, 7, LateWrites().back().second);
  EXPECT_EQ(next, std::string(500, 'n'));
}

}  // namespace
}  // namespace tfmpi
