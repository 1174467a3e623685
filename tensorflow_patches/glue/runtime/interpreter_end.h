// Limits how long Python's interpreter may take to exit, after this rank has joined or left.
//
// The interpreter destroys tf.data's iterators, which wait for threads that may be in a function of
// the script; such a thread blocks forever when it next needs Python's lock. Stock TensorFlow hangs
// there, too, but here one such rank would hang the whole job.

#ifndef TFMPI_GLUE_RUNTIME_INTERPRETER_END_H_
#define TFMPI_GLUE_RUNTIME_INTERPRETER_END_H_

#include <chrono>
#include <string>

namespace tfmpi {

// Called once, at exit. From then on a thread checks whether the interpreter is being finalized: by
// then it has run all atexit functions and flushed its output. If the process then uses almost no
// processor time for `patience`, the thread writes `line`, unless it is empty, to stderr and ends
// the process with `code`.
void LimitInterpreterEnd(int code, std::chrono::milliseconds patience, std::string line);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_RUNTIME_INTERPRETER_END_H_
