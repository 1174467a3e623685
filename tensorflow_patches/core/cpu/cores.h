// How many cores ranks may use: who has fewer cores than ranks must not spin. The one place that
// counts them.
//
// A machine's cores say little: the affinity mask says which of them a process may run on
// (mpirun's binding, taskset, a cpuset), the cgroup's quota how much of their time it gets
// (containers).

#ifndef TFMPI_CORE_CPU_CORES_H_
#define TFMPI_CORE_CPU_CORES_H_

#include <sched.h>

#include <string>

namespace tfmpi {

// The calling thread's affinity mask; all of the machine's cores where it cannot be read (a kernel
// for more cores than a cpu_set_t holds).
cpu_set_t AllowedCores();

// Whole cores' worth of time that the cgroups of this process give it, at least 1; INT_MAX if none
// sets a limit. `root` stands before /proc and /sys, for tests.
int QuotaCores(const std::string& root = "");

// What processes can use together: `mask` is the union of theirs, `quota` the least.
int CountCores(const cpu_set_t& mask, int quota);

}  // namespace tfmpi

#endif  // TFMPI_CORE_CPU_CORES_H_
