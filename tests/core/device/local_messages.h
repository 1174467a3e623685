// Messages between ranks that are threads: like MPI's, from host memory, with errors on demand.

#ifndef TFMPI_TESTS_CORE_DEVICE_LOCAL_MESSAGES_H_
#define TFMPI_TESTS_CORE_DEVICE_LOCAL_MESSAGES_H_

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "tensorflow_patches/core/transport/gpu_messages.h"

namespace tfmpi {

// Must outlive the messages of its ranks.
class LocalMessages {
 public:
  // Faults of a library that claims more than it can do.
  enum class Fault {
    kNone,
    kNothing,  // ends without having delivered anything
    kShort,    // delivers the first kEager bytes of a message
    kStale,    // delivers the previous message
    kNever,    // never ends
  };
  static constexpr size_t kEager = 4096;
  enum class Call { kStart, kTest };

  explicit LocalMessages(int size) : size_(size) {}

  std::unique_ptr<GpuMessages> Join(int rank);
  // The fault of the messages that `rank` receives.
  void SetFault(int rank, Fault fault);
  // The n-th such call of `rank` from now on fails; n = 1 is the next one.
  void Fail(int rank, Call call, int n);
  // The number of messages that `rank` has received.
  int received(int rank);

 private:
  class OfRank;
  using Way = std::tuple<int, int, int>;  // lane, from, to
  struct Sent {
    const char* data;
    size_t bytes;
    std::shared_ptr<bool> taken;
  };
  struct Member {
    Fault fault = Fault::kNone;
    std::map<Call, int> until_failure;
    int received = 0;
  };

  const int size_;
  std::mutex mutex_;
  std::map<Way, std::deque<Sent>> sent_;  // and not yet received
  std::map<int, Member> members_;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_DEVICE_LOCAL_MESSAGES_H_
