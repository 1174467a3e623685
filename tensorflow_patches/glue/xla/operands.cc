#include "tensorflow_patches/glue/xla/operands.h"

namespace tfmpi {

Operands::Operands(xla::ffi::RemainingArgs of_args, xla::ffi::RemainingRets of_rets,
                   size_t with_slices)
    : slices(with_slices) {
  args.reserve(of_args.size());
  rets.reserve(of_rets.size());
  for (size_t i = 0; i < of_args.size(); ++i)
    args.emplace_back(*of_args.get<xla::ffi::AnyBuffer>(i));
  for (size_t i = 0; i < of_rets.size(); ++i) {
    rets.emplace_back(**of_rets.get<xla::ffi::AnyBuffer>(i));
  }
}

bool ToCoreType(xla::ffi::DataType type, DataType* core) {
  switch (type) {
    case xla::ffi::DataType::F16:
      return *core = DataType::kFloat16, true;
    case xla::ffi::DataType::BF16:
      return *core = DataType::kBfloat16, true;
    case xla::ffi::DataType::F32:
      return *core = DataType::kFloat32, true;
    case xla::ffi::DataType::F64:
      return *core = DataType::kFloat64, true;
    case xla::ffi::DataType::C64:
      return *core = DataType::kComplex64, true;
    case xla::ffi::DataType::C128:
      return *core = DataType::kComplex128, true;
    default:
      return false;
  }
}

}  // namespace tfmpi
