// The management library (NVML): queries that TensorFlow makes before it uses a device.

#include <cstdio>

#include "device/state.h"

using namespace standin;  // NOLINT: this file is the interface of that namespace

namespace {

constexpr Result kNone = 3;  //  the code for "not supported"

}  // namespace

STANDIN_API Result nvmlInit() { return 0; }
STANDIN_API Result nvmlInit_v2() { return 0; }
STANDIN_API Result nvmlInitWithFlags(unsigned) { return 0; }
STANDIN_API Result nvmlShutdown() { return 0; }
STANDIN_API const char* nvmlErrorString(Result) { return "not supported by the stand-in GPU"; }
STANDIN_API Result nvmlSystemGetDriverVersion(char* text, unsigned length) {
  std::snprintf(text, length, "575.57.08");
  return 0;
}
STANDIN_API Result nvmlSystemGetCudaDriverVersion(int* version) {
  *version = 12090;
  return 0;
}
STANDIN_API Result nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(devices().size());
  return 0;
}
STANDIN_API Result nvmlDeviceGetHandleByIndex_v2(unsigned ordinal, void** handle) {
  *handle = DeviceAt(static_cast<int>(ordinal));
  return *handle != nullptr ? 0 : kNone;
}
STANDIN_API Result nvmlDeviceGetHandleByPciBusId_v2(const char* text, void** handle) {
  unsigned domain = 0, bus = 0;
  if (std::sscanf(text, "%x:%x", &domain, &bus) != 2) return kNone;
  for (const auto& device : devices()) {
    if (PciBus(*device) == static_cast<int>(bus)) *handle = device.get();
  }
  return 0;
}
STANDIN_API Result nvmlDeviceGetMaxPcieLinkGeneration(void*, unsigned* generation) {
  *generation = 5;
  return 0;
}
STANDIN_API Result nvmlDeviceGetCurrPcieLinkGeneration(void*, unsigned* generation) {
  *generation = 5;
  return 0;
}
STANDIN_API Result nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* width) {
  *width = 16;
  return 0;
}
STANDIN_API Result nvmlDeviceGetCurrPcieLinkWidth(void*, unsigned* width) {
  *width = 16;
  return 0;
}
STANDIN_API Result nvmlDeviceGetPcieLinkMaxSpeed(void*, unsigned* speed) {
  *speed = 32000;
  return 0;
}
STANDIN_API Result nvmlDeviceGetPcieSpeed(void*, unsigned* speed) {
  *speed = 32000;
  return 0;
}
