// The operands and results of a custom call in a compiled step: addresses, types and shapes.
//
// XLA owns the memory, which is valid until the call has ended. On a GPU it is GPU memory; operands
// that the host must read are then copied (compiled_call_gpu.cc).

#ifndef TFMPI_GLUE_XLA_OPERANDS_H_
#define TFMPI_GLUE_XLA_OPERANDS_H_

#include <cstddef>
#include <vector>

#include "tensorflow_patches/core/base/types.h"
#include "xla/ffi/api/ffi.h"

namespace tfmpi {

struct Operand {
  explicit Operand(const xla::ffi::AnyBuffer& buffer)
      : data(buffer.untyped_data()),
        type(buffer.element_type()),
        dims(buffer.dimensions()),
        bytes(buffer.size_bytes()) {}

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  Shape shape() const { return Shape(dims.begin(), dims.end()); }

  void* data;
  xla::ffi::DataType type;
  xla::ffi::Span<const int64_t> dims;
  size_t bytes;
};

// See compiled_call.h for the order. rets[weight_index()] is the scalar for the next call.
struct Operands {
  Operands(xla::ffi::RemainingArgs ffi_args, xla::ffi::RemainingRets ffi_rets, size_t num_sparse);

  // The index of the weight; the operands before it are the gradients.
  size_t weight_index() const { return args.size() - 2; }
  const Operand& weight() const { return args[weight_index()]; }
  // Null without sparse gradients.
  const Operand* counts() const { return num_sparse == 0 ? nullptr : &rets[weight_index() + 1]; }

  size_t num_sparse;  // sparse gradients
  std::vector<Operand> args;
  std::vector<Operand> rets;
};

// False for a type that a gradient cannot have.
bool ToCoreType(xla::ffi::DataType type, DataType* core);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_XLA_OPERANDS_H_
