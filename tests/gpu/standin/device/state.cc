#include "device/state.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <sstream>

namespace standin {
namespace {

int Number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != 0 ? std::atoi(text) : otherwise;
}

constexpr const char* kNames[kCounts] = {
    "kernels", "copies to device", "copies to host", "copies on",
    "fills",   "host calls",       "waits",          "graphs"};
std::atomic<uint64_t>* counts() {
  static auto* all = new std::array<std::atomic<uint64_t>, kCounts>{};
  return all->data();
}

void PrintCounts() {
  std::ostringstream line;
  for (int i = 0; i < kCounts; ++i) line << (i > 0 ? ", " : "") << counts()[i] << " " << kNames[i];
  std::fprintf(stderr, "stand-in GPU, process %d: %s\n", getpid(), line.str().c_str());
}

std::vector<int> Visible(int all) {
  std::vector<int> visible;
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int i = 0; i < all; ++i) visible.push_back(i);
    return visible;
  }
  std::istringstream list(text);
  // Like the driver, stops at the first entry that is not a device.
  for (std::string item; std::getline(list, item, ',');) {
    char* end = nullptr;
    const long number = std::strtol(item.c_str(), &end, 10);
    if (end == item.c_str() || number < 0 || number >= all) break;
    visible.push_back(static_cast<int>(number));
  }
  return visible;
}

}  // namespace

const Settings& settings() {
  static const Settings* values = [] {
    auto* read = new Settings;
    read->devices = Number("FAKE_CUDA_DEVICES", 1);
    read->bytes = static_cast<size_t>(Number("FAKE_CUDA_MEMORY_MB", 8192)) << 20;
    read->delay_us = Number("FAKE_CUDA_DELAY_US", 0);
    read->verbose = Number("FAKE_CUDA_VERBOSE", 0);
    read->statistics = Number("FAKE_CUDA_STATISTICS", 0) != 0;
    if (read->statistics) std::atexit(PrintCounts);
    return read;
  }();
  return *values;
}

const std::vector<std::unique_ptr<Device>>& devices() {
  static const auto* all = [] {
    auto* made = new std::vector<std::unique_ptr<Device>>;
    for (int ordinal : Visible(settings().devices)) {
      made->push_back(std::make_unique<Device>(ordinal, settings().bytes));
    }
    return made;
  }();
  return *all;
}

Device* DeviceAt(int ordinal) {
  if (ordinal < 0 || ordinal >= static_cast<int>(devices().size())) return nullptr;
  return devices()[ordinal].get();
}

int PciBus(const Device& device) { return 0x3b + device.ordinal; }

void Uuid(const Device& device, unsigned char* bytes16) {
  for (int i = 0; i < 16; ++i) bytes16[i] = static_cast<unsigned char>(0x5d + i);
  bytes16[15] = static_cast<unsigned char>(device.ordinal);
}

// Attributes of an H100 that TensorFlow and XLA query; all others are 0.
int Attribute(const Device& device, int attribute) {
  static const auto* known = new std::map<int, int>{
      {1, 1024},        {2, 1024},        {3, 1024},     {4, 64},       {5, 2147483647},
      {6, 65535},       {7, 65535},       {8, 49152},    {9, 65536},    {10, 32},
      {11, 2147483647}, {12, 65536},      {13, 1980000}, {14, 512},     {15, 1},
      {16, 132},        {19, 1},          {21, 131072},  {22, 131072},  {23, 65536},
      {30, 512},        {31, 1},          {32, 1},       {36, 2619000}, {37, 5120},
      {38, 52428800},   {39, 2048},       {40, 3},       {41, 1},       {51, 32},
      {75, 9},          {76, 0},          {78, 1},       {79, 1},       {80, 1},
      {81, 233472},     {82, 65536},      {83, 1},       {87, 2},       {89, 1},
      {90, 1},          {91, 1},          {92, 1},       {93, 1},       {94, 1},
      {95, 1},          {96, 1},          {97, 232448},  {99, 1},       {106, 32},
      {108, 32768000},  {109, 134213632}, {111, 1024},   {113, 1},      {115, 1},
      {120, 1},         {122, 1},         {123, 1},      {126, 4},      {127, 1},
      {129, 1},         {131, -1},        {134, -1}};
  if (attribute == 33) return PciBus(device);
  const auto found = known->find(attribute);
  return found == known->end() ? 0 : found->second;
}

std::vector<Context*>& context_stack() {
  static thread_local std::vector<Context*> stack;
  return stack;
}

Context* CurrentContext() { return context_stack().empty() ? nullptr : context_stack().back(); }

void Add(Count count) {
  settings();
  counts()[count].fetch_add(1, std::memory_order_relaxed);
}

void Trace(const char* format, ...) {
  if (settings().verbose < 2) return;
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "stand-in GPU, process %d: %s\n", getpid(), line);
}

Result Unsupported(const char* name) {
  static auto* mutex = new std::mutex;
  static auto* named = new std::set<std::string>;
  if (settings().verbose > 0) {
    std::lock_guard<std::mutex> lock(*mutex);
    if (named->insert(name).second) {
      std::fprintf(stderr, "stand-in GPU: %s is not simulated\n", name);
    }
  }
  return kNotSupported;
}

}  // namespace standin

// For tests: the number of events in this process; `count` as in state.h.
STANDIN_API uint64_t standin_count(int count) {
  return count >= 0 && count < standin::kCounts ? standin::counts()[count].load() : 0;
}

// For tests: whether a device's memory contains these bytes anywhere.
STANDIN_API int standin_holds(const void* bytes, size_t length) {
  for (const auto& device : standin::devices()) {
    if (device->memory.Holds(bytes, length)) return 1;
  }
  return 0;
}
