// Optional code that only makes steps faster: TF_MPI_EXTRAS. Gradients are averaged with any subset
// of these. docs/extras.md has the speedup of each.
//
// Set once, when the runtime starts and before kernels are created; read on any thread.

#ifndef TFMPI_GLUE_RUNTIME_EXTRAS_H_
#define TFMPI_GLUE_RUNTIME_EXTRAS_H_

#include <string>

namespace tfmpi {

struct Extras {
  bool kept_memory = false;          // extras/kept_memory.h
  bool scatter_in_place = false;     // extras/scatter_in_place.h
  bool rows_ahead = false;           // extras/rows_ahead.h
  bool compiled_scatter = false;     // xla/compiled_scatter.h
  bool divided_updates = false;      // extras/divided_update.h
  bool distinct_rows = false;        // python/_src/average/distinct.py
  bool response_bypass = false;      // core/agreement/bypass.h
  bool streaming_stores = false;     // core/transport/shm/chunk_writer.h
  bool synchronous_updates = false;  // extras/synchronous_update.h
};

// `names`: those of python/config/parameter.py, separated by commas. False if one is unknown: then
// the Python files and this library come from different builds.
bool ParseExtras(const std::string& names, Extras* extras);

// The extras of this process; none before SetExtras.
const Extras& EnabledExtras();
void SetExtras(const Extras& extras);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_RUNTIME_EXTRAS_H_
