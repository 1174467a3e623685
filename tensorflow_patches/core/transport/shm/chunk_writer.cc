#include "tensorflow_patches/core/transport/shm/chunk_writer.h"

namespace tfmpi {

StoreTrials::Way StoreTrials::Next(size_t bytes) {
  if (bytes < kMinBytes) return Way::kBestKnown;
  if (cached_bytes_ == bytes) return Way::kTryStreamed;
  if (wait_ > 0) {
    --wait_;
    return Way::kBestKnown;
  }
  return Way::kTryCached;  // of another size than the one before: that one found no partner
}

void StoreTrials::Record(size_t bytes, Clock::duration time) {
  wait_ = kBetween;
  if (cached_bytes_ == 0 || cached_bytes_ != bytes) {
    cached_bytes_ = bytes;
    cached_ = time;
    return;
  }
  cached_bytes_ = 0;
  const bool streams = cached_ > kTimesSlower * time;
  if (streams == streams_) {
    contradicted_ = false;
  } else if (contradicted_) {
    streams_ = streams;
    contradicted_ = false;
  } else {
    // A copy that was interrupted is slow once: looked at again before anything is changed.
    contradicted_ = true;
    wait_ = 0;
  }
}

}  // namespace tfmpi
