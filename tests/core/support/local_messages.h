// Messages between ranks that are threads: as MPI's, of the host's memory, with errors on demand.

#ifndef TFMPI_TESTS_CORE_SUPPORT_LOCAL_MESSAGES_H_
#define TFMPI_TESTS_CORE_SUPPORT_LOCAL_MESSAGES_H_

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "tensorflow_patches/core/transport/gpu_messages.h"

namespace tfmpi {

// Outlives the messages of its ranks.
class LocalMessages {
 public:
  // What a library does that says more of itself than it can.
  enum class Fault {
    kNone,
    kNothing,  // ends, and has delivered nothing
    kShort,    // delivers the first kEager bytes of a message
    kStale,    // delivers the message before
    kNever,    // does not end
  };
  static constexpr size_t kEager = 4096;
  enum class Call { kStart, kTest };

  explicit LocalMessages(int size) : size_(size) {}

  std::unique_ptr<GpuMessages> Join(int rank);
  // Of what `rank` receives.
  void SetFault(int rank, Fault fault);
  // The n-th such call of `rank` from now on fails; n = 1 is the next.
  void Fail(int rank, Call call, int n);
  // How many messages of `rank` have come.
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
  std::map<Way, std::deque<Sent>> sent_;  // and not taken
  std::map<int, Member> members_;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_SUPPORT_LOCAL_MESSAGES_H_
