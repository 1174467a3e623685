#include "tensorflow_patches/core/cpu/cores.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace tfmpi {
namespace {

// Where the cgroup hierarchy that limits CPU time may be mounted: version 2, alone or beside
// version 1, or version 1 under either of its usual names.
constexpr const char* kMounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpu",
                                   "/sys/fs/cgroup/cpu,cpuacct"};

// The quota of the cgroup in this folder, in whole cores; INT_MAX without a cgroup or a limit.
int QuotaOf(const std::string& folder) {
  std::string quota;
  double period = 0;
  if (!(std::ifstream(folder + "/cpu.max") >> quota >> period)) {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  const double time = std::strtod(quota.c_str(), nullptr);  // 0 for "max", -1 for none
  if (time <= 0 || period <= 0 || time / period >= INT_MAX) return INT_MAX;
  return std::max(1, static_cast<int>(time / period));
}

// The smallest quota of the cgroup at `path` and of those above it, whose limits apply to it, too.
int SmallestQuota(const std::string& mount, std::string path) {
  int least = QuotaOf(mount);
  for (; path.size() > 1; path.resize(path.rfind('/'))) {
    least = std::min(least, QuotaOf(mount + path));
  }
  return least;
}

// Whether a hierarchy with these controllers, separated by commas, may limit CPU time.
bool LimitsCpuTime(const std::string& controllers) {
  std::istringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == "cpu") return true;
  }
  return controllers.empty();  // version 2: one hierarchy for all controllers
}

}  // namespace

cpu_set_t AllowedCores() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) return mask;
  CPU_ZERO(&mask);
  const long cores = std::min<long>(sysconf(_SC_NPROCESSORS_ONLN), CPU_SETSIZE);
  for (long core = 0; core < std::max(cores, 1L); ++core) CPU_SET(core, &mask);
  return mask;
}

int QuotaCores(const std::string& root) {
  int least = INT_MAX;
  std::ifstream groups(root + "/proc/self/cgroup");  // lines of number:controllers:path
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    if (!LimitsCpuTime(line.substr(first + 1, second - first - 1))) continue;
    for (const char* mount : kMounts) {
      least = std::min(least, SmallestQuota(root + mount, line.substr(second + 1)));
    }
  }
  return least;
}

int CountCores(const cpu_set_t& mask, int quota) { return std::min(CPU_COUNT(&mask), quota); }

}  // namespace tfmpi
