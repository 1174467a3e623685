// An extra: where TensorFlow's tensors and XLA's buffers lie. Its functions for aligned memory are
// interposed, as registration/interpose.cc does with registration.
//
// Until KeepTensorMemory they are the stock functions; then large blocks come from
// core/memory/block_cache.h. What was allocated before, and what TensorFlow allocates by other
// functions, is malloc's.

#ifndef TFMPI_GLUE_EXTRAS_KEPT_MEMORY_H_
#define TFMPI_GLUE_EXTRAS_KEPT_MEMORY_H_

namespace tfmpi {

// Any thread, once.
void KeepTensorMemory();

}  // namespace tfmpi

#endif  // TFMPI_GLUE_EXTRAS_KEPT_MEMORY_H_
