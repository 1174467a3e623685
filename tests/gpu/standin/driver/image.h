// The variables in a module's image with their initial values, such as XLA's constants.

#ifndef TFMPI_TESTS_GPU_STANDIN_DRIVER_IMAGE_H_
#define TFMPI_TESTS_GPU_STANDIN_DRIVER_IMAGE_H_

#include <map>
#include <string>
#include <vector>

namespace standin {

// By name. `image` is a cubin or PTX; for other formats the result is empty.
std::map<std::string, std::vector<char>> Variables(const void* image);

}  // namespace standin

#endif  // TFMPI_TESTS_GPU_STANDIN_DRIVER_IMAGE_H_
