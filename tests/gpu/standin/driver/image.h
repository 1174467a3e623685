// The variables of a module's image, with what they hold at first: XLA's constants are such.

#ifndef TFMPI_TESTS_GPU_STANDIN_DRIVER_IMAGE_H_
#define TFMPI_TESTS_GPU_STANDIN_DRIVER_IMAGE_H_

#include <map>
#include <string>
#include <vector>

namespace standin {

// By name. `image` is a cubin or PTX; of another kind nothing is known.
std::map<std::string, std::vector<char>> Variables(const void* image);

}  // namespace standin

#endif  // TFMPI_TESTS_GPU_STANDIN_DRIVER_IMAGE_H_
