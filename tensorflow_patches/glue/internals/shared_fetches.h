// Fetches of a Session without a copy: Python then sees a variable in place.
//
// TensorFlow moves a fetched tensor to Python if nothing else holds its memory, and copies it
// otherwise, for example if it is a variable's value. The function that decides is interposed (as
// in registration/interpose.cc): while a thread shares its fetches, all of them are moved.
// sessions.py uses this to compare the ranks' variables, and to receive rank 0's values into them,
// without memory for another copy of the table.

#ifndef TFMPI_GLUE_INTERNALS_SHARED_FETCHES_H_
#define TFMPI_GLUE_INTERNALS_SHARED_FETCHES_H_

namespace tfmpi {

// Applies to what this thread fetches from its Sessions from now on. A thread that shares must
// fetch only variables, and release them before another step runs. Either call clears what
// IsLoneVariable knows.
void ShareFetches(bool share);

// Whether this memory, of an array that this thread has fetched since it began to share, belongs to
// one variable alone, and not to the script. Then it may be written to.
bool IsLoneVariable(const void* data);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_INTERNALS_SHARED_FETCHES_H_
