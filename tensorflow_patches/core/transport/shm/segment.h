// A segment of POSIX shared memory, for the ranks of one node and nobody else.
//
// Containers may share /dev/shm and have process numbers of their own, so a name made of one may
// be another job's. This one is drawn at random; whoever attaches checks owner, mode and size, and
// a key that the creator has put behind the memory. Any thread; nothing is kept.

#ifndef TFMPI_CORE_TRANSPORT_SHM_SEGMENT_H_
#define TFMPI_CORE_TRANSPORT_SHM_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace tfmpi {

// What the creator sends to the others: bytes alone.
struct SegmentId {
  char name[48];  // "" if there is none
  uint64_t key[2];
};

// Where this process's segments lie: the host by name, the kernel by its start, /dev/shm by its
// device. Processes of equal places can attach each other's. No part is enough alone: containers of
// one host have its kernel and a /dev/shm each, hosts may have one name, and virtual machines that
// were copied while they ran have one start.
struct SegmentPlace {
  char host[72];
  char start[40];
  uint64_t device;
};

// All bytes are set, so that places can be compared and sent as bytes.
SegmentPlace PlaceOfSegments();

// `bytes` of memory. On failure a null pointer, and the reason; the id is then that of none.
void* CreateSegment(size_t bytes, SegmentId* id, std::string* why);
void* AttachSegment(const SegmentId& id, size_t bytes, std::string* why);
// What either has given; a null pointer too.
void UnmapSegment(void* memory, size_t bytes);
// By its creator, when all have attached: nobody finds it any more, and what is mapped stays.
void RemoveSegment(const SegmentId& id);

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_SHM_SEGMENT_H_
