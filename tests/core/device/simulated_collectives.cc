#include "tests/core/device/simulated_collectives.h"

#include <algorithm>
#include <utility>

#include "gtest/gtest.h"
#include "tests/core/device/unseen.h"
#include "tests/core/support/elements.h"

namespace tfmpi {
namespace {

double Combined(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
    case ReduceOp::kPlainSum:
      return a + b;
  }
  return 0;
}

}  // namespace

class SimulatedGroup::Collectives : public DeviceCollectives {
 public:
  Collectives(SimulatedGroup* group, int rank, SimulatedGpu* gpu)
      : group_(*group), rank_(rank), gpu_(*gpu) {}
  ~Collectives() override { Abort(); }

  std::string description() const override { return "simulated NCCL"; }

  Status Allreduce(const void* in, void* out, size_t count, DataType type, ReduceOp op,
                   double scale, GpuStream stream, TimePoint) override {
    return Reduce(Kind::kAllreduce, in, out, count, type, op, scale, stream);
  }

  Status ReduceScatter(const void* in, void* out, size_t count, DataType type, ReduceOp op,
                       double scale, GpuStream stream, TimePoint) override {
    const size_t all = count * static_cast<size_t>(group_.size_);
    return Reduce(Kind::kReduceScatter, in, out, all, type, op, scale, stream);
  }

  Status Allgather(const void* in, void* out, size_t count, DataType type, GpuStream stream,
                   TimePoint) override {
    const Status status = Begin();
    if (!status.ok()) return status;
    return Enqueue(in, out, {Kind::kAllgather, count, type, ReduceOp::kPlainSum}, 1, stream);
  }

  Status Poll() override {
    UnseenLock lock(group_.mutex_);
    if (group_.failed_.empty()) return Status();
    return Status(Code::kUnavailable, "simulated NCCL: " + group_.failed_);
  }

  void Abort() override {
    UnseenLock lock(group_.mutex_);
    group_.members_[rank_].aborted = true;
    group_.changed_.notify_all();
  }

  Status NewBuffer(size_t bytes, void** memory) override { return gpu_.NewMemory(bytes, memory); }
  void DeleteBuffer(void* memory) override { gpu_.DeleteMemory(memory); }

 private:
  Status Reduce(Kind kind, const void* in, void* out, size_t count, DataType type, ReduceOp op,
                double scale, GpuStream stream) {
    const bool scaled = op == ReduceOp::kAverage;
    if (!NcclSupports(type, op) || (!scaled && scale != 1)) {
      return Status(Code::kInvalidArgument, std::string("simulated NCCL has no ") + Name(op) +
                                                " of " + Name(type) + ", or it has no scale");
    }
    const Status status = Begin();
    if (!status.ok()) return status;
    // As for NCCL, a sum of real numbers is an average of scale 1.
    const bool scales = op == ReduceOp::kSum && IsFloating(type);
    return Enqueue(in, out, {kind, count, type, scales ? ReduceOp::kAverage : op}, scale, stream);
  }

  Status Begin() {
    UnseenLock lock(group_.mutex_);
    Member& member = group_.members_[rank_];
    if (member.aborted || (member.until_call_fails > 0 && --member.until_call_fails == 0)) {
      return Status(Code::kUnavailable, "simulated NCCL: an error (as the test wants it)");
    }
    return Status();
  }

  Status Enqueue(const void* in, void* out, const Terms& terms, double scale, GpuStream stream) {
    return gpu_.Launch(stream,
                       [group = &group_, rank = rank_, in, out, terms, scale] {
                         group->Run(rank, in, out, terms, scale);
                       },
                       {in, out});
  }

  SimulatedGroup& group_;
  const int rank_;
  SimulatedGpu& gpu_;
};

SimulatedGroup::SimulatedGroup(int size, bool ranks_share_gpus)
    : size_(size), ranks_share_gpus_(ranks_share_gpus), members_(size) {}

SimulatedGroup::~SimulatedGroup() {
  for (const std::string& what : complaints_) ADD_FAILURE() << what;
}

Status SimulatedGroup::Join(int rank, SimulatedGpu* gpu,
                            std::unique_ptr<DeviceCollectives>* collectives) {
  UnseenLock lock(mutex_);
  for (int other = 0; other < size_; ++other) {
    if (other != rank && members_[other].gpu == gpu && !ranks_share_gpus_) {
      return Status(Code::kUnavailable, "simulated NCCL: ranks " + std::to_string(other) + " and " +
                                            std::to_string(rank) + " share " + gpu->description());
    }
  }
  members_[rank].gpu = gpu;
  *collectives = std::make_unique<Collectives>(this, rank, gpu);
  return Status();
}

