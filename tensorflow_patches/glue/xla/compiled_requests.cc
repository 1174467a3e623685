#include "tensorflow_patches/glue/xla/compiled_requests.h"

#include <mutex>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_split.h"
#include "tensorflow_patches/glue/xla/compiled_call.h"

namespace tfmpi {
namespace {

absl::StatusOr<std::shared_ptr<const CallPlan>> MakePlan(std::string_view joined,
                                                         const Operands& operands) {
  const std::vector<std::string> names = absl::StrSplit(joined, kNameSeparator);
  const size_t num_sparse = operands.num_sparse;
  if (operands.args.size() != names.size() + num_sparse + 2 || names.size() < num_sparse) {
    return absl::InternalError("the operands of the compiled average do not match its names");
  }
  auto plan = std::make_shared<CallPlan>();
  plan->sparse_names.assign(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(num_sparse));
  const std::vector<std::string> dense(names.begin() + static_cast<std::ptrdiff_t>(num_sparse),
                                       names.end());
  if (dense.empty()) return plan;
  std::vector<DataType> dtypes(dense.size());
  std::vector<Shape> shapes;
  for (size_t i = 0; i < dense.size(); ++i) {
    const Operand& tensor = operands.args[2 * num_sparse + i];
    ToCoreType(tensor.type, &dtypes[i]);  // the kernel that emitted the call has checked it
    shapes.push_back(tensor.shape());
  }
  plan->dense = std::make_shared<const AveragePlan>(dense, dtypes, std::move(shapes),
                                                    GetEngine()->fusion_threshold());
  return plan;
}

}  // namespace

bool CallPlan::Fits(const Operands& operands) const {
  if (sparse_names.size() != operands.num_sparse) return false;
  if (dense == nullptr) return true;
  for (const AveragePlan::Entry& entry : dense->entries()) {
    for (size_t i : entry.tensors) {
      const Operand& tensor = operands.args[2 * operands.num_sparse + i];
      DataType type;
      if (!ToCoreType(tensor.type, &type) || type != entry.signature.dtype) return false;
      if (tensor.shape() != dense->shapes()[i]) return false;
    }
  }
  return true;
}

absl::StatusOr<std::shared_ptr<const CallPlan>> PlanFor(std::string_view joined,
                                                        const Operands& operands) {
  static auto* const mutex = new std::mutex;
  static auto* const plans = new std::unordered_map<std::string, std::shared_ptr<const CallPlan>>;
  std::lock_guard<std::mutex> lock(*mutex);
  std::shared_ptr<const CallPlan>& plan = (*plans)[std::string(joined)];
  if (plan != nullptr && plan->Fits(operands)) return plan;
  absl::StatusOr<std::shared_ptr<const CallPlan>> made = MakePlan(joined, operands);
  if (made.ok()) plan = *made;
  return made;
}

void AddDense(const AveragePlan& plan, const Operands& operands, const AveragePlan::Weight& weight,
              bool fingerprints, RequestGroup* group) {
  const size_t first = 2 * operands.num_sparse;
  std::vector<Request::Buffers> buffers(plan.shapes().size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    buffers[i] = {operands.args[first + i].data, operands.rets[first + i].data};
  }
  const std::vector<void*> none(plan.entries().size());
  for (Request& request : plan.Requests(buffers, none, weight, fingerprints)) {
    group->Add(std::move(request));
  }
}

std::string FirstName(std::string_view joined) {
  return std::string(joined.substr(0, joined.find(kNameSeparator)));
}

}  // namespace tfmpi
