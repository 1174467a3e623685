#include "tests/core/device/local_messages.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace tfmpi {

class LocalMessages::OfRank : public GpuMessages {
 public:
  OfRank(LocalMessages* all, int rank) : all_(*all), rank_(rank) {}
  // From now on no rank reads the messages of this one.
  ~OfRank() override {
    std::lock_guard<std::mutex> lock(all_.mutex_);
    for (auto& [way, sent] : all_.sent_) {
      if (std::get<1>(way) == rank_) sent.clear();
    }
  }

  Status Start(int lane, const std::vector<GpuPart>& send,
               const std::vector<GpuPart>& receive) override {
    std::lock_guard<std::mutex> lock(all_.mutex_);
    const Status status = Begin(Call::kStart, "MPI_Isend");
    if (!status.ok()) return status;
    for (int r = 0; r < all_.size_; ++r) {
      if (r == rank_) continue;
      if (send[r].bytes != 0) {
        taken_[lane].push_back(std::make_shared<bool>(false));
        all_.sent_[{lane, rank_, r}].push_back(
            {static_cast<const char*>(send[r].data), send[r].bytes, taken_[lane].back()});
      }
      if (receive[r].bytes != 0) missing_[lane].emplace_back(r, receive[r]);
    }
    return status;
  }

  Status Test(int lane, bool* ended) override {
    std::lock_guard<std::mutex> lock(all_.mutex_);
    Status status = Begin(Call::kTest, "MPI_Testall");
    if (!status.ok()) return status;
    auto& missing = missing_[lane];
    for (auto it = missing.begin(); it != missing.end() && status.ok();) {
      std::deque<Sent>& sent = all_.sent_[{lane, it->first, rank_}];
      if (sent.empty()) {
        ++it;
        continue;
      }
      status = Deliver(sent.front(), it->second, it->first, lane);
      *sent.front().taken = true;
      sent.pop_front();
      it = missing.erase(it);
    }
    auto& taken = taken_[lane];
    const bool all = std::all_of(taken.begin(), taken.end(), [](const auto& one) { return *one; });
    *ended = missing.empty() && all && all_.members_[rank_].fault != Fault::kNever;
    if (*ended) taken.clear();
    return status;
  }

 private:
  Status Begin(Call call, const char* name) {
    auto& until = all_.members_[rank_].until_failure;
    const auto planned = until.find(call);
    if (planned == until.end() || --planned->second != 0) return Status();
    return Status(Code::kUnavailable, std::string(name) + " failed (as the test wants it)");
  }

  Status Deliver(const Sent& sent, const GpuPart& part, int from, int lane) {
    Member& own = all_.members_[rank_];
    ++own.received;
    if (sent.bytes != part.bytes) {
      return Status(Code::kInternal, "rank " + std::to_string(from) + " has sent " +
                                         std::to_string(sent.bytes) + " bytes on lane " +
                                         std::to_string(lane) + ", not " +
                                         std::to_string(part.bytes));
    }
    size_t bytes = part.bytes;
    if (own.fault == Fault::kNothing) bytes = 0;
    if (own.fault == Fault::kShort) bytes = std::min(bytes, kEager);
    if (own.fault == Fault::kStale) {
      std::vector<char> now(sent.data, sent.data + bytes);
      last_.resize(bytes);
      std::memcpy(part.data, last_.data(), bytes);
      last_ = std::move(now);
    } else {
      std::memcpy(part.data, sent.data, bytes);
    }
    return Status();
  }

  LocalMessages& all_;
  const int rank_;
  std::map<int, std::vector<std::pair<int, GpuPart>>> missing_;  // by lane
  std::map<int, std::vector<std::shared_ptr<bool>>> taken_;      // by lane: what was sent
  std::vector<char> last_;                                       // message, for Fault::kStale
};

std::unique_ptr<GpuMessages> LocalMessages::Join(int rank) {
  return std::make_unique<OfRank>(this, rank);
}

void LocalMessages::SetFault(int rank, Fault fault) {
  std::lock_guard<std::mutex> lock(mutex_);
  members_[rank].fault = fault;
}

void LocalMessages::Fail(int rank, Call call, int n) {
  std::lock_guard<std::mutex> lock(mutex_);
  members_[rank].until_failure[call] = n;
}

int LocalMessages::received(int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  return members_[rank].received;
}

}  // namespace tfmpi
