// A sum over all ranks by point-to-point messages, a piece at a time. For mpi_plugin.cc alone.
//
// Each rank reduces its share of a piece, which every other rank sends to it, and sends the result
// to all. Open MPI's MPI_Iallreduce took 3 to 10 times as long at 4 MB (docs/design.md, Transport),
// and its blocking MPI_Allreduce cannot end at a deadline. All calls on the communication thread.

#ifndef TFMPI_CORE_TRANSPORT_MPI_EXCHANGE_H_
#define TFMPI_CORE_TRANSPORT_MPI_EXCHANGE_H_

#include <mpi.h>

#include <cstring>
#include <vector>

namespace tfmpi {

// How a piece is reduced, and between whom.
struct Reduction {
  MPI_Comm comm;
  int rank;
  int size;
  MPI_Datatype type;
  MPI_Op op;
  size_t element;  // bytes
};

// One piece under way. All ranks start the same pieces in the same order on the exchange of one
// tag. Returns MPI's error codes.
class Exchange {
 public:
  explicit Exchange(int tag) : tag_(tag) {}

  bool busy() const { return stage_ != Stage::kIdle; }

  // `in` may equal `out`; both stay the caller's and untouched until busy() is false.
  int Start(const Reduction& reduction, const char* in, char* out, size_t count) {
    reduction_ = reduction;
    out_ = out;
    count_ = count;
    const size_t mine = Bytes(reduction.rank);
    received_.resize(mine * (reduction.size - 1));  // never given back: page faults cost
    requests_.clear();
    for (int i = 1; i < reduction.size; ++i) {
      const int from = (reduction.rank + i) % reduction.size;
      const int result = Receive(received_.data() + mine * (i - 1), reduction.rank, from, tag_);
      if (result != MPI_SUCCESS) return result;
    }
    for (int i = 1; i < reduction.size; ++i) {
      const int to = (reduction.rank - i + reduction.size) % reduction.size;
      const int result = Send(in + Offset(to), to, to, tag_);
      if (result != MPI_SUCCESS) return result;
    }
    if (in != out) std::memcpy(out + Offset(reduction.rank), in + Offset(reduction.rank), mine);
    stage_ = Stage::kReducing;
    return MPI_SUCCESS;
  }

  // Does what can be done without waiting; `moved` is set if that was anything.
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

  size_t First(int share) const { return count_ * share / reduction_.size; }
  size_t Count(int share) const { return First(share + 1) - First(share); }
  size_t Offset(int share) const { return First(share) * reduction_.element; }
  size_t Bytes(int share) const { return Count(share) * reduction_.element; }

  int Receive(char* to, int share, int from, int tag) {
    requests_.push_back(MPI_REQUEST_NULL);
    return MPI_Irecv(to, static_cast<int>(Count(share)), reduction_.type, from, tag,
                     reduction_.comm, &requests_.back());
  }
  int Send(const char* from, int share, int to, int tag) {
    requests_.push_back(MPI_REQUEST_NULL);
    return MPI_Isend(from, static_cast<int>(Count(share)), reduction_.type, to, tag,
                     reduction_.comm, &requests_.back());
  }

  int Share() {
    const int rank = reduction_.rank;
    char* const sum = out_ + Offset(rank);
    for (int i = 0; i + 1 < reduction_.size; ++i) {
      const int result =
          MPI_Reduce_local(received_.data() + Bytes(rank) * i, sum, static_cast<int>(Count(rank)),
                           reduction_.type, reduction_.op);
      if (result != MPI_SUCCESS) return result;
    }
    requests_.clear();
    for (int i = 1; i < reduction_.size; ++i) {
      const int from = (rank + i) % reduction_.size;
      const int result = Receive(out_ + Offset(from), from, from, tag_ + 1);
      if (result != MPI_SUCCESS) return result;
    }
    for (int i = 1; i < reduction_.size; ++i) {
      const int to = (rank - i + reduction_.size) % reduction_.size;
      const int result = Send(sum, rank, to, tag_ + 1);
      if (result != MPI_SUCCESS) return result;
    }
    return MPI_SUCCESS;
  }

  const int tag_;  // and the next
  Stage stage_ = Stage::kIdle;
  Reduction reduction_ = {};
  char* out_ = nullptr;
  size_t count_ = 0;
  std::vector<char> received_;  // this rank's share, from every other rank
  std::vector<MPI_Request> requests_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_MPI_EXCHANGE_H_
