// Memory that a step frees is memory that the next step asks for.
//
// glibc gives large blocks back to the kernel when they are freed, and gets them anew, page by page
// and full of zeros, for the next step: for 100 MB of gradients that takes longer than averaging
// them.

#ifndef TFMPI_CORE_FREED_MEMORY_H_
#define TFMPI_CORE_FREED_MEMORY_H_

namespace tfmpi {

// From now on, malloc keeps what is freed for the process: blocks of less than 2 GB, and at the end
// of its heap as much. Any thread, once; with another allocator than glibc's it has no effect.
void KeepFreedMemory();

}  // namespace tfmpi

#endif  // TFMPI_CORE_FREED_MEMORY_H_
