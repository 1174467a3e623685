// The stand-in's own declarations of CUDA's interface: result codes, handles, a few structures.

#ifndef TFMPI_TESTS_GPU_STANDIN_DEVICE_TYPES_H_
#define TFMPI_TESTS_GPU_STANDIN_DEVICE_TYPES_H_

#include <cstddef>
#include <cstdint>

// A function that the library exports. Everything else is hidden.
#define STANDIN_API extern "C" __attribute__((visibility("default")))

namespace standin {

using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kInvalidValue = 1;
constexpr Result kOutOfMemory = 2;
constexpr Result kNotInitialized = 3;
constexpr Result kInvalidDevice = 101;
constexpr Result kInvalidContext = 201;
constexpr Result kInvalidHandle = 400;
constexpr Result kNotFound = 500;
constexpr Result kNotReady = 600;
constexpr Result kAlreadyRegistered = 712;
constexpr Result kNotRegistered = 713;
constexpr Result kNotSupported = 801;

// A device address, on which a host access faults.
using Pointer = uint64_t;
using HostFunction = void (*)(void*);

struct Dim3 {
  unsigned x, y, z;
};

struct Copy2D {
  size_t from_x, from_y;
  int from_kind;
  const void* from_host;
  Pointer from_device;
  void* from_array;
  size_t from_pitch;
  size_t to_x, to_y;
  int to_kind;
  void* to_host;
  Pointer to_device;
  void* to_array;
  size_t to_pitch;
  size_t width, height;
};

struct Copy3D {
  size_t from_x, from_y, from_z, from_level;
  int from_kind;
  const void* from_host;
  Pointer from_device;
  void* from_array;
  void* from_reserved;
  size_t from_pitch, from_height;
  size_t to_x, to_y, to_z, to_level;
  int to_kind;
  void* to_host;
  Pointer to_device;
  void* to_array;
  void* to_reserved;
  size_t to_pitch, to_height;
  size_t width, height, depth;
};

struct Fill {
  Pointer to;
  size_t pitch;
  unsigned value, bytes;  //  size of an element
  size_t width, height;   // in elements, in rows
};

struct LaunchConfig {
  Dim3 grid, block;
  unsigned shared;
  void* stream;
  void* attributes;
  unsigned num_attributes;
};

}  // namespace standin

#endif  // TFMPI_TESTS_GPU_STANDIN_DEVICE_TYPES_H_
