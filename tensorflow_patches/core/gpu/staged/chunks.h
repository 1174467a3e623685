// How the tensors of a response are split into chunks of limited size, the same on all ranks.
//
// Pure functions of signatures: a rank that has joined, without tensors, splits like the others.

#ifndef TFMPI_CORE_GPU_STAGED_CHUNKS_H_
#define TFMPI_CORE_GPU_STAGED_CHUNKS_H_

#include <cstddef>
#include <vector>

#include "tensorflow_patches/core/request/fusion_entry.h"

namespace tfmpi {

// Consecutive elements of one tensor: all of it or a part.
struct Stretch {
  size_t entry = 0;  // its index in the response
  DataType type = DataType::kFloat32;
  size_t count = 0;        // elements
  size_t padding = 0;      // bytes after them on the wire
  size_t wire_offset = 0;  // its offset in the chunk, in bytes
  // Null if this rank has nothing to send, or receives nothing.
  const char* input = nullptr;
  char* output = nullptr;
  // The padding follows the output, too: Request::output receives several tensors in wire form.
  bool padded_output = false;

  size_t bytes() const { return count * SizeOf(type); }
};

struct Chunk {
  std::vector<Stretch> stretches;
  size_t bytes = 0;  // on the wire
};

// For an allreduce or a broadcast. A chunk has at most `max_stretches` stretches and `limit`
// bytes, not counting padding of less than 64 bytes at its end. `limit` must have room for an
// element in wire form.
std::vector<Chunk> CutIntoChunks(const std::vector<FusionEntry>& entries, size_t limit,
                                 size_t max_stretches);

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_STAGED_CHUNKS_H_
