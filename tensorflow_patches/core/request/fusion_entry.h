// One item of a response, as this rank executes it.

#ifndef TFMPI_CORE_REQUEST_FUSION_ENTRY_H_
#define TFMPI_CORE_REQUEST_FUSION_ENTRY_H_

#include <vector>

#include "tensorflow_patches/core/request/request.h"

namespace tfmpi {

// `request` is null on a rank that does not take part: it contributes nothing (the op's neutral
// element, no rows) and drops the result. Both outlive the execution of the response.
struct FusionEntry {
  const Signature& signature;
  Request* request = nullptr;
};

inline size_t Count(const Signature& signature) {
  return static_cast<size_t>(NumElements(signature.shape));
}

// On the wire, averages and plain sums are sums.
inline ReduceOp WireOp(ReduceOp op) {
  return op == ReduceOp::kAverage || op == ReduceOp::kPlainSum ? ReduceOp::kSum : op;
}

// Whether it may travel between nodes in 16 bits (Reduction::rounds). A sum may need all of its
// digits, as a count does, or exceed the range of float16; a bfloat16 may fall below that range.
inline bool MayRound(const Signature& signature) {
  return IsAverage(signature) && signature.dtype == DataType::kFloat32;
}

// The signature that stands for all entries of an allreduce, which have the same reduction and wire
// type. They are rounded only if all of them may be.
inline const Signature& Common(const std::vector<FusionEntry>& entries) {
  for (const FusionEntry& entry : entries) {
    if (!MayRound(entry.signature)) return entry.signature;
  }
  return entries.front().signature;
}

}  // namespace tfmpi

#endif  // TFMPI_CORE_REQUEST_FUSION_ENTRY_H_
