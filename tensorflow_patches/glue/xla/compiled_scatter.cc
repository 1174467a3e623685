#include "tensorflow_patches/glue/xla/compiled_scatter.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow_patches/core/reduction/table_rows.h"
#include "tensorflow_patches/glue/xla/averages.h"
#include "tensorflow_patches/glue/xla/compiled_call.h"
#include "xla/ffi/api/ffi.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/hlo/ir/hlo_opcode.h"
#include "xla/service/hlo.pb.h"
#include "xla/shape_util.h"

namespace tfmpi {
namespace {

namespace ffi = xla::ffi;

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::XlaOpKernelContext;
using xla::XlaOp;
using Instruction = xla::HloInstructionProto;
using xla::internal::XlaBuilderFriend;

bool Is(const Instruction& instruction, xla::HloOpcode opcode) {
  return instruction.opcode() == xla::HloOpcodeString(opcode);
}

const Instruction& OperandOf(xla::XlaBuilder* builder, const Instruction& instruction, int index) {
  return *XlaBuilderFriend::GetInstructionByHandle(builder, instruction.operand_ids(index));
}

bool IsBroadcastScalar(xla::XlaBuilder* builder, const Instruction& instruction) {
  return Is(instruction, xla::HloOpcode::kBroadcast) &&
         OperandOf(builder, instruction, 0).shape().dimensions_size() == 0;
}

// The factor by which the rows of an average are multiplied.
struct Factor {
  static constexpr int64_t kOne = -1;

