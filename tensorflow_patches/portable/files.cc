// Functions for shared memory, which glibc 2.34 has moved from librt to libc; and fstat: before
// 2.33 libc exports only __fxstat.

#include "tensorflow_patches/portable/old_version.h"

struct stat;
using mode_type = unsigned int;

TFMPI_OLD_VERSION(int, shm_open, (const char* name, int flags, mode_type mode), "GLIBC_2.2.5") {
  return old_shm_open(name, flags, mode);
}

TFMPI_OLD_VERSION(int, shm_unlink, (const char* name), "GLIBC_2.2.5") {
  return old_shm_unlink(name);
}

extern "C" int old_fxstat(int version, int file, struct stat* status) noexcept;
__asm__(".symver old_fxstat,__fxstat@GLIBC_2.2.5");

extern "C" int fstat(int file, struct stat* status) noexcept {
  constexpr int kLinuxStat = 1;  // the layout of struct stat that this code is compiled with
  return old_fxstat(kLinuxStat, file, status);
}
