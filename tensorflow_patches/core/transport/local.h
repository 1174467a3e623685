// Ranks as threads of one process: the transport of the core's tests, and of a job with one rank.
//
// A group is created once; each rank's engine takes one transport from it. The transports share
// ownership of the group. Collectives verify that all ranks call the same operation, so a test
// fails where real MPI would corrupt data.

#ifndef TFMPI_CORE_TRANSPORT_LOCAL_H_
#define TFMPI_CORE_TRANSPORT_LOCAL_H_

#include <memory>
#include <string>

#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

class LocalGroup {
 public:
  explicit LocalGroup(int size);
  ~LocalGroup();

  std::unique_ptr<Transport> CreateTransport(int rank);

  // From now on every operation of every rank fails with `reason`, as after the death of a peer.
  void Break(const std::string& reason);

  struct Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_LOCAL_H_
