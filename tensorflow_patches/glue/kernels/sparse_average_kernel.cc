#include "tensorflow_patches/glue/kernels/sparse_average_kernel.h"

#include <memory>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_patches/glue/kernels/average_kernel.h"
#include "tensorflow_patches/glue/kernels/sparse_average.h"

namespace tfmpi {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;

constexpr char kTableRows[] = "_tf_mpi_table_rows";
constexpr char kDuplicates[] = "_tf_mpi_duplicates";

absl::Status RowsOfAllRanks(InferenceContext* context) {
  tensorflow::shape_inference::ShapeHandle values;
  TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &values));
  TF_RETURN_IF_ERROR(context->ReplaceDim(values, 0, context->UnknownDim(), &values));
  context->set_output(0, values);
  context->set_output(1, context->Vector(InferenceContext::kUnknownDim));
  return absl::OkStatus();
}

REGISTER_OP("TfMpiSparseAverage")
    .Input("values: T")
    .Input("indices: Tindices")
    .Input("weight: float")
    .Output("average_values: T")
    .Output("average_indices: Tindices")
    .Attr("T: {half, bfloat16, float, double, complex64, complex128}")
    .Attr("Tindices: {int32, int64}")
    .Attr("label: string")
    .Attr("names: list(string)")
    .Attr("table_rows: int")
    .Attr("duplicates: int")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(RowsOfAllRanks);

REGISTER_KERNEL_BUILDER(Name("TfMpiSparseAverage").Device(tensorflow::DEVICE_CPU),
                        SparseAverageKernel);

}  // namespace

bool SparseAverageKernel::IsMarked(const tensorflow::NodeDef& node) {
  return node.attr().count(kTableRows) != 0;
}

SparseAverageKernel::SparseAverageKernel(OpKernelConstruction* construction)
    : AsyncOpKernel(construction) {
  const std::vector<std::string> names = AverageNames(def());
  OP_REQUIRES(construction, names.size() == 1 && num_inputs() == 3, MissingAttributesError());
  name_ = names[0];
  OP_REQUIRES_OK(
      construction,
      tensorflow::GetNodeAttr(def(), IsMarked(def()) ? kTableRows : "table_rows", &table_rows_));
  int64_t duplicates = 0;
  tensorflow::TryGetNodeAttr(def(), IsMarked(def()) ? kDuplicates : "duplicates", &duplicates);
  duplicates_ = static_cast<Duplicates>(duplicates);
}

void SparseAverageKernel::ComputeAsync(OpKernelContext* context, DoneCallback done) {
  Engine* const engine = GetEngine();
  if (engine == nullptr) {  // in a forked child
    for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
    return done();
  }
  OP_REQUIRES_OK_ASYNC(context, CheckWeightInput(context, 2), done);
  if (context->num_outputs() > 2)
    context->set_output(2, context->input(2));  // an IdentityN returns the weight
  ToHost(context, {context->input(0), context->input(1), context->input(2)},
         [=](const absl::Status& status, const TensorList& own) {
           if (status.ok()) return Average(context, engine, own, done);
           EndOf(context, done)(status);
         });
}

void SparseAverageKernel::Average(OpKernelContext* context, Engine* engine, const TensorList& own,
                                  const DoneCallback& done) {
  const float weight = own[2].flat<float>()(0);
  OP_REQUIRES_OK_ASYNC(context, CheckWeight(weight, name_), done);
  auto average = std::make_shared<SparseAverage>(context, engine, name_ + SessionSuffix(context));
  auto group = RequestGroup::OfKernel(engine, context);
  OP_REQUIRES_OK_ASYNC(
      context, average->AddTo(group.get(), own[0], own[1], table_rows_, weight, duplicates_), done);
  const auto written = [context, end = EndOf(context, done)](const absl::Status& status,
                                                             const TensorList& averages) {
    if (status.ok()) {
      context->set_output(0, averages[0]);
      context->set_output(1, averages[1]);
    }
    end(status);
  };
  const auto finished = [context, written, average](const absl::Status& status) {
    if (!status.ok()) return written(status, {});
    ToKernel(context, {*average->values(), *average->indices()}, written);
  };
  // Keeps `own`, which is read until Finish returns.
  RequestGroup::Submit(std::move(group), "'" + name_ + "' was averaged",
                       [average, own, finished](const absl::Status& status) {
                         if (!status.ok()) return finished(status);
                         average->Finish(finished);
                       });
}

}  // namespace tfmpi
