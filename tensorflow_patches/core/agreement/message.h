// The messages between ranks: ready lists to the coordinator, response lists from it.
//
// Plain data and pure functions. Decode returns false if the bytes are malformed.

#ifndef TFMPI_CORE_AGREEMENT_MESSAGE_H_
#define TFMPI_CORE_AGREEMENT_MESSAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow_patches/core/request/request.h"

namespace tfmpi {

// A name with a signature gets a number when the ranks first agree on it (exceptions: Recurs and
// kMaxIdsOfAName in coordinator.cc). A ready list then needs one bit for it, or a KnownGather.
using NameId = uint32_t;
inline constexpr NameId kNoId = UINT32_MAX;

struct NamedSignature {
  std::string name;
  Signature signature;
  uint64_t fingerprint = 0;
  Purpose purpose = Purpose::kStep;  // of a numbered name: that of its first announcement
};

// A sparse allgather that is ready under a known number. Its rows may change each time.
struct KnownGather {
  NameId id = kNoId;
  int64_t rows = 0;
};

// What a rank's script does while ranks wait for one another. Each report replaces the last one.
struct WaitState {
  // Where the only thread that uses the engine is blocked; until that ends, the rank makes no
  // request that its script waits for.
  enum class Blocked : uint8_t { kNo, kInRequest, kForFile };
  Blocked blocked = Blocked::kNo;
  std::string what;    // the name of the request; the file of rank 0
  uint64_t posts = 0;  // kForFile: the number of posts it has seen, none of which ended its wait
  bool has_no_gradients = false;  // blocked: the others average gradients without it
  bool idle = false;              // it waits for answers, and its process does nothing else
  uint64_t answers = 0;           // idle: how many agreements that complete requests it has seen
  std::string doing;              // for people: "fit() of model 'm', epoch 2, after 12 steps"

  bool operator==(const WaitState& other) const {
    return blocked == other.blocked && what == other.what && posts == other.posts &&
           has_no_gradients == other.has_no_gradients && idle == other.idle &&
           answers == other.answers && doing == other.doing;
  }
};
inline constexpr int kNumBlocked = 3;

// rank -> coordinator: what has changed since the last ready list.
struct ReadyList {
  std::vector<NameId> ready;             // sorted; known names that are ready here
  std::vector<KnownGather> gathers;      // known gathers that are ready here
  std::vector<NamedSignature> requests;  // ready here; this name with this signature has no number
  std::vector<std::string> withdrawn;    // no longer ready here
  bool joined = false;                   // this rank has no more requests; it contributes nothing
  std::string leaving;                   // not empty: this rank stops with an error
  std::vector<WaitState> wait_state;     // one if it has changed, else none

  bool empty() const {
    return ready.empty() && gathers.empty() && requests.empty() && withdrawn.empty() && !joined &&
           leaving.empty() && wait_state.empty();
  }
};

// One request that all ranks carry out.
struct ResponseItem {
  NameId id = kNoId;  // kNoId: `named` has and gets no number
  bool is_new = false;
  NamedSignature named;       // filled when is_new
  std::vector<int64_t> rows;  // GathersRows: the first dimension on each rank
};

// All ranks carry out the same responses in the same order.
struct Response {
  std::vector<ResponseItem> items;  // one, or allreduces that share a fusion buffer
  int32_t contributors = 0;         // ranks whose data counts; an average divides by it
};

struct NamedError {
  std::string name;
  Code code = Code::kInternal;
  std::string message;
};

struct Withdrawal {
  int32_t rank = 0;
  std::string name;
};

// coordinator -> every rank.
struct ResponseList {
  std::vector<Response> responses;
  std::vector<NamedError> errors;     // requests that end with an error on every rank
  std::vector<Withdrawal> withdrawn;  // requests that were withdrawn in time
  std::vector<std::string> posts;     // keys of events that have happened once more on rank 0
  std::string fatal;                  // not empty: the group cannot continue
  bool finished = false;              // every rank has joined
  uint64_t position = 0;              // agreements with responses before this one

  bool empty() const {
    return responses.empty() && errors.empty() && withdrawn.empty() && posts.empty() &&
           fatal.empty() && !finished;
  }
  bool completes_requests() const {
    return !responses.empty() || !errors.empty() || !withdrawn.empty();
  }
};

std::string Encode(const ReadyList& ready_list);
std::string Encode(const ResponseList& response_list);
bool Decode(const std::string& bytes, ReadyList* ready_list);
bool Decode(const std::string& bytes, ResponseList* response_list);

}  // namespace tfmpi

#endif  // TFMPI_CORE_AGREEMENT_MESSAGE_H_
