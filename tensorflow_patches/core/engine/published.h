// What the communication thread publishes to the other threads of this process: posts, the failure,
// the generation of the group, and counters.
//
// Any thread reads; only the communication thread writes, except for CountPost on rank 0.

#ifndef TFMPI_CORE_ENGINE_PUBLISHED_H_
#define TFMPI_CORE_ENGINE_PUBLISHED_H_

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensorflow_patches/core/base/status.h"
#include "tensorflow_patches/core/engine/options.h"

namespace tfmpi {

// Posted to every rank when a rank has joined; its number follows, after a line break.
constexpr char kJoinedPost[] = "joined";
inline std::string JoinedPost(int rank) { return kJoinedPost + ("\n" + std::to_string(rank)); }
inline bool IsJoinedPost(const std::string& post) {
  return post.rfind(kJoinedPost + std::string("\n"), 0) == 0;
}

class Counter {
 public:
  void Add(uint64_t more) { value_.fetch_add(more, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

class Published {
 public:
  // `post`: a key, which a line break and a text may follow. On rank 0: any thread (Engine::Post).
  void CountPost(const std::string& post);
  // Resets the count of this key.
  void ForgetPosts(const std::string& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    posts_.erase(key);
  }
  // The number of posts with this key.
  int64_t Posted(const std::string& key) const;
  // The text of post number `number` of this key, from 0; "" if it had none.
  std::string PostedValue(const std::string& key, int64_t number) const;
  // The number of posts with any key.
  uint64_t posts_heard() const { return posts_heard_; }

  void SetFailure(const Status& failure) {
    std::lock_guard<std::mutex> lock(mutex_);
    failure_ = failure;
  }
  Status failure() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
  }

  // The generation: how often the group has shrunk.
  void BeginGeneration() { generation_.fetch_add(1, std::memory_order_release); }
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

  // Whether data on GPUs is averaged through the hosts; -1: the ranks have not chosen yet.
  void SetGpusStaged(bool staged) { gpus_staged_ = staged ? 1 : 0; }
  int gpus_staged() const { return gpus_staged_; }

  EngineStats stats() const;

  // As in EngineStats.
  Counter completed, collectives, bytes, predicted, messages_sent, messages_received, unanimous;

 private:
  struct Posts {
    int64_t count = 0;
    std::vector<std::string> texts;  // by number; empty if no post had a text
  };

  mutable std::mutex mutex_;
  std::unordered_map<std::string, Posts> posts_;  // by key; guarded by mutex_
  Status failure_;                                // guarded by mutex_
  std::atomic<uint64_t> posts_heard_{0};
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> gpus_staged_{-1};
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_PUBLISHED_H_
