// For loops that poll a word which another core writes.

#ifndef TFMPI_CORE_CPU_RELAX_H_
#define TFMPI_CORE_CPU_RELAX_H_

namespace tfmpi {

// Some tens of cycles, in which the other thread of this core may go on.
inline void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace tfmpi

#endif  // TFMPI_CORE_CPU_RELAX_H_
