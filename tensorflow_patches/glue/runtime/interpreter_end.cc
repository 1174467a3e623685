#include "tensorflow_patches/glue/runtime/interpreter_end.h"

#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>

namespace tfmpi {
namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr milliseconds kPollInterval(100);
constexpr double kIdleShare = 0.02;  // of a core: TensorFlow's own threads sometimes wake up

double ProcessorSeconds() {
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

}  // namespace

void LimitInterpreterEnd(int code, milliseconds patience, std::string line) {
  void* symbol = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
  if (symbol == nullptr) symbol = dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");  // before Python 3.13
  if (symbol == nullptr) return;
  const auto is_finalizing = reinterpret_cast<int (*)()>(symbol);
  std::thread([is_finalizing, code, patience, line = std::move(line)] {
    while (!is_finalizing()) std::this_thread::sleep_for(kPollInterval);
    SteadyClock::time_point since = SteadyClock::now();
    double used = ProcessorSeconds();
    for (;;) {
      std::this_thread::sleep_for(kPollInterval);
      const double waited = std::chrono::duration<double>(SteadyClock::now() - since).count();
      if (SteadyClock::now() - since < patience) continue;
      if (ProcessorSeconds() - used < kIdleShare * waited) {
        if (!line.empty()) std::fprintf(stderr, "%s\n", line.c_str());
        _exit(code);
      }
      since = SteadyClock::now();
      used = ProcessorSeconds();
    }
  }).detach();
}

}  // namespace tfmpi
