// Times core's Reduce by type and number of sources, on one thread and in its own memory.
//
//   bazel run -c opt //benchmarks:reduce [bytes of each source]
//
// Prints gigabytes read and written per second, for the best of several runs, because noise only
// slows runs down.

#include "tensorflow_patches/core/cpu/reduce.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  const size_t bytes = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : size_t{64} << 10;
  const tfmpi::DataType types[] = {tfmpi::DataType::kFloat32, tfmpi::DataType::kFloat64,
                                   tfmpi::DataType::kFloat16, tfmpi::DataType::kBfloat16,
                                   tfmpi::DataType::kInt32,   tfmpi::DataType::kUint8};
  std::printf("%zu bytes, GB/s  ranks: 2      3      4      8\n", bytes);
  for (const tfmpi::DataType type : types) {
    std::printf("%-20s", tfmpi::Name(type));
    for (const int ranks : {2, 3, 4, 8}) {
      std::vector<std::vector<char>> memory(ranks + 1, std::vector<char>(bytes));
      std::vector<const void*> sources;
      for (int r = 0; r < ranks; ++r) sources.push_back(memory[r].data());
      tfmpi::Reduction reduction;
      reduction.type = type;
      reduction.count = bytes / tfmpi::SizeOf(type);
      const bool integer = type == tfmpi::DataType::kInt32 || type == tfmpi::DataType::kUint8;
      reduction.scale = integer ? 1 : 1.0 / ranks;
      const size_t moved = bytes * (ranks + 1);
      const int rounds = static_cast<int>((size_t{32} << 20) / moved) + 1;
      double best = 1e9;
      for (int repeat = 0; repeat < 15; ++repeat) {
        const auto begin = Clock::now();
        for (int i = 0; i < rounds; ++i) {
          tfmpi::Reduce(reduction, sources.data(), ranks, reduction.count, memory[ranks].data(),
                        nullptr);
        }
        best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
      }
      std::printf(" %6.1f", static_cast<double>(moved) * rounds / best / 1e9);
    }
    std::printf("\n");
  }
}
