// Element kernels on either side of the transport: pack into wire form, unpack with the average's
// scale.
//
// Pure functions, any thread; buffers do not overlap except where in == out is allowed.

#ifndef TFMPI_CORE_CPU_REDUCE_H_
#define TFMPI_CORE_CPU_REDUCE_H_

#include <cstddef>
#include <cstdint>

#include "tensorflow_patches/core/base/types.h"

namespace tfmpi {

// True when the wire form of `type` is its memory, so that it can be reduced where it lies.
bool IsWireForm(DataType type);

// `count` elements of `type` to wire form, each times `scale`: 1 leaves every bit as it is, 0 gives
// zeros whatever `in` holds. Half and bfloat16 widen to float32 exactly, then are multiplied. Where
// the wire form is the type's memory, `in` may be `wire`. Integers know no scale but 0 and 1.
void Pack(DataType type, const void* in, void* wire, size_t count, double scale);

// `count` elements from wire form, each times `scale` (1 leaves every bit as it is). The product is
// taken in the wire type; half and bfloat16 are rounded once, to nearest even.
void Unpack(DataType type, const void* wire, void* out, size_t count, double scale);

// In place: `count` elements of `type`, in wire form, times `scale`.
void Scale(DataType type, void* data, size_t count, double scale);

// A sum, minimum, maximum or product over ranks, of `count` elements of a wire type, or of float16
// or bfloat16, which are summed in float32 and rounded once. The result is multiplied by `scale`,
// which is 1 for integers.
struct Reduction {
  size_t count = 0;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double scale = 1;
};

// `count` elements (not reduction.count) of each of the `n` sources, in their order, into `out`
// and, if not null, into `copy`. A source may be `out`.
void Reduce(const Reduction& reduction, const void* const* sources, int n, size_t count, void* out,
            void* copy);

// `count` elements of a wire type, or of one that is its own wire form, that change nothing in such
// a reduction: zeros of a sum or average.
void FillNeutral(DataType type, ReduceOp op, void* data, size_t count);

// A 64-bit hash of the bytes, for comparison between ranks; never 0, except that data of zeros
// gives 0.
uint64_t Fingerprint(const void* data, size_t bytes);

}  // namespace tfmpi

#endif  // TFMPI_CORE_CPU_REDUCE_H_
