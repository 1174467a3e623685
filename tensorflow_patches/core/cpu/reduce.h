// Kernels for elements in host memory: conversion to and from wire form, reductions, hashes.
//
// Pure functions, any thread. Buffers do not overlap, unless a comment says that they may be equal.

#ifndef TFMPI_CORE_CPU_REDUCE_H_
#define TFMPI_CORE_CPU_REDUCE_H_

#include <cstddef>
#include <cstdint>

#include "tensorflow_patches/core/base/types.h"

namespace tfmpi {

// Whether the wire form of `type` is its memory layout, so that it can be reduced in place.
bool IsWireForm(DataType type);

// Converts `count` elements of `type` to wire form and multiplies each by `scale`: 1 keeps every
// bit, 0 gives zeros even for NaN. Half and bfloat16 are widened to float32 exactly, then
// multiplied. Where the wire form is the memory layout, `in` may equal `wire`. Integers allow only
// the scales 0 and 1.
void Pack(DataType type, const void* in, void* wire, size_t count, double scale);

// Converts `count` elements from wire form and multiplies each by `scale` (1 keeps every bit). The
// product is computed in the wire type; half and bfloat16 are rounded once, to nearest even. Where
// the wire form is the memory layout, `wire` may equal `out`.
void Unpack(DataType type, const void* wire, void* out, size_t count, double scale);

// A sum, minimum, maximum or product over ranks, of `count` elements of a wire type, or of float16
// or bfloat16, which are summed in float32 and rounded once. A minimum or maximum is NaN if any
// element is. The result is multiplied by `scale`, which is 1 for integers.
struct Reduction {
  size_t count = 0;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double scale = 1;
  // Whether a sum of float32 may travel between nodes in 16 bits (NodeOptions::wire).
  bool rounds = false;
};

// Reduces `count` elements (not reduction.count) of each of the `n` sources, in the order of the
// sources. Writes the result to `out`, and to `copy` unless that is null. A source may be `out`.
void Reduce(const Reduction& reduction, const void* const* sources, int n, size_t count, void* out,
            void* copy);

// Fills `data` with `count` neutral elements of `op`, such as zeros for a sum or average. `type` is
// a wire type.
void FillNeutral(DataType type, ReduceOp op, void* data, size_t count);

// A 64-bit hash of the bytes, to compare ranks. 0 if, and only if, all bytes are zero.
uint64_t Fingerprint(const void* data, size_t bytes);

}  // namespace tfmpi

#endif  // TFMPI_CORE_CPU_REDUCE_H_
