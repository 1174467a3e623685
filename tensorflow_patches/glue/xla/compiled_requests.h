// The requests of a compiled step's average, planned once and created in every step.

#ifndef TFMPI_GLUE_XLA_COMPILED_REQUESTS_H_
#define TFMPI_GLUE_XLA_COMPILED_REQUESTS_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tensorflow_patches/core/reduction/average_plan.h"
#include "tensorflow_patches/glue/runtime/request_group.h"
#include "tensorflow_patches/glue/xla/operands.h"

namespace tfmpi {

// The averages of one call; kept between steps.
struct CallPlan {
  std::vector<std::string> sparse_names;     // the names of the sparse gradients
  std::shared_ptr<const AveragePlan> dense;  // null without dense gradients

  // Whether the plan is for the dtypes and shapes of `operands`. Plans are kept by names, which two
  // programs may share.
  bool Fits(const Operands& operands) const;
};

// `joined`: the attribute "names" of compiled_call.h. Any thread.
absl::StatusOr<std::shared_ptr<const CallPlan>> PlanFor(std::string_view joined,
                                                        const Operands& operands);

// Adds the dense gradients. `fingerprints`: as in AveragePlan::Requests; if true, the host must be
// able to read the gradients.
void AddDense(const AveragePlan& plan, const Operands& operands, const AveragePlan::Weight& weight,
              bool fingerprints, RequestGroup* group);

// The first name, which represents all of them in messages.
std::string FirstName(std::string_view joined);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_XLA_COMPILED_REQUESTS_H_
