// An extra: the memory of TensorFlow's tensors and XLA's buffers. TensorFlow's functions for
// aligned memory are interposed, as registration/interpose.cc does for registration.
//
// Until KeepTensorMemory they are the stock functions; after it, large blocks come from
// core/memory/block_cache.h. Memory allocated earlier, or by other functions of TensorFlow, comes
// from malloc.

#ifndef TFMPI_GLUE_EXTRAS_KEPT_MEMORY_H_
#define TFMPI_GLUE_EXTRAS_KEPT_MEMORY_H_

namespace tfmpi {

// Any thread, once.
void KeepTensorMemory();

}  // namespace tfmpi

#endif  // TFMPI_GLUE_EXTRAS_KEPT_MEMORY_H_
