// Cores by affinity and by files that look like the kernel's.

#include "tensorflow_patches/core/cpu/cores.h"

#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace tfmpi {
namespace {

class CoresTest : public ::testing::Test {
 protected:
  CoresTest() {
    std::string name = ::testing::TempDir() + "cores.XXXXXX";
    root_ = mkdtemp(name.data());
  }
  ~CoresTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path full = root_ + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text << "\n";
  }
  int Quota() const { return QuotaCores(root_); }

  std::string root_;
};

TEST_F(CoresTest, NoCgroupIsNoLimit) { EXPECT_EQ(Quota(), INT_MAX); }

TEST_F(CoresTest, AContainersOwnLimitInVersion2) {
  Write("/proc/self/cgroup", "0::/");
  Write("/sys/fs/cgroup/cpu.max", "200000 100000");
  EXPECT_EQ(Quota(), 2);
  Write("/sys/fs/cgroup/cpu.max", "max 100000");
  EXPECT_EQ(Quota(), INT_MAX);
}

TEST_F(CoresTest, AnUpperGroupsLimitHoldsBelowIt) {
  Write("/proc/self/cgroup", "0::/jobs/job1/step0");
  Write("/sys/fs/cgroup/jobs/job1/step0/cpu.max", "max 100000");
  Write("/sys/fs/cgroup/jobs/job1/cpu.max", "300000 100000");
  Write("/sys/fs/cgroup/jobs/cpu.max", "1600000 100000");
  EXPECT_EQ(Quota(), 3);
}

TEST_F(CoresTest, Version1ByTheHierarchyThatLimitsTime) {
  Write("/proc/self/cgroup", "5:cpuset:/\n4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc");
  Write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "400000");
  Write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000");
  EXPECT_EQ(Quota(), 4);
  Write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1");
  EXPECT_EQ(Quota(), INT_MAX);
}

// Inside a container the path is the host's, but the mount is the container's own group.
TEST_F(CoresTest, Version1InAContainer) {
  Write("/proc/self/cgroup", "4:cpu,cpuacct:/docker/abc");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(Quota(), 2);
}

TEST_F(CoresTest, LessThanACoreIsOne) {
  Write("/proc/self/cgroup", "0::/");
  Write("/sys/fs/cgroup/cpu.max", "50000 100000");
  EXPECT_EQ(Quota(), 1);
}

TEST_F(CoresTest, TheMaskIsTheThreads) {
  const cpu_set_t before = AllowedCores();
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(CountCores(AllowedCores(), INT_MAX), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(CountCores(AllowedCores(), INT_MAX), CPU_COUNT(&before));
}

TEST_F(CoresTest, TheQuotaLimitsTheMask) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (int core : {0, 3, 7}) CPU_SET(core, &mask);
  EXPECT_EQ(CountCores(mask, INT_MAX), 3);
  EXPECT_EQ(CountCores(mask, 2), 2);
}

}  // namespace
}  // namespace tfmpi
