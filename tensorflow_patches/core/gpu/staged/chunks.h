// How the tensors of a response are cut into chunks of bounded size, alike on all ranks.
//
// Pure functions of signatures: a rank that has joined, and has no tensors, cuts as the others do.

#ifndef TFMPI_CORE_GPU_STAGED_CHUNKS_H_
#define TFMPI_CORE_GPU_STAGED_CHUNKS_H_

#include <cstddef>
#include <vector>

#include "tensorflow_patches/core/request/fusion_entry.h"

namespace tfmpi {

// A run of elements of one tensor, whole or a part of it.
struct Stretch {
  size_t entry = 0;  // number in the response
  DataType type = DataType::kFloat32;
  size_t count = 0;    // elements
  size_t padding = 0;  // bytes on the wire, after them
  size_t wire = 0;     // where it begins in the chunk, in bytes
  // Null on a rank without a request.
  const char* input = nullptr;
  char* output = nullptr;
  // The output's padding is this request's memory too (Request::output of several tensors).
  bool padded_output = false;

  size_t bytes() const { return count * SizeOf(type); }
};

struct Chunk {
  std::vector<Stretch> stretches;
  size_t bytes = 0;  // on the wire
};

// Of an allreduce or a broadcast. No chunk has more than `limit` bytes, which is more than any
// element has, but for padding at its end, of less than 64 bytes; nor more than so many stretches.
std::vector<Chunk> CutIntoChunks(const std::vector<FusionEntry>& entries, size_t limit,
                                 size_t most_stretches);

}  // namespace tfmpi

#endif  // TFMPI_CORE_GPU_STAGED_CHUNKS_H_
