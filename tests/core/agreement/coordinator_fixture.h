// Base of the coordinator's tests: a clock that only the test advances, and short functions for the
// ranks' announcements.

#ifndef TFMPI_TESTS_CORE_AGREEMENT_COORDINATOR_FIXTURE_H_
#define TFMPI_TESTS_CORE_AGREEMENT_COORDINATOR_FIXTURE_H_

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/agreement/coordinator.h"

namespace tfmpi {

class CoordinatorTest : public ::testing::Test {
 protected:
  void Start(int size, const CoordinatorOptions& options = CoordinatorOptions()) {
    size_ = size;
    by_id_.clear();
    coordinator_ = std::make_unique<Coordinator>(size, options, now_);
  }

  void Send(int rank, const ReadyList& ready_list) {
    coordinator_->Receive(rank, ready_list, now_);
  }

  void Ready(int rank, const std::string& name, const Signature& signature,
             uint64_t fingerprint = 0) {
    ReadyList ready_list;
    ready_list.requests.push_back({name, signature, fingerprint});
    Send(rank, ready_list);
  }

  void Ready(int rank, const std::string& name, const Shape& shape,
             DataType type = DataType::kFloat32) {
    Ready(rank, name, Average(shape, type));
  }

  // Announces as an engine does: by number, if the name has one with this shape.
  void ReadyByNumber(int rank, const std::string& name, const Shape& shape) {
    for (size_t id = by_id_.size(); id-- > 0;) {
      if (by_id_[id].name != name || by_id_[id].signature.shape != shape) continue;
      ReadyList ready_list;
      ready_list.ready = {static_cast<NameId>(id)};
      return Send(rank, ready_list);
    }
    Ready(rank, name, shape);
  }

  void ReadyEverywhere(const std::string& name, const Shape& shape) {
    for (int rank = 0; rank < size_; ++rank) ReadyByNumber(rank, name, shape);
  }

  void Withdraw(int rank, const std::string& name) {
    ReadyList ready_list;
    ready_list.withdrawn = {name};
    Send(rank, ready_list);
  }

  void Join(int rank) {
    ReadyList ready_list;
    ready_list.joined = true;
    Send(rank, ready_list);
  }

  void ReportState(int rank, const WaitState& wait_state) {
    ReadyList ready_list;
    ready_list.wait_state = {wait_state};
    Send(rank, ready_list);
  }

  void BlockedIn(int rank, const std::string& name, bool has_no_gradients = false) {
    WaitState wait_state;
    wait_state.blocked = WaitState::Blocked::kInRequest;
    wait_state.what = name;
    wait_state.has_no_gradients = has_no_gradients;
    wait_state.doing = doing_;
    ReportState(rank, wait_state);
  }

  void Idle(int rank, uint64_t answers) {
    WaitState wait_state;
    wait_state.idle = true;
    wait_state.answers = answers;
    wait_state.doing = doing_;
    ReportState(rank, wait_state);
  }

  void Post(const std::string& key) { coordinator_->Post(key); }

  ResponseList Decide() {
    ResponseList response_list = coordinator_->Decide(now_);
    for (const Response& response : response_list.responses) {
      for (const ResponseItem& item : response.items) {
        if (!item.is_new || item.id == kNoId) continue;
        if (by_id_.size() <= item.id) by_id_.resize(item.id + 1);
        by_id_[item.id] = item.named;
      }
    }
    return response_list;
  }

  std::vector<std::string> Names(const ResponseList& response_list) const {
    std::vector<std::string> names;
    for (const Response& response : response_list.responses) {
      for (const ResponseItem& item : response.items) {
        names.push_back(item.is_new ? item.named.name : by_id_.at(item.id).name);
      }
    }
    return names;
  }

  std::vector<std::string> Notices() { return coordinator_->TakeNotices(); }
  const std::vector<LastReady>& Last() const { return coordinator_->last_ready(); }
  void Advance(std::chrono::milliseconds time) { now_ += time; }

  std::string doing_;  // WaitState::doing of all ranks

  static Signature Average(const Shape& shape, DataType type = DataType::kFloat32) {
    Signature signature;
    signature.dtype = type;
    signature.shape = shape;
    return signature;
  }

  static Signature Of(OpKind kind, ReduceOp op = ReduceOp::kAverage, int root = 0) {
    Signature signature;
    signature.kind = kind;
    signature.op = op;
    signature.root = root;
    signature.shape = {1};
    return signature;
  }

 private:
  int size_ = 0;
  TimePoint now_{std::chrono::hours(1)};
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<NamedSignature> by_id_;
};

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_AGREEMENT_COORDINATOR_FIXTURE_H_
