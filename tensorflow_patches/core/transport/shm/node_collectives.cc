#include "tensorflow_patches/core/transport/shm/node_collectives.h"

#include <algorithm>
#include <cstring>

#include "tensorflow_patches/core/base/sizes.h"
#include "tensorflow_patches/core/cpu/reduce.h"
#include "tensorflow_patches/core/cpu/stream_copy.h"

namespace tfmpi {
namespace {

// A peer that works on the same operation arrives within this time; sleeping and being woken take
// about as long.
constexpr std::chrono::microseconds kSpin{30};
// The death of a process notifies no rank: the deadline is checked this often.
constexpr std::chrono::milliseconds kLongestWait{50};
// Replaces kLongestWait if the ranks continue after deaths: has_failed_rank_ is checked this often.
constexpr std::chrono::milliseconds kLongestShrinkWait{5};
// Bytes that are reduced before they are copied for the peers, so that they are still in the L1
// cache.
constexpr size_t kReducedAtOnce = size_t{8} << 10;

// A stage of Run that an operation skips.
constexpr auto kNothing = [](uint64_t /*chunk*/, uint64_t /*number*/) {};

}  // namespace

// How a tensor of `count` elements is split: a share for each rank, and each share into blocks. A
// chunk, and a slot, contains one block of every share.
struct NodeCollectives::Shares {
  Shares(const NodeCollectives& node, size_t count, size_t element)
      : node(node), count(count), element(element) {
    const size_t ranks = node.memory_.ranks();
    block = node.memory_.slot_bytes() / ranks / kCacheLine * kCacheLine;
    per_block = block / element;
    size_t largest = 0;
    for (size_t r = 0; r < ranks; ++r) {
      largest = std::max(largest, node.ShareStart(count, r + 1) - node.ShareStart(count, r));
    }
    chunks = (largest + per_block - 1) / per_block;
  }

  // The first element of block `chunk` in the share of `rank`.
  size_t Start(int rank, uint64_t chunk) const {
    return std::min(node.ShareStart(count, rank) + chunk * per_block,
                    node.ShareStart(count, rank + 1));
  }
  size_t Count(int rank, uint64_t chunk) const {
    return Start(rank, chunk + 1) - Start(rank, chunk);
  }
  size_t Bytes(int rank, uint64_t chunk) const { return Count(rank, chunk) * element; }
  // The offset of that block in the tensor and in a slot.
  size_t Offset(int rank, uint64_t chunk) const { return Start(rank, chunk) * element; }
  size_t InSlot(int rank) const { return rank * block; }

  // Copies this rank's values for the other ranks' shares of a chunk into its slot. `number`: the
  // chunk's number, counted over all operations.
  void PutOthers(ChunkWriter* writer, const char* from, uint64_t chunk, uint64_t number) const {
    const NodeMemory& memory = node.memory_;
    char* const slot = memory.slot(memory.rank(), number);
    // Approximately, since the shares differ by a few cache lines; only used to choose how to copy.
    const size_t bytes = Bytes(memory.rank(), chunk) * static_cast<size_t>(memory.ranks() - 1);
    writer->Put(bytes, [&](ChunkWriter::Copy copy) {
      for (int r = 0; r < memory.ranks(); ++r) {
        if (r != memory.rank()) copy(slot + InSlot(r), from + Offset(r, chunk), Bytes(r, chunk));
      }
    });
  }
  // Points sources[r] to rank r's values for this rank's share.
  void FindSources(const char* from, uint64_t chunk, uint64_t number,
                   std::vector<const void*>* sources) const {
    const NodeMemory& memory = node.memory_;
    sources->resize(memory.ranks());
    for (int r = 0; r < memory.ranks(); ++r) {
      (*sources)[r] = memory.slot(r, number) + InSlot(memory.rank());
    }
    (*sources)[memory.rank()] = from + Offset(memory.rank(), chunk);
  }
  // Copies the other ranks' shares from their slots.
  void TakeOthers(char* to, uint64_t chunk, uint64_t number) const {
    const NodeMemory& memory = node.memory_;
    for (int r = 0; r < memory.ranks(); ++r) {
      if (r != memory.rank()) {
        std::memcpy(to + Offset(r, chunk), memory.slot(r, number) + InSlot(r), Bytes(r, chunk));
      }
    }
  }

