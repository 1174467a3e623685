// An extra: reuses the memory of TensorFlow's tensors and XLA's buffers. It interposes on
// TensorFlow's functions for aligned memory, as registration/interpose.cc does on registration.
//
// Until KeepTensorMemory is called, ours only call the stock functions; then large blocks come from
// core/memory/block_cache.h. The functions that free memory recognize these blocks, and leave all
// others to the stock functions.

#ifndef TFMPI_GLUE_EXTRAS_KEPT_MEMORY_H_
#define TFMPI_GLUE_EXTRAS_KEPT_MEMORY_H_

namespace tfmpi {

// Any thread, once.
void KeepTensorMemory();

}  // namespace tfmpi

#endif  // TFMPI_GLUE_EXTRAS_KEPT_MEMORY_H_
