// Memory to which a failed operation may still write.

#ifndef TFMPI_CORE_MEMORY_LEAKED_MEMORY_H_
#define TFMPI_CORE_MEMORY_LEAKED_MEMORY_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tfmpi {

// Keeps `memory` until the process ends: MPI cannot cancel an operation that a dead rank has left
// incomplete, and gives no guarantee that it will not write any more. Any thread.
template <typename T, typename Deleter>
void KeepUntilExit(std::unique_ptr<T, Deleter> memory) {
  static auto* const mutex = new std::mutex;
  static auto* const kept = new std::vector<std::unique_ptr<T, Deleter>>;
  const std::lock_guard<std::mutex> lock(*mutex);
  kept->push_back(std::move(memory));
}

}  // namespace tfmpi

#endif  // TFMPI_CORE_MEMORY_LEAKED_MEMORY_H_