void SimulatedGroup::FailCall(int rank, int n) {
  UnseenLock lock(mutex_);
  members_[rank].until_call_fails = n;
}

void SimulatedGroup::FailWork(int rank, int n) {
  UnseenLock lock(mutex_);
  members_[rank].until_work_fails = n;
}

void SimulatedGroup::LoseWork(int rank, int n) {
  UnseenLock lock(mutex_);
  members_[rank].until_work_is_lost = n;
}

int SimulatedGroup::reductions(int rank) const {
  UnseenLock lock(mutex_);
  return members_[rank].ended;
}

std::vector<std::string> SimulatedGroup::TakeComplaints() {
  UnseenLock lock(mutex_);
  return std::exchange(complaints_, {});
}

void SimulatedGroup::Run(int rank, const void* in, void* out, const Terms& terms, double scale) {
  SimulatedGpu& gpu = *members_[rank].gpu;
  const size_t bytes = terms.count * SizeOf(terms.type);
  const size_t components = terms.count * WireElements(terms.type);
  const char* const from = gpu.Inside<char>(in, bytes);
  std::vector<char> input(from, from + bytes);
  if (terms.op == ReduceOp::kAverage) {
    for (size_t i = 0; i < components; ++i) {
      SetComponent(terms.type, input.data(), i, GetComponent(terms.type, input.data(), i) * scale);
    }
  }
  Round* const round = Meet(rank, terms, std::move(input));
  if (round == nullptr) return;
  const std::vector<char> result = ResultOf(*round, rank);
  std::copy(result.begin(), result.end(), gpu.Inside<char>(out, result.size()));
  UnseenLock lock(mutex_);
  ++members_[rank].ended;
}

// Everything is rounded to the type at each step, as NCCL does.
std::vector<char> SimulatedGroup::ResultOf(const Round& round, int rank) const {
  const Terms& terms = round.terms;
  std::vector<char> result = round.inputs[0];
  if (terms.kind == Kind::kAllgather) {
    for (int other = 1; other < size_; ++other) {
      result.insert(result.end(), round.inputs[other].begin(), round.inputs[other].end());
    }
    return result;
  }
  for (int other = 1; other < size_; ++other) {
    for (size_t i = 0; i < terms.count * WireElements(terms.type); ++i) {
      SetComponent(terms.type, result.data(), i,
                   Combined(terms.op, GetComponent(terms.type, result.data(), i),
                            GetComponent(terms.type, round.inputs[other].data(), i)));
    }
  }
  if (terms.kind == Kind::kAllreduce) return result;
  const auto share = static_cast<std::ptrdiff_t>(result.size()) / size_;
  return std::vector<char>(result.begin() + rank * share, result.begin() + (rank + 1) * share);
}

SimulatedGroup::Round* SimulatedGroup::Meet(int rank, const Terms& terms, std::vector<char> input) {
  Round* round = nullptr;
  {
    UnseenLock lock(mutex_);
    Member& member = members_[rank];
    const size_t number = member.begun++;
    if (number == rounds_.size()) {
      rounds_.push_back(std::make_unique<Round>());
      rounds_.back()->terms = terms;
      rounds_.back()->inputs.resize(size_);
    }
    round = rounds_[number].get();
    if (round->terms.kind != terms.kind || round->terms.count != terms.count ||
        round->terms.type != terms.type || round->terms.op != terms.op) {
      complaints_.push_back("simulated NCCL: collective " + std::to_string(number) + " of rank " +
                            std::to_string(rank) + " is another one than other ranks'");
      failed_ = "the ranks want different things";
    }
    if (member.until_work_fails > 0 && --member.until_work_fails == 0) {
      failed_ = "rank " + std::to_string(rank) + " has failed (as the test wants it)";
    }
    const bool lost = member.until_work_is_lost > 0 && --member.until_work_is_lost == 0;
    round->broken = round->broken || lost || !failed_.empty();
    round->inputs[rank] = std::move(input);
  }
  HappensBefore(round);
  {
    UnseenLock lock(mutex_);
    ++round->arrived;
    changed_.notify_all();
    lock.Wait(changed_, [&] {
      return members_[rank].aborted || (!round->broken && round->arrived == size_);
    });
    if (round->broken || round->arrived != size_) return nullptr;
  }
  HappensAfter(round);
  return round;
}

}  // namespace tfmpi
