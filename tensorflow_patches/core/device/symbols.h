// Functions of a library that is loaded at run time.

#ifndef TFMPI_CORE_DEVICE_SYMBOLS_H_
#define TFMPI_CORE_DEVICE_SYMBOLS_H_

#include <dlfcn.h>

#include <string>

namespace tfmpi {

// Looks up functions and remembers the first one that is missing.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  template <typename Function>
  void Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library_, name));
    if (*function == nullptr && missing_.empty()) missing_ = name;
  }

  const std::string& missing() const { return missing_; }

 private:
  void* const library_;
  std::string missing_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_DEVICE_SYMBOLS_H_
