#include "tensorflow_patches/glue/xla/operands.h"

#include <algorithm>
#include <iterator>

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
