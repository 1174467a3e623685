#include "tensorflow_patches/core/transport/shm/chunk_writer.h"

namespace tfmpi {

StoreTrials::Way StoreTrials::Next(size_t bytes) {
  if (bytes < kMinBytes) return Way::kBestKnown;
  if (cached_bytes_ == bytes) return Way::kTryStreamed;
  if (wait_ > 0) {
    --wait_;
    return Way::kBestKnown;
  }
  return Way::kTryCached;  // abandons an unfinished trial: no further chunk had its size
}

void StoreTrials::Record(size_t bytes, Clock::duration time) {
  wait_ = kChunksBetweenTrials;
  if (cached_bytes_ != bytes) {
    cached_bytes_ = bytes;
    cached_time_ = time;
    return;
  }
  cached_bytes_ = 0;
  const bool streams = cached_time_ > kTimesSlower * time;
  if (streams == streams_) {
    contradicted_ = false;
  } else if (contradicted_) {
    streams_ = streams;
    contradicted_ = false;
  } else {
    // An interrupted copy is slow only once, so a second trial must confirm it.
    contradicted_ = true;
    wait_ = 0;
  }
}

}  // namespace tfmpi