  int64_t instruction = kOne;  // the id of a scalar
  bool negative = false;
};

// Returns the factor if `updates`, whose shape is known, are the product of `rows` and a factor;
// otherwise nothing. Two factors are not accepted: their product would round differently.
std::optional<Factor> FactorOf(xla::XlaBuilder* builder, XlaOp updates, XlaOp rows) {
  const int64_t end = XlaBuilderFriend::GetInstruction(rows)->id();
  Factor factor;
  for (const Instruction* at = XlaBuilderFriend::GetInstruction(updates); at->id() != end;) {
    if (Is(*at, xla::HloOpcode::kNegate)) {
      factor.negative = !factor.negative;
      at = &OperandOf(builder, *at, 0);
    } else if (Is(*at, xla::HloOpcode::kMultiply) && factor.instruction == Factor::kOne) {
      const int scalar = IsBroadcastScalar(builder, OperandOf(builder, *at, 0)) ? 0 : 1;
      if (!IsBroadcastScalar(builder, OperandOf(builder, *at, scalar))) return std::nullopt;
      factor.instruction = OperandOf(builder, *at, scalar).operand_ids(0);
      at = &OperandOf(builder, *at, 1 - scalar);
    } else {
      return std::nullopt;
    }
  }
  return factor;
}

XlaOp Emit(xla::XlaBuilder* builder, const Factor& factor, xla::PrimitiveType type) {
  const XlaOp one = xla::One(builder, type);
  if (factor.instruction == Factor::kOne) return factor.negative ? xla::Neg(one) : one;
  // The builder cannot make an XlaOp from an instruction's id. So this creates the negation of
  // another op, and then replaces its operand.
  const XlaOp negative = xla::Neg(one);
  XlaBuilderFriend::GetInstruction(negative)->set_operand_ids(0, factor.instruction);
  return factor.negative ? negative : xla::Neg(negative);
}

// The average from which `indices` come unchanged; null if there is none.
const Averages::Rows* AverageOf(const Averages& averages, XlaOp indices) {
  const auto known =
      std::find_if(averages.rows.begin(), averages.rows.end(),
                   [&](const Averages::Rows& rows) { return rows.indices.IsIdenticalTo(indices); });
  return known == averages.rows.end() ? nullptr : &*known;
}

// Whether `updates` has one row for each index, of the shape of the variable's rows.
bool AreRowsOf(const xla::Shape& variable, const xla::Shape& indices, const xla::Shape& updates) {
  const auto type = variable.element_type();
  return (type == xla::F32 || type == xla::F64) && updates.element_type() == type &&
         variable.is_static() && updates.is_static() && variable.dimensions().size() != 0 &&
         indices.dimensions().size() == 1 &&
         updates.dimensions().size() == variable.dimensions().size() &&
         updates.dimensions(0) == indices.dimensions(0) &&
         std::equal(updates.dimensions().begin() + 1, updates.dimensions().end(),
                    variable.dimensions().begin() + 1);
}

// Adds rows, multiplied by a factor, to those of a table. Operands: the table, indices, rows, the
// factor (a scalar of their dtype). Result: the table, in the operand's memory. Indices outside the
// table are skipped.
constexpr std::string_view kCall = "tfmpi_scatter_rows";

template <typename T>
void ScatterInto(const ffi::AnyBuffer& table, const ffi::AnyBuffer& indices,
                 const ffi::AnyBuffer& values, T factor, void* result) {
  const int64_t table_rows = table.dimensions()[0];
  const int64_t rows = values.dimensions()[0];
  if (table_rows == 0 || rows == 0) return;
  const auto elements = static_cast<int64_t>(values.element_count()) / rows;
  T* const into = static_cast<T*>(result);
  const T* const from = values.typed_data<T>();
  if (indices.element_type() == ffi::DataType::S32) {
    AddRows(into, table_rows, indices.typed_data<int32_t>(), rows, from, elements, factor);
  } else {
    AddRows(into, table_rows, indices.typed_data<int64_t>(), rows, from, elements, factor);
  }
}

// CompiledScatter has checked the shapes and dtypes.
ffi::Error ScatterTable(ffi::AnyBuffer table, ffi::AnyBuffer indices, ffi::AnyBuffer values,
                        ffi::AnyBuffer factor, ffi::Result<ffi::AnyBuffer> result) {
  void* const into = result->untyped_data();
  if (into != table.untyped_data()) std::memcpy(into, table.untyped_data(), table.size_bytes());
  if (table.element_type() == ffi::DataType::F64) {
    ScatterInto<double>(table, indices, values, *factor.typed_data<double>(), into);
  } else {
    ScatterInto<float>(table, indices, values, *factor.typed_data<float>(), into);
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kScatterHandler, ScatterTable,
                       ffi::Ffi::Bind()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>());

}  // namespace

CompiledScatter::CompiledScatter(OpKernelConstruction* construction,
                                 std::unique_ptr<OpKernel> stock)
    : OpKernel(construction), stock_(std::move(stock)) {
  static const absl::Status* const registered =
      new absl::Status(RegisterCompiledCall(kCall, kHost, kScatterHandler));
  OP_REQUIRES_OK(construction, *registered);
}

void CompiledScatter::Compute(OpKernelContext* context) {
  XlaOpKernelContext compilation(context);
  xla::XlaBuilder* const builder = compilation.builder();
  const absl::StatusOr<Averages*> all = AveragesOf(context, builder);
  OP_REQUIRES_OK(context, all.status());
  const tensorflow::core::ScopedUnref unref(*all);
  const Averages::Rows* const average = AverageOf(**all, compilation.Input(1));
  if (average == nullptr) return stock_->Compute(context);
  const tensorflow::DataType type = compilation.input_type(2);
  const XlaOp updates = compilation.Input(2);
  XlaOp variable;
  OP_REQUIRES_OK(context, compilation.ReadVariableInput(0, type, /*shape=*/nullptr, &variable));
  std::vector<xla::Shape> shapes;
  for (const XlaOp operand : {variable, average->indices, updates}) {
    const absl::StatusOr<xla::Shape> shape = builder->GetShape(operand);
    OP_REQUIRES_OK(context, shape.status());
    // Row-major, even where XLA prefers another layout.
    shapes.push_back(xla::ShapeUtil::MakeShape(shape->element_type(), shape->dimensions()));
  }
  if (!AreRowsOf(shapes[0], shapes[1], shapes[2])) return stock_->Compute(context);
  const xla::Shape table = shapes[0];
  shapes.push_back(xla::ShapeUtil::MakeShape(table.element_type(), {}));
  // Multiplying while rows are added saves a pass over memory.
  const std::optional<Factor> found = FactorOf(builder, updates, average->values);
  Factor factor = found.value_or(Factor());
  if (def().op() == "ResourceScatterSub") factor.negative = !factor.negative;
  const XlaOp updated = xla::CustomCallWithLayout(
      builder, std::string(kCall),
      {variable, average->indices, found.has_value() ? average->written : updates,
       Emit(builder, factor, table.element_type())},
      table, shapes, /*opaque=*/"", /*has_side_effect=*/false, {{{}, {0, {}}}}, /*literal=*/nullptr,
      xla::CustomCallSchedule::SCHEDULE_NONE, xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  OP_REQUIRES_OK(context, compilation.AssignVariable(0, type, updated));
}

}  // namespace tfmpi
