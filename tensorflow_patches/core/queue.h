// What other threads hand to the communication thread: new requests, withdrawals, posts, the wish
// to leave.
//
// Push from any thread; Wait and Drain on the communication thread. Owns what is in it until
// drained. Nothing is called while the lock is held.

#ifndef TFMPI_CORE_QUEUE_H_
#define TFMPI_CORE_QUEUE_H_

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "tensorflow_patches/core/request.h"

namespace tfmpi {

// Names one submission for as long as the engine lives.
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
};

class Queue {
 public:
  // Returns 0, and leaves `request` as it is, once the queue is closed.
  Ticket Push(Request* request) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (closed_) return 0;
    const Ticket ticket = ++last_ticket_;
    drained_.submissions.push_back({ticket, std::move(*request)});
    Notify(&lock);
    return ticket;
  }

  void PushWithdrawal(Ticket ticket) {
    std::unique_lock<std::mutex> lock(mutex_);
    drained_.withdrawals.push_back(ticket);
    Notify(&lock);
  }

  void PushPost(const std::string& key) {
    std::unique_lock<std::mutex> lock(mutex_);
    drained_.posts.push_back(key);
    Notify(&lock);
  }

  // Makes the current or the next Wait return.
  void Wake() {
    std::unique_lock<std::mutex> lock(mutex_);
    woken_ = true;
    Notify(&lock);
  }

  // Refuses further submissions. What is in it can still be drained.
  void Close() {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }

  Drained Drain() {
    std::lock_guard<std::mutex> lock(mutex_);
    woken_ = false;
    return std::exchange(drained_, Drained());
  }

  // Until something is there to drain, someone calls Wake, or `limit` has passed.
  void Wait(Clock::duration limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    waiting_ = true;
    changed_.wait_for(lock, limit, [this] { return woken_ || !drained_.empty(); });
    waiting_ = false;
  }

 private:
  // A thread that does not wait needs no wake-up: spares a system call per gradient.
  void Notify(std::unique_lock<std::mutex>* lock) {
    const bool waiting = waiting_;
    lock->unlock();
    if (waiting) changed_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Drained drained_;  // guarded by mutex_, as all below
  Ticket last_ticket_ = 0;
  bool closed_ = false;
  bool woken_ = false;
  bool waiting_ = false;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_QUEUE_H_
