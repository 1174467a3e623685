// That the simulated GPU finds a missing wait, which a real one would only punish now and then.

#include "tests/core/device/simulated_gpu.h"

#include <cstdint>
#include <mutex>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "tests/core/device/simulated_gpu_fixture.h"

namespace tfmpi {
namespace {

using Schedule = SimulatedGpu::Schedule;

TEST_F(SimulatedGpuTest, AStreamThatWaitsSeesWhatTheOtherDid) {
  for (const Schedule schedule : {Schedule::kLate, Schedule::kRandom}) {
    SimulatedGpu::Options options;
    options.schedule = schedule;
    Device device(options);
    for (int step = 1; step < 30; ++step) {
      device.Fill(step, device.first);
      device.Record(device.first);
      device.Wait(device.second);
      device.CopyToHost(device.second);
      device.Record(device.second);
      device.gpu.Await(device.event);
      EXPECT_EQ(device.pinned[0], step);
      EXPECT_EQ(device.pinned[kCount - 1], step);
    }
  }
}

TEST_F(SimulatedGpuTest, AStreamThatDoesNotWaitSeesOldData) {
  ExpectRace([] {
    Device device;
    device.Fill(1, device.first);
    device.simulated().Finish(device.first);
    device.Fill(2, device.first);
    device.Record(device.first);
    device.CopyToHost(device.second);  // without a wait
    device.Record(device.second);
    device.gpu.Await(device.event);
    EXPECT_EQ(device.pinned[0], 1);
  });
}

// What the event stood for when it was waited for counts, and nothing later.
TEST_F(SimulatedGpuTest, AnEventThatIsRecordedTooLateIsNotWaitedFor) {
  ExpectRace([] {
    Device device;
    device.Fill(1, device.first);
    device.Record(device.first);
    device.Fill(2, device.first);
    device.Wait(device.second);
    device.Record(device.first);
    device.CopyToHost(device.second);
    device.Record(device.second);
    device.gpu.Await(device.event);
    EXPECT_EQ(device.pinned[0], 1);
  });
}

TEST_F(SimulatedGpuTest, AHostThatDoesNotAskSeesOldData) {
  ExpectRace([] {
    Device device;
    device.SetPinned(1);
    device.Fill(2, device.first);
    device.CopyToHost(device.first);
    device.Record(device.first);
    EXPECT_EQ(device.pinned[0], 1);
  });
}

TEST_F(SimulatedGpuTest, AHostThatAsksOnceAndDoesNotListenSeesOldData) {
  ExpectRace([] {
    Device device;
    device.SetPinned(1);
    device.simulated().Hold(device.first);
    device.CopyToGpu(device.second);
    device.Record(device.second);
    device.gpu.Await(device.event);
    device.Fill(2, device.first);
    device.CopyToHost(device.first);
    device.Record(device.first);
    bool ended = true;
    EXPECT_TRUE(device.gpu->Query(device.event, &ended).ok());
    EXPECT_FALSE(ended);
    EXPECT_EQ(device.pinned[0], 1);
    device.simulated().LetGo(device.first);
  });
}

TEST_F(SimulatedGpuTest, AHostThatWritesTooEarlySpoilsWhatIsCopied) {
  ExpectRace([] {
    Device device;
    device.SetPinned(1);
    device.CopyToGpu(device.first);
    device.SetPinned(2);  // before the copy has ended
    device.CopyToHost(device.first);
    device.Record(device.first);
    device.gpu.Await(device.event);
    EXPECT_EQ(device.pinned[0], 2);
  });
}

TEST_F(SimulatedGpuTest, StreamsGoInAnyOrderAndOneStreamInItsOwn) {
  std::set<std::string> orders;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SimulatedGpu::Options options;
    options.seed = seed;
    Device device(options);
    std::mutex mutex;
    std::string order;
    const auto say = [&](const char* what) {
      return [&mutex, &order, what] {
        std::lock_guard<std::mutex> lock(mutex);
        order += what;
      };
    };
    device.simulated().Launch(device.first, say("a"));
    device.simulated().Launch(device.first, say("b"));
    device.simulated().Launch(device.second, say("x"));
    device.simulated().Finish(device.first);
    device.simulated().Finish(device.second);
    EXPECT_LT(order.find('a'), order.find('b'));
    orders.insert(order);
  }
  EXPECT_EQ(orders, (std::set<std::string>{"abx", "axb", "xab"}));
}

}  // namespace
}  // namespace tfmpi
