#include "tensorflow_patches/glue/extras/divided_update.h"

#include <algorithm>
#include <cstring>

#include "tensorflow_patches/core/cpu/reduce.h"
#include "tensorflow_patches/core/cpu/stream_copy.h"
#include "tensorflow_patches/glue/extras/rows_ahead.h"
#include "tensorflow_patches/glue/kernels/sparse_average.h"
#include "tensorflow_patches/glue/runtime/extras.h"
#include "tensorflow_patches/glue/variables/initial_broadcast.h"

namespace tfmpi {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// A smaller update takes less time than the ranks need to exchange rows.
constexpr int64_t kMinBytes = 512 << 10;

// Spreads indices evenly, whether they are consecutive or have a common factor.
int OwnerOf(int64_t index, int ranks) {
  const uint64_t mixed = static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15u;
  return static_cast<int>((mixed >> 32) * static_cast<uint64_t>(ranks) >> 32);
}

// Prefetching, because the rows of a large table are not in any cache.
constexpr int64_t kPrefetchDistance = 8;    // rows
constexpr size_t kMaxPrefetchBytes = 1024;  // of each row

}  // namespace

// Reads the variable and its slots. False unless all have values and the same number of rows.
bool DividedUpdate::ReadStates(OpKernelContext* context, std::vector<State>* states) {
  for (int input = 0; input < context->num_inputs(); ++input) {
    if (!IsState(context, input)) continue;
    State state;
    if (!ReadState(context, input, &state.value) || state.value.dims() == 0 ||
        state.value.NumElements() == 0 ||
        (!states->empty() && state.value.dim_size(0) != states->front().value.dim_size(0))) {
      return false;
    }
    state.rows = static_cast<char*>(Data(state.value));
    state.row_bytes = state.value.TotalBytes() / static_cast<size_t>(state.value.dim_size(0));
    states->push_back(state);
  }
  return !states->empty();
}

bool DividedUpdate::Divide(OpKernelContext* context, const Tensor& indices) {
  if (!EnabledExtras().divided_updates || topology_.nodes != 1) return false;
  std::vector<State> states;
  if (!ReadStates(context, &states)) return false;
  for (const State& state : states) row_bytes_ += state.row_bytes;
  if (indices.NumElements() * static_cast<int64_t>(row_bytes_) < kMinBytes) return false;
  // An index that is out of range is left to every rank's stock kernel, which reports it.
  if (!AreRows(indices, states.front().value.dim_size(0))) return false;
  indices_ = WideIndices(indices);
  fingerprint_ = Fingerprint(indices_.data(), indices_.size() * sizeof(int64_t));
  positions_.resize(static_cast<size_t>(topology_.size));
  for (size_t i = 0; i < indices_.size(); ++i) {
    positions_[static_cast<size_t>(OwnerOf(indices_[i], topology_.size))].push_back(
        static_cast<int64_t>(i));
  }
  return true;
}

// On the wire each rank's rows follow a header row with the fingerprint of all indices.
void DividedUpdate::AddTo(RequestGroup* group, OpKernelContext* context, const std::string& name) {
  name_ = name;
  ReadStates(context, &states_);  // again: the stock kernel may have moved them to other memory
  row_bytes_ = std::max(row_bytes_, sizeof fingerprint_);
  Request request;
  request.name = name;
  request.signature.kind = OpKind::kSparseAllgather;
  request.signature.dtype = DataType::kUint8;
  request.signature.shape = {1 + static_cast<int64_t>(PositionsOf(topology_.rank).size()),
                             static_cast<int64_t>(row_bytes_)};
  request.rows = this;
  group->Add(std::move(request));
}

absl::Status DividedUpdate::Finish() {
  states_.clear();
  return status_;
}

void DividedUpdate::NoteDifference(int rank, const std::string& what) {
  if (!status_.ok()) return;
  status_ = absl::InvalidArgumentError(
      absl::StrCat("rank ", topology_.rank, "/", topology_.size, ": '", name_,
                   "': the averaged rows differ from those of rank ", rank, " ", what,
                   "; the script must process averaged gradients in the same way on all ranks"));
}

void DividedUpdate::Begin(const std::vector<int64_t>& rows, int) {
  for (int r = 0; r < topology_.size; ++r) {
    const auto expected = 1 + static_cast<int64_t>(PositionsOf(r).size());
    if (rows[r] == 0) {
      absent_.push_back(r);
    } else if (rows[r] != expected) {
      NoteDifference(r, absl::StrCat("in number: ", rows[r] - 1, " in place of ", expected - 1));
    }
  }
}

void DividedUpdate::Prefetch(int64_t position) const {
  for (const State& state : states_) {
    const char* const row = Row(state, position);
    for (size_t i = 0; i < std::min(state.row_bytes, kMaxPrefetchBytes); i += kLineBytes) {
      __builtin_prefetch(row + i);
    }
  }
}

void DividedUpdate::Put(int64_t begin, int64_t end, char* to) {
  const std::vector<int64_t>& positions = PositionsOf(topology_.rank);
  for (int64_t i = begin; i < end; ++i) {
    if (i + kPrefetchDistance < end) Prefetch(positions[i - 1 + kPrefetchDistance]);
    if (i == 0) {
      std::memset(to, 0, row_bytes_);
      std::memcpy(to, &fingerprint_, sizeof fingerprint_);
      to += row_bytes_;
      continue;
    }
    char* next = to;
    for (const State& state : states_) {
      std::memcpy(next, Row(state, positions[i - 1]), state.row_bytes);
      next += state.row_bytes;
    }
    to += row_bytes_;
  }
}

void DividedUpdate::Take(int rank, int64_t begin, int64_t end, const char* from) {
  const std::vector<int64_t>& positions = PositionsOf(rank);
  for (int64_t i = begin; i < end; ++i, from += row_bytes_) {
    if (i == 0 && std::memcmp(from, &fingerprint_, sizeof fingerprint_) != 0) {
      NoteDifference(rank, "in their indices");
    }
    if (!status_.ok()) return;
    if (i == 0) continue;
    const char* next = from;
    for (const State& state : states_) {
      // Not through the cache: this rank will not need the row soon.
      StreamCopy(Row(state, positions[i - 1]), next, state.row_bytes);
      next += state.row_bytes;
    }
  }
  EndStreams();
}

}  // namespace tfmpi
