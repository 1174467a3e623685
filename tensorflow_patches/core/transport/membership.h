// How survivors regroup after a death: the interface of a transport that supports it.
//
// Communication thread only. A rank that learns of a death leaves its operation and votes no in
// Agree. This interrupts the operations of the other ranks, which would otherwise wait for it.

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

  // Whether a rank of the group has died, or a rank that knows of a death has voted no. Cheap, does
  // not wait. Once it is true, the transport's operations may fail on any rank.
  virtual bool HasFailedRank() = 0;
  // Called by all living ranks. Sets *all, to the same on all of them: whether every rank voted yes
  // and none has died. A no interrupts the other ranks' operations at once. Not ok: some rank did
  // not call it before the deadline.
  virtual Status Agree(bool yes, TimePoint deadline, bool* all) = 0;
  // Called by all living ranks, after an Agree that was not unanimous: creates a transport among
  // them, in rank order. Waits for all of them, without a deadline. When it returns, the new group
  // may already have failed again.
  virtual Status Regroup(std::unique_ptr<Transport>* next) = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_MEMBERSHIP_H_
