// What only makes steps faster, and may be left out: TF_MPI_EXTRAS. Gradients are averaged with any
// of these or none. docs/extras.md says what each is worth; each is a file of its own, or a part of
// core/ that an option turns off.
//
// Set once, as the runtime starts and before kernels are made; read by any thread.

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

// Names as config/parameter.py has them, with commas between them. False if one is not known: then
// Python and this library are of different builds.
bool ParseExtras(const std::string& names, Extras* extras);

// Of the process; none before SetExtras.
const Extras& ExtrasThatAreOn();
void SetExtras(const Extras& extras);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_RUNTIME_EXTRAS_H_
