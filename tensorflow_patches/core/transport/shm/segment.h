// A segment of POSIX shared memory for the ranks of one node only.
//
// Containers may share /dev/shm but have process ids of their own, so a name made from a process id
// may belong to another job. Therefore the name is random, and a rank that attaches checks the
// file's owner, mode and size, and a key that the creator has stored after the memory. Any thread.

#ifndef TFMPI_CORE_TRANSPORT_SHM_SEGMENT_H_
#define TFMPI_CORE_TRANSPORT_SHM_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace tfmpi {

// Sent by the creator to the other ranks, as plain bytes.
struct SegmentId {
  char name[48];  // "" if there is none
  uint64_t key[2];
};

// Identifies where this process's segments are: the host by its name, the running kernel by its
// boot id, /dev/shm by its device. Processes with equal places can attach each other's
// segments. No part is sufficient alone: containers of one host share its kernel but not /dev/shm,
// hosts may have the same name, and virtual machines copied while running have the same boot id.
struct SegmentPlace {
  char host[72];
  char boot_id[40];
  uint64_t device;
};

// All bytes are set, so that places can be compared and sent as bytes.
SegmentPlace PlaceOfSegments();

// Both return null on failure and set *why; an *id whose segment could not be created has no name.
void* CreateSegment(size_t bytes, SegmentId* id, std::string* why);
void* AttachSegment(const SegmentId& id, size_t bytes, std::string* why);
// For memory from either function; also accepts null.
void UnmapSegment(void* memory, size_t bytes);
// Called by the creator when all have attached: the segment loses its name, mappings stay valid.
void RemoveSegment(const SegmentId& id);

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_SHM_SEGMENT_H_
