// Modules and their functions, which are only names and never run.

#ifndef TFMPI_TESTS_GPU_STANDIN_DEVICE_CODE_H_
#define TFMPI_TESTS_GPU_STANDIN_DEVICE_CODE_H_

#include "device/operations.h"

namespace standin {

struct Function {
  std::string name;
  struct Module* module;
  std::map<int, int> attributes;  //  that were set
};
struct Module {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Function>> functions;
  std::map<std::string, Pointer> globals;              //  that were requested
  std::map<std::string, std::vector<char>> variables;  //  from its image
};

Function* FunctionOf(Module* module, const char* name);
// The memory of a global, allocated at its first use with the image's contents, else kGlobalBytes.
constexpr size_t kGlobalBytes = size_t{4} << 20;
Result GlobalOf(Module* module, const char* name, Pointer* pointer, size_t* bytes);

int FunctionAttribute(const Function* function, int attribute);
// The number of blocks with that many threads that fit on a multiprocessor.
int ActiveBlocks(int threads);

}  // namespace standin

#endif  // TFMPI_TESTS_GPU_STANDIN_DEVICE_CODE_H_
