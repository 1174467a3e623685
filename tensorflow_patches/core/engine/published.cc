#include "tensorflow_patches/core/engine/published.h"

namespace tfmpi {

void Published::CountPost(const std::string& post) {
  const size_t end = post.find('\n');
  const bool has_text = end != std::string::npos;
  std::lock_guard<std::mutex> lock(mutex_);
  Posts& posts = posts_[post.substr(0, end)];
  if (has_text || !posts.texts.empty()) {
    posts.texts.resize(posts.count);
    posts.texts.push_back(has_text ? post.substr(end + 1) : std::string());
  }
  ++posts.count;
  ++posts_heard_;
}

int64_t Published::Posted(const std::string& key) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = posts_.find(key);
  return it != posts_.end() ? it->second.count : 0;
}

std::string Published::PostedValue(const std::string& key, int64_t number) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = posts_.find(key);
  const bool found =
      it != posts_.end() && number >= 0 && number < static_cast<int64_t>(it->second.texts.size());
  return found ? it->second.texts[number] : std::string();
}

EngineStats Published::stats() const {
  return {completed.value(),     collectives.value(),       bytes.value(),    predicted.value(),
          messages_sent.value(), messages_received.value(), unanimous.value()};
}

}  // namespace tfmpi
