// The memory of a simulated GPU: its own, which faults when the host touches it, and pinned memory
// of the host. Not thread-safe: the GPU holds its lock.

#ifndef TFMPI_TESTS_CORE_DEVICE_SIMULATED_MEMORY_H_
#define TFMPI_TESTS_CORE_DEVICE_SIMULATED_MEMORY_H_

#include <cstddef>
#include <map>
#include <string>

namespace tfmpi {

class SimulatedMemory {
 public:
  struct Block {
    char* start = nullptr;  // the address that the code under test uses
    size_t bytes = 0;
    bool pinned = false;
    bool registered = false;  // pinned, and allocated by others
    bool deleted = false;
    int uses = 0;  // by work that was enqueued and has not ended
  };

  explicit SimulatedMemory(size_t device_bytes);
  ~SimulatedMemory();
  SimulatedMemory(const SimulatedMemory&) = delete;
  SimulatedMemory& operator=(const SimulatedMemory&) = delete;

  // Null if no memory is left. Every byte of a block is 0xff, which makes floats NaN. No address is
  // used twice.
  Block* New(size_t bytes, bool pinned);
  // Memory of another owner, which must exist until Delete, which forgets it, or until this
  // object's end. Null if some of it is a block already.
  Block* Register(char* memory, size_t bytes);
  // From now on the host faults when it touches a pinned block, too.
  void Delete(Block* block);

  // The block that contains `bytes` from `address` on; if none does, null, and `why` says what is
  // there instead.
  Block* Find(const void* address, size_t bytes, std::string* why);
  // Where a stream's thread finds the bytes that the host knows as `address`.
  char* Inside(const void* address) const;

  // How many blocks of a kind were not deleted, except those that unfinished work uses.
  int Left(bool pinned) const;

 private:
  const size_t bytes_;
  char* const outside_;  // reserved: no page of it can be read or written
  char* const inside_;
  size_t taken_ = 0;
  std::map<const char*, Block> blocks_;  // by start
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_DEVICE_SIMULATED_MEMORY_H_