  const NodeCollectives& node;
  size_t count;
  size_t element;    // bytes
  size_t block;      // bytes
  size_t per_block;  // elements
  uint64_t chunks;
};

size_t NodeCollectives::ShareStart(size_t count, int rank) const {
  // Whole cache lines for types of 4 bytes or more, so that two ranks never write to one line.
  constexpr size_t kGrain = 16;
  const size_t grains = (count + kGrain - 1) / kGrain;
  return std::min(count, grains * rank / memory_.ranks() * kGrain);
}

bool NodeCollectives::AllPeersReached(std::atomic<uint64_t> RankState::*counter,
                                      uint64_t chunks) const {
  for (int r = 0; r < memory_.ranks(); ++r) {
    if (r != memory_.rank() &&
        (memory_.state(r).*counter).load(std::memory_order_seq_cst) < chunks) {
      return false;
    }
  }
  return true;
}

// Executes every stage of every chunk as soon as possible: put, reduce, take. If several are
// possible, the oldest chunk goes first, because it is still in the cache. `reduces`: there is a
// reduce stage, so `take` waits for the peers' `reduced` rather than their `put`.
template <typename Put, typename Reduce, typename Take>
Status NodeCollectives::Run(uint64_t chunks, bool reduces, const Put& put, const Reduce& reduce,
                            const Take& take, TimePoint deadline) {
  RankState& mine = memory_.mine();
  uint64_t to_put = 0, to_reduce = reduces ? 0 : chunks, to_take = 0;
  // A waiting rank waits until all have reached a count, so only the last to reach it notifies.
  const auto publish = [&](std::atomic<uint64_t> RankState::*counter, uint64_t done) {
    (mine.*counter).store(base_ + done, std::memory_order_seq_cst);
    if (AllPeersReached(counter, base_ + done)) memory_.NotifyPeers(SleepState::kInside);
  };
  SpinWait wait(memory_, SleepState::kInside, kSpin);
  TimePoint last_check = has_failed_rank_ ? Clock::now() : TimePoint();
  while (to_take < chunks) {
    bool moved = false;
    if (to_take < std::min(to_put, to_reduce) &&
        AllPeersReached(reduces ? &RankState::reduced : &RankState::put, base_ + to_take + 1)) {
      take(to_take, base_ + to_take);
      publish(&RankState::taken, ++to_take);
      moved = true;
    } else if (to_reduce < to_put && AllPeersReached(&RankState::put, base_ + to_reduce + 1)) {
      reduce(to_reduce, base_ + to_reduce);
      publish(&RankState::reduced, ++to_reduce);
      moved = true;
    } else if (to_put < chunks && to_put < to_take + NodeMemory::kSlots &&
               (base_ + to_put < NodeMemory::kSlots ||
                AllPeersReached(&RankState::taken, base_ + to_put + 1 - NodeMemory::kSlots))) {
      put(to_put, base_ + to_put);
      publish(&RankState::put, ++to_put);
      moved = true;
    }
    if (moved) {
      wait.Reset();
    } else if (wait.Pause(has_failed_rank_ ? kLongestShrinkWait : kLongestWait)) {
      const TimePoint now = Clock::now();
      if (now >= deadline) {
        return Status(Code::kDeadlineExceeded,
                      "an operation inside the node did not end in time: a peer has died or does "
                      "not take part");
      }
      if (has_failed_rank_ && now >= last_check + kLongestShrinkWait) {
        last_check = now;
        if (has_failed_rank_()) return Status(Code::kUnavailable, "a rank has died");
      }
    }
  }
  base_ += chunks;
  return Status();
}

Status NodeCollectives::Allreduce(const void* in, void* out, const Reduction& reduction,
                                  TimePoint deadline) {
  const size_t element = SizeOf(reduction.type);
  if (reduction.count * element <= std::min(kWholeBytes, memory_.slot_bytes())) {
    return AllreduceWhole(in, out, reduction, deadline);
  }
  const Shares shares(*this, reduction.count, element);
  const char* const from = static_cast<const char*>(in);
  char* const to = static_cast<char*>(out);
  const int rank = memory_.rank();
  const auto put = [&](uint64_t chunk, uint64_t number) {
    shares.PutOthers(&writer_, from, chunk, number);
  };
  const auto reduce = [&](uint64_t chunk, uint64_t number) {
    shares.FindSources(from, chunk, number, &sources_);
    ReduceForAll(reduction, shares.Count(rank, chunk), to + shares.Offset(rank, chunk),
                 memory_.slot(rank, number) + shares.InSlot(rank));
  };
  const auto take = [&](uint64_t chunk, uint64_t number) { shares.TakeOthers(to, chunk, number); };
  return Run(shares.chunks, true, put, reduce, take, deadline);
}

void NodeCollectives::ReduceForAll(const Reduction& reduction, size_t count, char* out,
                                   char* slot) {
  const size_t element = SizeOf(reduction.type);
  const size_t bytes = count * element;
  if (!writer_.Streams(bytes)) {
    return Reduce(reduction, sources_.data(), memory_.ranks(), count, out, slot);
  }
  for (size_t start = 0; start < bytes; start += kReducedAtOnce) {
    const size_t length = std::min(kReducedAtOnce, bytes - start);
    Reduce(reduction, sources_.data(), memory_.ranks(), length / element, out + start, nullptr);
    StreamCopy(slot + start, out + start, length);
    for (const void*& source : sources_) source = static_cast<const char*>(source) + length;
  }
  EndStreams();
}

Status NodeCollectives::AllreduceWhole(const void* in, void* out, const Reduction& reduction,
                                       TimePoint deadline) {
  if (reduction.count == 0) return Status();
  const size_t bytes = reduction.count * SizeOf(reduction.type);
  sources_.resize(memory_.ranks());
  const auto put = [&](uint64_t, uint64_t number) {
    writer_.Put(bytes, [&](ChunkWriter::Copy copy) {
      copy(memory_.slot(memory_.rank(), number), in, bytes);
    });
  };
  const auto take = [&](uint64_t, uint64_t number) {
    for (int r = 0; r < memory_.ranks(); ++r) sources_[r] = memory_.slot(r, number);
    Reduce(reduction, sources_.data(), memory_.ranks(), reduction.count, out, nullptr);
  };
  return Run(1, false, put, kNothing, take, deadline);
}

Status NodeCollectives::ReduceScatter(const void* in, void* out, const Reduction& reduction,
                                      TimePoint deadline) {
  const Shares shares(*this, reduction.count, SizeOf(reduction.type));
  const char* const from = static_cast<const char*>(in);
  char* const to = static_cast<char*>(out);
  const int rank = memory_.rank();
  const auto put = [&](uint64_t chunk, uint64_t number) {
    shares.PutOthers(&writer_, from, chunk, number);
  };
  const auto take = [&](uint64_t chunk, uint64_t number) {
    shares.FindSources(from, chunk, number, &sources_);
    Reduce(reduction, sources_.data(), memory_.ranks(), shares.Count(rank, chunk),
           to + shares.Offset(rank, chunk), nullptr);
  };
  return Run(shares.chunks, false, put, kNothing, take, deadline);
}

Status NodeCollectives::AllgatherShares(void* data, size_t count, DataType type,
                                        TimePoint deadline) {
  const Shares shares(*this, count, SizeOf(type));
  char* const bytes = static_cast<char*>(data);
  const int rank = memory_.rank();
  const auto put = [&](uint64_t chunk, uint64_t number) {
    writer_.Put(shares.Bytes(rank, chunk), [&](ChunkWriter::Copy copy) {
      copy(memory_.slot(rank, number) + shares.InSlot(rank), bytes + shares.Offset(rank, chunk),
           shares.Bytes(rank, chunk));
    });
  };
  const auto take = [&](uint64_t chunk, uint64_t number) {
    shares.TakeOthers(bytes, chunk, number);
  };
  return Run(shares.chunks, false, put, kNothing, take, deadline);
}

Status NodeCollectives::ReduceInPlace(const std::vector<char*>& data, const Reduction& reduction,
                                      TimePoint deadline) {
  const auto reduce = [&](uint64_t, uint64_t) {
    const size_t start = ShareStart(reduction.count, rank());
    const size_t count = ShareStart(reduction.count, rank() + 1) - start;
    if (count == 0) return;
    const size_t offset = start * SizeOf(reduction.type);
    sources_.clear();
    for (const char* const of_rank : data) sources_.push_back(of_rank + offset);
    Reduce(reduction, sources_.data(), ranks(), count, data[rank()] + offset, nullptr);
  };
  return Run(1, true, kNothing, reduce, kNothing, deadline);
}

Status NodeCollectives::Barrier(TimePoint deadline) {
  return Run(1, false, kNothing, kNothing, kNothing, deadline);
}

Status NodeCollectives::Allgather(const void* in, void* out, const std::vector<size_t>& bytes,
                                  TimePoint deadline) {
  const size_t chunk_bytes = memory_.slot_bytes();
  const size_t largest = *std::max_element(bytes.begin(), bytes.end());
  const int rank = memory_.rank();
  const auto length = [&](int r, uint64_t chunk) {
    const size_t start = chunk * chunk_bytes;
    return start < bytes[r] ? std::min(chunk_bytes, bytes[r] - start) : 0;
  };
  const auto put = [&](uint64_t chunk, uint64_t number) {
    const size_t n = length(rank, chunk);
    writer_.Put(n, [&](ChunkWriter::Copy copy) {
      copy(memory_.slot(rank, number), static_cast<const char*>(in) + chunk * chunk_bytes, n);
    });
  };
  const auto take = [&](uint64_t chunk, uint64_t number) {
    char* to = static_cast<char*>(out);
    for (int r = 0; r < memory_.ranks(); to += bytes[r], ++r) {
      const size_t n = length(r, chunk);
      if (n == 0 || (r == rank && to == in)) continue;
      std::memcpy(to + chunk * chunk_bytes, memory_.slot(r, number), n);
    }
  };
  return Run((largest + chunk_bytes - 1) / chunk_bytes, false, put, kNothing, take, deadline);
}

Status NodeCollectives::SparseAllgather(const std::vector<int64_t>& rows, size_t row_bytes,
                                        RowAccess* access, TimePoint deadline) {
  const auto per_chunk = static_cast<int64_t>(memory_.slot_bytes() / row_bytes);
  const int64_t most = *std::max_element(rows.begin(), rows.end());
  const int rank = memory_.rank();
  const auto put = [&](uint64_t chunk, uint64_t number) {
    const int64_t begin = static_cast<int64_t>(chunk) * per_chunk;
    const int64_t end = std::min(begin + per_chunk, rows[rank]);
    if (begin >= end) return;
    const size_t bytes = static_cast<size_t>(end - begin) * row_bytes;
    char* const slot = memory_.slot(rank, number);
    const ChunkWriter::Plan plan = writer_.Next(bytes);
    if (plan.needs_no_copy()) return access->Put(begin, end, slot);
    rows_.resize(memory_.slot_bytes());
    access->Put(begin, end, rows_.data());
    writer_.Put(plan, [&](ChunkWriter::Copy copy) { copy(slot, rows_.data(), bytes); });
  };
  const auto take = [&](uint64_t chunk, uint64_t number) {
    const int64_t begin = static_cast<int64_t>(chunk) * per_chunk;
    for (int r = 0; r < memory_.ranks(); ++r) {
      const int64_t end = std::min(begin + per_chunk, rows[r]);
      if (r != rank && begin < end) access->Take(r, begin, end, memory_.slot(r, number));
    }
  };
  return Run(static_cast<uint64_t>((most + per_chunk - 1) / per_chunk), false, put, kNothing, take,
             deadline);
}

Status NodeCollectives::Broadcast(void* data, size_t bytes, int root, TimePoint deadline) {
  const size_t chunk_bytes = memory_.slot_bytes();
  char* const all = static_cast<char*>(data);
  const auto length = [&](uint64_t chunk) {
    return std::min(chunk_bytes, bytes - chunk * chunk_bytes);
  };
  const auto put = [&](uint64_t chunk, uint64_t number) {
    if (memory_.rank() != root) return;
    writer_.Put(length(chunk), [&](ChunkWriter::Copy copy) {
      copy(memory_.slot(root, number), all + chunk * chunk_bytes, length(chunk));
    });
  };
  const auto take = [&](uint64_t chunk, uint64_t number) {
    if (memory_.rank() == root) return;
    std::memcpy(all + chunk * chunk_bytes, memory_.slot(root, number), length(chunk));
  };
  return Run((bytes + chunk_bytes - 1) / chunk_bytes, false, put, kNothing, take, deadline);
}

}  // namespace tfmpi
