// How survivors regroup after a death: the interface of a transport that supports it.
//
// Communication thread only. A rank that learns of a death makes all others learn of it, so that no
// rank waits for one that has left to regroup.

#ifndef TFMPI_CORE_TRANSPORT_MEMBERSHIP_H_
#define TFMPI_CORE_TRANSPORT_MEMBERSHIP_H_

#include <memory>

#include "tensorflow_patches/core/base/clock.h"
#include "tensorflow_patches/core/base/status.h"

namespace tfmpi {

class Transport;

class Membership {
 public:
  virtual ~Membership() = default;

  // Whether a rank of the group has died, or one that knows of a death has voted no. Cheap, does
  // not wait. Once it is true, operations of the transport fail on all ranks.
  virtual bool HasFailedRank() = 0;
  // Called by all living ranks. `all`: every one of them voted yes and none has died; the same on
  // all. A no interrupts the group at once. Not ok: some did not call it before the deadline.
  virtual Status Agree(bool yes, TimePoint deadline, bool* all) = 0;
  // Called by all living ranks, after an Agree that was not unanimous: returns a transport among
  // them, in rank order. The new group may already have failed again.
  virtual Status Regroup(std::unique_ptr<Transport>* next) = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_MEMBERSHIP_H_
