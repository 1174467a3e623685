// Fetches of a Session that are not copied: Python then sees a variable where it lies.
//
// TensorFlow moves a fetched tensor to Python if nobody else holds its memory, and copies it if
// somebody does, as the variable whose value it is. The function that decides is interposed, as
// interpose.cc does with registration: while a thread shares its fetches, all of them are moved.
// sessions.py compares the ranks' variables in this way, and receives rank 0's values into them,
// without memory for another table.

#ifndef TFMPI_GLUE_INTERNALS_SHARED_FETCHES_H_
#define TFMPI_GLUE_INTERNALS_SHARED_FETCHES_H_

namespace tfmpi {

// What this thread fetches of its Sessions from now on. Who shares fetches nothing but variables,
// and lets go of them before another step runs. Either call forgets what IsLoneVariable knows.
void ShareFetches(bool share);

// Of an array that this thread has fetched since it began to share: whether its memory is one
// variable's, and no other tensor's nor the script's. Then it may be written to.
bool IsLoneVariable(const void* data);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_INTERNALS_SHARED_FETCHES_H_
