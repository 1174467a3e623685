// How many cores the ranks may use: ranks must not spin if there are fewer cores than ranks. Here a
// core is what Linux calls a CPU, so each hardware thread counts.
//
// The machine may have more: the affinity mask says on which cores a process may run (mpirun's
// binding, taskset, a cpuset), and the cgroup's quota limits the time that it gets on them
// (containers).

#ifndef TFMPI_CORE_CPU_CORES_H_
#define TFMPI_CORE_CPU_CORES_H_

#include <sched.h>

#include <string>

namespace tfmpi {

// The calling thread's affinity mask; all cores of the machine if it cannot be read (on a kernel
// for more cores than a cpu_set_t can hold).
cpu_set_t AllowedCores();

// The quota of this process's cgroups in whole cores, at least 1; INT_MAX if none sets a limit.
// Tests pass a `root` that stands for /.
int QuotaCores(const std::string& root = "");

// The number of cores that processes can use together: `mask` is the union of their masks, `quota`
// the smallest of their quotas.
int CountCores(const cpu_set_t& mask, int quota);

}  // namespace tfmpi

#endif  // TFMPI_CORE_CPU_CORES_H_
