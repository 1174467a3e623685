#include "tensorflow_patches/glue/xla/compiled_average.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "tensorflow/compiler/tf2xla/xla_expression.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_resource.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow_patches/glue/variables/variable_names.h"
#include "tensorflow_patches/glue/xla/averages.h"
#include "tensorflow_patches/glue/xla/compiled_call.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace tfmpi {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::XlaExpression;
using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

constexpr char kRows[] = "_tf_mpi_rows";  // this rank's number of rows, by sparse gradient
constexpr char kDuplicates[] = "_tf_mpi_duplicates";

// A string in MLIR: any byte may be written as two hexadecimal digits.
std::string Quoted(const std::string& text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    quoted += {'\\', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return quoted + "\"";
}

absl::Status CheckStatic(const std::string& name, const xla::Shape& shape) {
  if (shape.is_static()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("'", name,
                   "' has a dynamic shape inside a compiled cluster, where it cannot be "
                   "averaged over ranks; drop jit_compile=True, or set TF_MPI_ENABLE=0"));
}

// The operands of one custom call: values and indices of each sparse gradient, then dense tensors.
struct Call {
  std::vector<std::string> names;  // of each gradient
  std::vector<XlaOp> tensors;
  // This rank's number of rows, per sparse gradient; an operand has more (its capacity: room for
  // the rows of all ranks).
  std::vector<int64_t> rows;
  int64_t duplicates = 0;  // a value of enum Duplicates

  size_t num_sparse_tensors() const { return 2 * rows.size(); }
  const std::string& NameOf(size_t tensor) const {
    return names[tensor < num_sparse_tensors() ? tensor / 2 : tensor - rows.size()];
  }
};

// If a function's shapes are unknown when it is traced, the number of this rank's rows is unknown,
// too: it is derived from the capacity of the operand, which python/_src/average/compiled.py
// computes from the rows; RowsForCapacity inverts that.
constexpr int64_t kFromCapacity = -1;

int64_t RowsForCapacity(int64_t capacity, int64_t ranks) {
  const auto fits = [&](int64_t rows) {
    return ranks * (rows + std::max<int64_t>({rows / 8, std::min<int64_t>(rows, 512), 1})) <=
           capacity;
  };
  int64_t rows = 0;
  for (int64_t step = int64_t{1} << 40; step != 0; step /= 2) {
    if (fits(rows + step)) rows += step;
  }
  return rows;
}

// The operands' shapes, row-major even where XLA prefers another layout. Fails if one is dynamic.
absl::StatusOr<std::vector<xla::Shape>> RowMajorShapes(xla::XlaBuilder* builder, const Call& call) {
  std::vector<xla::Shape> shapes;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const absl::StatusOr<xla::Shape> shape = builder->GetShape(call.tensors[i]);
    if (!shape.ok()) return shape.status();
    TF_RETURN_IF_ERROR(CheckStatic(call.NameOf(i), *shape));
    shapes.push_back(xla::ShapeUtil::MakeShape(shape->element_type(), shape->dimensions()));
  }
  return shapes;
}

