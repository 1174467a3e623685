// The queue from other threads to the communication thread: new requests, withdrawals, posts, and
// whether to join, leave or stop.
//
// Any thread, but Drain and Close on the communication thread. Owns its contents until drained.

#ifndef TFMPI_CORE_REQUEST_QUEUE_H_
#define TFMPI_CORE_REQUEST_QUEUE_H_

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/request/request.h"

namespace tfmpi {

// Identifies one submission for the lifetime of the engine; 0: none.
using Ticket = uint64_t;

struct Submission {
  Ticket ticket = 0;
  Request request;
};

struct Drained {
  std::vector<Submission> submissions;
  std::vector<Ticket> withdrawals;
  std::vector<std::string> posts;

  bool empty() const { return submissions.empty() && withdrawals.empty() && posts.empty(); }
  void clear() {
    submissions.clear();
    withdrawals.clear();
    posts.clear();
  }
};

class Queue {
 public:
  // `wake` ends the communication thread's sleep. Called by the thread that pushes, with no lock
  // held, and never after Close has returned.
  explicit Queue(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Appends a ticket per request, unless `tickets` is null. After AskToJoin or Close it leaves
  // `requests` unchanged and returns false.
  bool Push(std::vector<Request>* requests, std::vector<Ticket>* tickets) {
    bool pushed = false;
    Change([&] {
      pushed = !join_asked_;
      if (!pushed) return;
      for (Request& request : *requests) {
        drained_.submissions.push_back({++last_ticket_, std::move(request)});
        if (tickets != nullptr) tickets->push_back(last_ticket_);
      }
    });
    return pushed;
  }

  void PushWithdrawal(Ticket ticket) {
    Change([&] { drained_.withdrawals.push_back(ticket); });
  }

  void PushPost(const std::string& key) {
    Change([&] { drained_.posts.push_back(key); });
  }

  // Join: no more requests follow. Leave: this rank stops for this reason; called once. Stop: the
  // communication thread ends now.
  void AskToJoin() { Ask(&join_asked_); }
  void AskToLeave(const std::string& reason) {
    leave_reason_ = reason;
    Ask(&leave_asked_);
  }
  void AskToStop() { Ask(&stop_asked_); }
  bool join_asked() const { return join_asked_; }
  bool leave_asked() const { return leave_asked_; }
  const std::string& leave_reason() const { return leave_reason_; }  // only after leave_asked()
  bool stop_asked() const { return stop_asked_; }
  bool end_asked() const { return join_asked_ || leave_asked_ || stop_asked_; }

  // Ignores everything from now on; Push returns false. The contents can still be drained.
  void Close() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      closed_ = true;
    }
    // Waits for threads that are inside wake_, where they hold no lock and do not block.
    while (wakers_.load() != 0) std::this_thread::yield();
  }

  // Replaces the contents of `drained`, whose memory is reused.
  void Drain(Drained* drained) {
    drained->clear();
    if (!HasWork()) return;
    std::lock_guard<std::mutex> lock(mutex_);
    std::swap(*drained, drained_);
    has_work_ = false;
  }

  // Whether something was pushed, or the end was asked for, since the last Drain.
  bool HasWork() const { return has_work_; }

 private:
  friend class Inspector;  // tests/core/simulation

  void Ask(std::atomic<bool>* what) {
    Change([what] { *what = true; });
  }

  template <typename Body>
  void Change(const Body& body) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (closed_) return;
      body();
      has_work_ = true;
      wakers_.fetch_add(1);
    }
    wake_();
    wakers_.fetch_sub(1);
  }

  const std::function<void()> wake_;
  std::atomic<bool> join_asked_{false};
  std::atomic<bool> leave_asked_{false};
  std::atomic<bool> stop_asked_{false};
  std::string leave_reason_;  // written before leave_asked_ is set
  std::atomic<int> wakers_{0};
  std::mutex mutex_;
  std::atomic<bool> has_work_{false};  // written under mutex_
  Drained drained_;                    // guarded by mutex_, as all below
  Ticket last_ticket_ = 0;
  bool closed_ = false;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_REQUEST_QUEUE_H_
