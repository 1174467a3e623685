// A reduction over a group of ranks by point-to-point messages.
//
// A chunk has a share for each rank. Every rank sends each share to the rank that it belongs to;
// each rank reduces its own share and sends the result to all. Open MPI's MPI_Iallreduce takes
// longer (docs/decisions/008), and its blocking MPI_Allreduce cannot end at a deadline. All calls
// on the communication thread.

#ifndef TFMPI_CORE_TRANSPORT_MPI_PAIRWISE_ALLREDUCE_H_
#define TFMPI_CORE_TRANSPORT_MPI_PAIRWISE_ALLREDUCE_H_

#include <mpi.h>

#include <utility>
#include <vector>

#include "tensorflow_patches/core/cpu/reduce.h"

namespace tfmpi {

// The ranks that exchange.
struct Group {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
};

// Exchanges one chunk at a time. For each tag, all ranks start the same chunks in the same order.
// The functions return MPI's error codes.
class PairwiseAllreduce {
 public:
  explicit PairwiseAllreduce(int tag) : tag_(tag) {}

  bool busy() const { return stage_ != Stage::kIdle; }

  // Call it when the group no longer exists. Leaks the memory of pending messages, since MPI may
  // still write there.
  void Abandon() {
    if (!busy()) return;
    new std::vector<char>(std::move(received_));
    new std::vector<MPI_Request>(std::move(requests_));
    received_ = std::vector<char>();
    requests_ = std::vector<MPI_Request>();
    stage_ = Stage::kIdle;
  }

  // `in` may equal `out`. Both belong to the caller, who must not touch them until busy() is false.
  int Start(const Group& group, const Reduction& reduction, const char* in, char* out) {
    stage_ = Stage::kReducing;  // also if it fails: messages may be pending
    group_ = group;
    reduction_ = reduction;
    element_ = SizeOf(reduction.type);
    out_ = out;
    const size_t mine = Bytes(group.rank);
    received_.resize(mine * (group.size - 1));  // keeps its capacity: page faults are expensive
    sources_.resize(group.size);
    sources_[group.rank] = in + Offset(group.rank);
    requests_.clear();
    for (int i = 1; i < group.size; ++i) {
      const int from = (group.rank + i) % group.size;
      char* const to = received_.data() + mine * (i - 1);
      sources_[from] = to;
      const int result = Receive(to, group.rank, from, tag_);
      if (result != MPI_SUCCESS) return result;
    }
    for (int i = 1; i < group.size; ++i) {
      const int to = (group.rank - i + group.size) % group.size;
      const int result = Send(in + Offset(to), to, to, tag_);
      if (result != MPI_SUCCESS) return result;
    }
    return MPI_SUCCESS;
  }

  // Without waiting: if this stage's messages are complete, begins the next one and sets `moved`.
  int Advance(bool* moved) {
    int done = 0;
    int result = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                             MPI_STATUSES_IGNORE);
    if (result != MPI_SUCCESS || !done) return result;
    *moved = true;
    if (stage_ == Stage::kSharing) {
      stage_ = Stage::kIdle;
      return MPI_SUCCESS;
    }
    stage_ = Stage::kSharing;
    return Share();
  }

 private:
  enum class Stage { kIdle, kReducing, kSharing };

  size_t First(int share) const { return reduction_.count * share / group_.size; }
  size_t Count(int share) const { return First(share + 1) - First(share); }
  size_t Offset(int share) const { return First(share) * element_; }
  size_t Bytes(int share) const { return Count(share) * element_; }

  // As bytes: MPI need not know the type, since it reduces nothing.
  int Receive(char* to, int share, int from, int tag) {
    requests_.push_back(MPI_REQUEST_NULL);
    return MPI_Irecv(to, static_cast<int>(Bytes(share)), MPI_BYTE, from, tag, group_.comm,
                     &requests_.back());
  }
  int Send(const char* from, int share, int to, int tag) {
    requests_.push_back(MPI_REQUEST_NULL);
    return MPI_Isend(from, static_cast<int>(Bytes(share)), MPI_BYTE, to, tag, group_.comm,
                     &requests_.back());
  }

  int Share() {
    const int rank = group_.rank;
    char* const sum = out_ + Offset(rank);
    Reduce(reduction_, sources_.data(), group_.size, Count(rank), sum, nullptr);
    requests_.clear();
    for (int i = 1; i < group_.size; ++i) {
      const int from = (rank + i) % group_.size;
      const int result = Receive(out_ + Offset(from), from, from, tag_ + 1);
      if (result != MPI_SUCCESS) return result;
    }
    for (int i = 1; i < group_.size; ++i) {
      const int to = (rank - i + group_.size) % group_.size;
      const int result = Send(sum, rank, to, tag_ + 1);
      if (result != MPI_SUCCESS) return result;
    }
    return MPI_SUCCESS;
  }

  const int tag_;  // of the messages of kReducing; kSharing uses the next one
  Stage stage_ = Stage::kIdle;
  Group group_;
  Reduction reduction_;
  size_t element_ = 1;
  char* out_ = nullptr;
  std::vector<char> received_;        // this rank's share, from all other ranks
  std::vector<const void*> sources_;  // this rank's share, of all ranks
  std::vector<MPI_Request> requests_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_MPI_PAIRWISE_ALLREDUCE_H_
