// The memory of a simulated GPU: its own, which faults when the host touches it, and pinned memory
// of the host. Whoever calls locks.

#ifndef TFMPI_TESTS_CORE_DEVICE_SIMULATED_MEMORY_H_
#define TFMPI_TESTS_CORE_DEVICE_SIMULATED_MEMORY_H_

#include <cstddef>
#include <map>
#include <string>

namespace tfmpi {

class SimulatedMemory {
 public:
  struct Block {
    char* start = nullptr;  // as the host and the code under test say it
    size_t bytes = 0;
    bool pinned = false;
    bool registered = false;  // pinned, and not made here
    bool deleted = false;
    int uses = 0;  // by work that was enqueued and has not ended
  };

  explicit SimulatedMemory(size_t device_bytes);
  ~SimulatedMemory();
  SimulatedMemory(const SimulatedMemory&) = delete;
  SimulatedMemory& operator=(const SimulatedMemory&) = delete;

  // Null if there is none left. Every byte of it is 0xff, which makes floats NaN. No address is
  // ever given twice.
  Block* New(size_t bytes, bool pinned);
  // Memory that somebody else has made, and ends after this or after Delete, which forgets it. Null
  // if some of it is a block already.
  Block* Register(char* memory, size_t bytes);
  // A pinned block faults from now on, when the host touches it, too.
  void Delete(Block* block);

  // The block that holds `bytes` from `address` on; else null, and `why` says what is wrong.
  Block* Find(const void* address, size_t bytes, std::string* why);
  // Where a stream's thread finds the bytes that the host knows as `address`.
  char* Inside(const void* address) const;

  // How many blocks of a kind were not deleted, but for those that work will use for ever.
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
