// Modules and their functions: names only. Nothing of them ever runs.

#ifndef TFMPI_TESTS_GPU_STANDIN_DEVICE_CODE_H_
#define TFMPI_TESTS_GPU_STANDIN_DEVICE_CODE_H_

#include "device/operations.h"

namespace standin {

struct Function {
  std::string name;
  struct Module* module;
  std::map<int, int> attributes;  // that were set
};
struct Module {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Function>> functions;
  std::map<std::string, Pointer> globals;              // that were asked for
  std::map<std::string, std::vector<char>> variables;  // of its image
};

Function* FunctionOf(Module* module, const char* name);
// Its memory, made at the first use, with what the image has; kGlobalBytes if that has none.
constexpr size_t kGlobalBytes = size_t{4} << 20;
Result GlobalOf(Module* module, const char* name, Pointer* pointer, size_t* bytes);

int FunctionAttribute(const Function* function, int attribute);
// How many blocks of that many threads a multiprocessor takes.
int ActiveBlocks(int threads);

}  // namespace standin

#endif  // TFMPI_TESTS_GPU_STANDIN_DEVICE_CODE_H_
