// Copies that bypass this core's caches: whole cache lines are written to memory without being read
// first.
//
// For data that this core will not need soon. Pure functions, any thread.

#ifndef TFMPI_CORE_CPU_STREAM_COPY_H_
#define TFMPI_CORE_CPU_STREAM_COPY_H_

#include <cstddef>

namespace tfmpi {

// Like memcpy. If `to` begins on a cache line (64 bytes), whole lines bypass the caches; the rest
// goes through them. Other threads may read the copy only after this thread has called EndStreams.
void StreamCopy(void* to, const void* from, size_t bytes);
void EndStreams();

}  // namespace tfmpi

#endif  // TFMPI_CORE_CPU_STREAM_COPY_H_
