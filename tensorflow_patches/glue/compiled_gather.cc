#include "tensorflow_patches/glue/compiled_gather.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/compiler/tf2xla/xla_expression.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow_patches/glue/compiled_call.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/hlo/ir/hlo_opcode.h"
#include "xla/service/hlo.pb.h"
#include "xla/shape_util.h"

namespace tfmpi {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::XlaExpression;
using tensorflow::XlaOpKernelContext;
using xla::XlaOp;
using xla::internal::XlaBuilderFriend;
using Instruction = xla::HloInstructionProto;

// Smaller tables stay in the caches, where XLA may do without copies of rows by fusing.
constexpr int64_t kLargeTable = 4 << 20;  // bytes
constexpr int64_t kWideRow = 64;          // bytes
constexpr int64_t kManyRows = 64;

bool AreManyRowsOfLargeTable(const xla::Shape& table, const xla::Shape& indices) {
  const auto type = table.element_type();
  const auto index = indices.element_type();
  if ((type != xla::F32 && type != xla::F64) || (index != xla::S32 && index != xla::S64) ||
      table.dimensions().size() == 0) {
    return false;
  }
  const int64_t bytes = xla::ShapeUtil::ByteSizeOf(table);
  return bytes >= kLargeTable && bytes >= kWideRow * table.dimensions(0) &&
         xla::ShapeUtil::ElementsIn(indices) >= kManyRows;
}

// Whether `gather` has one row of `table` for each of `indices`, which are its operands.
bool TakesRows(const Instruction& gather, XlaOp table, XlaOp indices, const xla::Shape& shape) {
  if (gather.opcode() != xla::HloOpcodeString(xla::HloOpcode::kGather) ||
      gather.operand_ids(0) != XlaBuilderFriend::GetInstruction(table)->id() ||
      gather.operand_ids(1) != XlaBuilderFriend::GetInstruction(indices)->id()) {
    return false;
  }
  const auto& numbers = gather.gather_dimension_numbers();
  const auto& sizes = gather.gather_slice_sizes();
  // As a row is whole, what comes from it can only be the last dimensions.
  return numbers.start_index_map_size() == 1 && numbers.start_index_map(0) == 0 &&
         numbers.collapsed_slice_dims_size() == 1 && numbers.collapsed_slice_dims(0) == 0 &&
         numbers.operand_batching_dims_size() == 0 &&
         std::equal(sizes.begin() + 1, sizes.end(), shape.dimensions().begin() + 1,
                    shape.dimensions().end());
}

}  // namespace

bool CompiledGatherKernel::Serves(const std::string& op) {
  return op == "GatherV2" || op == "ResourceGather";
}

CompiledGatherKernel::CompiledGatherKernel(OpKernelConstruction* construction,
                                           std::unique_ptr<OpKernel> stock)
    : OpKernel(construction), stock_(std::move(stock)) {
  OP_REQUIRES_OK(construction, RegisterCompiledCalls());
}

void CompiledGatherKernel::Compute(OpKernelContext* context) {
  stock_->Compute(context);
  if (!context->status().ok()) return;
  XlaOpKernelContext compilation(context);
  xla::XlaBuilder* const builder = compilation.builder();
  const tensorflow::DataType type = context->expected_output_dtype(0);
  XlaOp table;
  if (def().op() == "ResourceGather") {
    OP_REQUIRES_OK(context, compilation.ReadVariableInput(0, type, /*shape=*/nullptr, &table));
  } else {
    const XlaExpression& input = compilation.InputExpression(0);
    // Of a constant the compiler would make another copy here.
    if (input.kind() != XlaExpression::Kind::kXlaOp) return;
    table = input.handle();
  }
  const XlaOp indices = compilation.Input(1);
  const XlaOp gathered =
      XlaExpression::CastExpressionFromTensor(*context->mutable_output(0))->AsXlaOp(builder);
  std::vector<xla::Shape> shapes;  // rows first, whatever layout XLA prefers
  for (const XlaOp operand : {table, indices, gathered}) {
    const absl::StatusOr<xla::Shape> shape = builder->GetShape(operand);
    OP_REQUIRES_OK(context, shape.status());
    if (!shape->is_static()) return;
    shapes.push_back(xla::ShapeUtil::MakeShape(shape->element_type(), shape->dimensions()));
  }
  const xla::Shape result = shapes.back();
  shapes.pop_back();
  if (!AreManyRowsOfLargeTable(shapes[0], shapes[1]) ||
      !TakesRows(*XlaBuilderFriend::GetInstruction(gathered), table, indices, shapes[0])) {
    return;
  }
  const XlaOp rows = xla::CustomCallWithLayout(
      builder, std::string(kCompiledGather), {table, indices}, result, shapes, /*opaque=*/"",
      /*has_side_effect=*/false, /*output_operand_aliasing=*/{}, /*literal=*/nullptr,
      xla::CustomCallSchedule::SCHEDULE_NONE, xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  delete context->release_output(0).tensor;  // XLA drops the gather: nobody reads it
  compilation.SetOutput(0, rows);
}

}  // namespace tfmpi
