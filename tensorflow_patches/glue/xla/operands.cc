#include "tensorflow_patches/glue/xla/operands.h"

#include <algorithm>
#include <iterator>

namespace tfmpi {

Operands::Operands(xla::ffi::RemainingArgs ffi_args, xla::ffi::RemainingRets ffi_rets,
                   size_t num_sparse)
    : num_sparse(num_sparse) {
  args.reserve(ffi_args.size());
  rets.reserve(ffi_rets.size());
  for (size_t i = 0; i < ffi_args.size(); ++i)
    args.emplace_back(*ffi_args.get<xla::ffi::AnyBuffer>(i));
  for (size_t i = 0; i < ffi_rets.size(); ++i) {
    rets.emplace_back(**ffi_rets.get<xla::ffi::AnyBuffer>(i));
  }
}

bool ToCoreType(xla::ffi::DataType type, DataType* core) {
  // In the order of DataType, whose first ones are the floating types.
  static constexpr xla::ffi::DataType kTypes[] = {
      xla::ffi::DataType::F16, xla::ffi::DataType::BF16, xla::ffi::DataType::F32,
      xla::ffi::DataType::F64, xla::ffi::DataType::C64,  xla::ffi::DataType::C128};
  const auto* const found = std::find(std::begin(kTypes), std::end(kTypes), type);
  if (found == std::end(kTypes)) return false;
  *core = static_cast<DataType>(found - kTypes);
  return true;
}

}  // namespace tfmpi
