// The end of Python's interpreter, when this rank has no more to say to the others.
//
// It destroys tf.data's iterators, which wait for threads that may be in a function of the script;
// such a thread stops for ever when it next asks for Python's lock. Stock TensorFlow hangs there,
// too, and with one rank the whole job would.

#ifndef TFMPI_GLUE_RUNTIME_INTERPRETER_END_H_
#define TFMPI_GLUE_RUNTIME_INTERPRETER_END_H_

#include <chrono>
#include <string>

namespace tfmpi {

// Called by Python's main thread, once, at exit. From then on a thread looks whether the
// interpreter is being torn down, which comes after all functions of atexit and has flushed what
// was printed. Where that takes no processor's time for `patience`, the process writes `line` to
// stderr and ends with `code`.
void LimitInterpreterEnd(int code, std::chrono::milliseconds patience, std::string line);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_RUNTIME_INTERPRETER_END_H_