// `values` with zeros after the `found` rows that the average has. A separate call, because code
// that uses Averages::Rows::written needs no zeros, and XLA then removes this call.
XlaOp EmitZeroUnusedRows(xla::XlaBuilder* builder, XlaOp values, const xla::Shape& shape,
                         XlaOp found) {
  return xla::CustomCallWithLayout(builder, std::string(kZeroUnusedRows), {values, found}, shape,
                                   {shape, xla::ShapeUtil::MakeShape(xla::S64, {1})}, /*opaque=*/"",
                                   /*has_side_effect=*/false, {{{}, {0, {}}}}, /*literal=*/nullptr,
                                   xla::CustomCallSchedule::SCHEDULE_NONE,
                                   xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
}

// Emits the call and returns the averages of the tensors.
absl::StatusOr<std::vector<XlaOp>> EmitCall(OpKernelContext* context, Call call, XlaOp weight) {
  XlaOpKernelContext compilation(context);
  xla::XlaBuilder* const builder = compilation.builder();
  absl::StatusOr<std::vector<xla::Shape>> shapes = RowMajorShapes(builder, call);
  if (!shapes.ok()) return shapes.status();
  const absl::StatusOr<Averages*> all = AveragesOf(context, builder);
  if (!all.ok()) return all.status();
  const tensorflow::core::ScopedUnref unref(*all);
  const xla::Shape scalar = xla::ShapeUtil::MakeShape(xla::F32, {});
  const auto num_sparse = static_cast<int64_t>(call.rows.size());
  std::vector<xla::Shape> results = *shapes;
  results.push_back(scalar);
  if (num_sparse != 0) results.push_back(xla::ShapeUtil::MakeShape(xla::S64, {num_sparse}));
  std::vector<XlaOp> operands = call.tensors;
  // A sparse result has memory of its own. Only this rank's rows are operands, so XLA never
  // allocates an operand's unused capacity.
  const int64_t ranks = GetEngine()->topology().size;
  for (size_t i = 0; i < call.num_sparse_tensors(); ++i) {
    int64_t& own = call.rows[i / 2];
    if (own == kFromCapacity) own = RowsForCapacity((*shapes)[i].dimensions(0), ranks);
    (*shapes)[i].set_dimensions(0, own);
    operands[i] = xla::SliceInDim(operands[i], 0, own, 1, 0);
  }
  // Dense tensors are averaged in place: XLA copies operands that it still needs elsewhere.
  std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>> in_place;
  const xla::ShapeIndex whole;
  const auto tensors = static_cast<int64_t>(operands.size());
  for (auto i = static_cast<int64_t>(call.num_sparse_tensors()); i < tensors; ++i) {
    in_place.emplace_back(xla::ShapeIndex({i}), std::make_pair(i, whole));
  }
  operands.insert(operands.end(), {weight, (*all)->last});
  shapes->insert(shapes->end(), {scalar, scalar});
  const std::string attributes = absl::StrCat(
      "{names = ", Quoted(absl::StrJoin(call.names, kNameSeparator)), ", num_sparse = ", num_sparse,
      " : i64, duplicates = ", call.duplicates, " : i64}");
  const XlaOp called = xla::CustomCallWithLayout(
      builder, std::string(kCompiledAverage), operands, xla::ShapeUtil::MakeTupleShape(results),
      *shapes, attributes, /*has_side_effect=*/true, in_place, /*literal=*/nullptr,
      xla::CustomCallSchedule::SCHEDULE_NONE, xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  std::vector<XlaOp> averages;
  for (int64_t i = 0; i < tensors; ++i) averages.push_back(xla::GetTupleElement(called, i));
  for (int64_t i = 0; i < num_sparse; ++i) {
    const XlaOp counts = xla::GetTupleElement(called, tensors + 1);
    XlaOp& values = averages[2 * i];
    const XlaOp written = values;
    values = EmitZeroUnusedRows(builder, written, results[2 * i],
                                xla::SliceInDim(counts, i, i + 1, 1, 0));
    (*all)->rows.push_back({values, averages[2 * i + 1], written});
  }
  (*all)->last = xla::GetTupleElement(called, tensors);
  return averages;
}

}  // namespace

absl::StatusOr<Averages*> AveragesOf(OpKernelContext* context, xla::XlaBuilder* builder) {
  Averages* averages = nullptr;
  const absl::Status status = context->step_container()->LookupOrCreate<Averages>(
      context->resource_manager(), "tf_mpi_averages", &averages, [builder](Averages** created) {
        *created = new Averages;
        (*created)->last = xla::ConstantR0<float>(builder, 0);
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return averages;
}

bool AveragesInCompiledSteps() { return true; }

CompiledAverageKernel::CompiledAverageKernel(OpKernelConstruction* construction)
    : OpKernel(construction), names_(AverageNames(def())) {
  OP_REQUIRES_OK(construction, RegisterCompiledCalls());
  if (HasRows(def())) OP_REQUIRES_OK(construction, construction->GetAttr(kRows, &rows_));
  tensorflow::TryGetNodeAttr(def(), kDuplicates, &duplicates_);
  OP_REQUIRES(
      construction,
      !names_.empty() && names_.size() + rows_.size() + 1 == static_cast<size_t>(num_inputs()),
      MissingAttributesError());
  for (size_t i = 0; i < names_.size(); ++i) {
    const size_t input = i < rows_.size() ? 2 * i : i + rows_.size();
    DataType core;
    OP_REQUIRES_OK(construction,
                   CheckCanAverage(names_[i], input_type(static_cast<int>(input)), &core));
  }
}

bool CompiledAverageKernel::HasRows(const tensorflow::NodeDef& node) {
  return node.attr().count(kRows) != 0;
}

// Input i becomes output i, averaged, except for the last input, which is the weight.
void CompiledAverageKernel::Compute(OpKernelContext* context) {
  XlaOpKernelContext compilation(context);
  if (GetEngine() == nullptr) {  // in a forked child
    for (int i = 0; i < context->num_inputs(); ++i) compilation.SetOutput(i, compilation.Input(i));
    return;
  }
  const int tensors = context->num_inputs() - 1;
  Call call = {names_, {}, rows_, duplicates_};
  for (int i = 0; i < tensors; ++i) call.tensors.push_back(compilation.Input(i));
  const XlaOp weight = compilation.Input(tensors);
  const absl::StatusOr<std::vector<XlaOp>> averages = EmitCall(context, call, weight);
  OP_REQUIRES_OK(context, averages.status());
  for (int i = 0; i < tensors; ++i) compilation.SetOutput(i, (*averages)[i]);
  compilation.SetOutput(tensors, weight);
}

CompiledApplyKernel::CompiledApplyKernel(OpKernelConstruction* construction, const ApplyOp& op,
                                         std::unique_ptr<OpKernel> stock)
    : OpKernel(construction), stock_(std::move(stock)), node_(construction, op, *stock_) {
  OP_REQUIRES_OK(construction, RegisterCompiledCalls());
}

absl::Status CompiledApplyKernel::EmitAverageOfGradient(OpKernelContext* context, Tensor* average) {
  XlaOpKernelContext compilation(context);
  tensorflow::XlaResource* variable = nullptr;
  TF_RETURN_IF_ERROR(compilation.GetResourceInput(0, &variable));
  VariableNames& names = VariableNames::Get();
  const std::string name = names.Name(names.CompiledKey(variable->name())) + node_.request_suffix;
  DataType dtype;
  TF_RETURN_IF_ERROR(CheckCanAverage(name, context->input_dtype(node_.gradient), &dtype));
  const XlaOp one = xla::ConstantR0<float>(compilation.builder(), 1);
  const absl::StatusOr<std::vector<XlaOp>> averages =
      EmitCall(context, {{name}, {compilation.Input(node_.gradient)}, {}, 0}, one);
  if (!averages.ok()) return averages.status();
  // A tensor of the compiler contains no data, only the expression it represents.
  const tensorflow::DataType type = context->input_dtype(node_.gradient);
  TF_RETURN_IF_ERROR(context->allocate_temp(type, context->input(node_.gradient).shape(), average));
  XlaExpression::AssignExpressionToTensor(XlaExpression::XlaOp((*averages)[0], type), average);
  return absl::OkStatus();
}

void CompiledApplyKernel::Compute(OpKernelContext* context) {
  Tensor average = context->input(node_.gradient);
  // A forked child has no engine.
  if (!node_.averaged && GetEngine() != nullptr && !AreAveragesLeftToScript()) {
    OP_REQUIRES_OK(context, EmitAverageOfGradient(context, &average));
  }
  RunOnInputs(stock_.get(), context, {{node_.gradient, &average}});
}

}  // namespace tfmpi
