// Copies past the caches of this core: whole lines go to memory, without being read first.
//
// For what this core has no use for soon. Pure functions, any thread.

#ifndef TFMPI_CORE_CPU_STREAM_COPY_H_
#define TFMPI_CORE_CPU_STREAM_COPY_H_

#include <cstddef>

namespace tfmpi {

// As memcpy. Past the caches go the whole lines of 64 bytes, if `to` begins with one; what is left
// over goes through them. Other threads see it only after EndStreams on this one.
void StreamCopy(void* to, const void* from, size_t bytes);
void EndStreams();

}  // namespace tfmpi

#endif  // TFMPI_CORE_CPU_STREAM_COPY_H_
