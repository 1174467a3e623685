// How the ranks that are left meet when others have died: what a transport can do that can go on.
//
// Communication thread only. Whoever learns of a death makes all others learn of it, so that no
// rank waits for one that has gone to meet the others.

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

  // Whether a rank of the group has died, or one that knows of it has said No. Cheap, waits for
  // nobody. Once it is true, operations of the transport fail, on all ranks.
  virtual bool HasFailedRank() = 0;
  // All living ranks call it. `all`: every one of them has said yes, and none has died; the same on
  // all. No disturbs the group at once. Not ok: some did not come until the deadline.
  virtual Status Agree(bool yes, TimePoint deadline, bool* all) = 0;
  // All living ranks call it, after an Agree that was not unanimous: a transport among them, in
  // their order. It may be disturbed again already.
  virtual Status Regroup(std::unique_ptr<Transport>* next) = 0;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_MEMBERSHIP_H_
