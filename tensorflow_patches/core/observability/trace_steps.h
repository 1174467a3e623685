// Finds training steps in the events of a rank. A pure function; any thread.

#ifndef TFMPI_CORE_OBSERVABILITY_TRACE_STEPS_H_
#define TFMPI_CORE_OBSERVABILITY_TRACE_STEPS_H_

#include <vector>

#include "tensorflow_patches/core/observability/timeline.h"

namespace tfmpi {

// One training step as seen from its gradients, in ns.
struct Step {
  int64_t begin = 0;          // the end of the previous step, or the first submission
  int64_t first_submit = 0;   // of a gradient; before it come data and the forward pass
  int64_t last_submit = 0;    // the end of the backward pass
  int64_t last_response = 0;  // the end of the last response to its gradients
  int64_t end = 0;            // the end of its last response or stock kernel, cut at the next step
  size_t gradients = 0;       // tensors: a request may have several
};
// A step begins when a gradient is submitted that the current step already has.
std::vector<Step> FindSteps(const Events& events);

}  // namespace tfmpi

#endif  // TFMPI_CORE_OBSERVABILITY_TRACE_STEPS_H_
