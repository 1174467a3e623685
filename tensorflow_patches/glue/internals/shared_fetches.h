// Fetches of a Session without a copy, so that Python sees a variable's own memory.
//
// TensorFlow moves a fetched tensor to Python if nothing else holds its memory, and copies it
// otherwise, for example if it is a variable's value. The function that decides is interposed (as
// in registration/interpose.cc): while a thread shares its fetches, all of them are moved.
// python/_src/variables/large_variables.py uses this to compare the ranks' variables, and to
// receive rank 0's values into them, without memory for a copy of each.

#ifndef TFMPI_GLUE_INTERNALS_SHARED_FETCHES_H_
#define TFMPI_GLUE_INTERNALS_SHARED_FETCHES_H_

namespace tfmpi {

// Applies to this thread's fetches from now on. A thread that shares must fetch only variables, and
// release them before another step runs. Each call clears the memory known to IsLoneVariable.
void ShareFetches(bool share);

// `data`: of an array that this thread has fetched since it began to share. Whether this memory
// belongs to one variable alone, and not to the script, so that it may be written to.
bool IsLoneVariable(const void* data);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_INTERNALS_SHARED_FETCHES_H_
