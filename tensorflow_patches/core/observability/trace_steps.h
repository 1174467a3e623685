// Where the steps of training lie in what a rank has recorded. Pure; any thread.

#ifndef TFMPI_CORE_OBSERVABILITY_TRACE_STEPS_H_
#define TFMPI_CORE_OBSERVABILITY_TRACE_STEPS_H_

#include <vector>

#include "tensorflow_patches/core/observability/timeline.h"

namespace tfmpi {

// One training step as its gradients show it, ns.
struct Step {
  int64_t begin = 0;         // the end of the step before; of the first step, its first submission
  int64_t first_submit = 0;  // of a gradient; what comes before is data and forward pass
  int64_t last_submit = 0;   // the backward pass has ended
  int64_t last_response = 0;
  int64_t end = 0;  // of its last response and last stock kernel
  int gradients = 0;
};
// A step ends where a gradient is handed in once more.
std::vector<Step> FindSteps(const Events& events);

}  // namespace tfmpi

#endif  // TFMPI_CORE_OBSERVABILITY_TRACE_STEPS_H_
