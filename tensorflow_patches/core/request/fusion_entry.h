// One item of a response, as this rank executes it.

#ifndef TFMPI_CORE_REQUEST_FUSION_ENTRY_H_
#define TFMPI_CORE_REQUEST_FUSION_ENTRY_H_

#include "tensorflow_patches/core/request/request.h"

namespace tfmpi {

// One request: a tensor, or several. `request` is null on a rank that does not take part:
// it contributes nothing (the op's neutral element, no rows) and drops the result. Signature and
// request outlive the execution of the response.
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

}  // namespace tfmpi

#endif  // TFMPI_CORE_REQUEST_FUSION_ENTRY_H_
