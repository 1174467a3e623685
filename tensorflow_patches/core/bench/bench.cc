#include "tensorflow_patches/core/bench/bench.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "tensorflow_patches/core/cpu/reduce.h"
#include "tensorflow_patches/core/memory/line_memory.h"

namespace tfmpi {
namespace {

// Inputs are small integers, whose sums are exact. They differ by rank and position, and repeat
// after this many positions.
constexpr size_t kPeriod = 84;

double InputValue(size_t position, int rank) {
  return static_cast<double>((position + static_cast<size_t>(rank)) % 4 + position / 7 % 3);
}

double SumValue(size_t position, int size) {
  double sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += InputValue(position, rank);
  return sum;
}

// One period of `value` as `type`.
template <typename Wire, typename Value>
std::vector<char> Block(DataType type, const Value& value) {
  std::vector<Wire> wire;
  for (size_t i = 0; i < kPeriod; ++i) wire.push_back(static_cast<Wire>(value(i)));
  std::vector<char> block(kPeriod * SizeOf(type));
  Unpack(type, wire.data(), block.data(), kPeriod, 1);
  return block;
}

template <typename Value>
std::vector<char> MakeBlock(DataType type, const Value& value) {
  switch (WireType(type)) {
    case DataType::kFloat64:
      return Block<double>(type, value);
    case DataType::kInt32:
      return Block<int32_t>(type, value);
    case DataType::kInt64:
      return Block<int64_t>(type, value);
    default:
      return Block<float>(type, value);
  }
}

void Fill(char* data, size_t bytes, const std::vector<char>& block) {
  for (size_t at = 0; at < bytes; at += block.size()) {
    std::memcpy(data + at, block.data(), std::min(block.size(), bytes - at));
  }
}

bool Holds(const char* data, size_t bytes, const std::vector<char>& block) {
  for (size_t at = 0; at < bytes; at += block.size()) {
    if (std::memcmp(data + at, block.data(), std::min(block.size(), bytes - at)) != 0) return false;
  }
  return true;
}

struct Timed {
  Status status;
  double seconds = 0;
};

double SecondsSince(TimePoint start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The requests of one round, whose memory belongs to `owner`. A round lives until the last of them
// has ended, which may be after a wait has timed out.
class Round {
 public:
  static std::shared_ptr<Round> Make(size_t requests, std::shared_ptr<void> owner) {
    const std::shared_ptr<Round> round(new Round(requests, std::move(owner)));
    round->self_ = round;
    return round;
  }

  void EndOne(const Status& ended) { EndOne({ended, SecondsSince(start_)}); }
  // With a time from the caller. The round's time is that of its last request.
  void EndOne(const Timed& ended) {
    std::shared_ptr<Round> self;  // released after the mutex
    std::lock_guard<std::mutex> lock(mutex_);
    if (timed_.status.ok()) timed_.status = ended.status;
    if (--unfinished_ != 0) return;
    self = std::move(self_);
    timed_.seconds = ended.seconds;
    is_over_ = true;
    over_.notify_all();
  }
  // False if it has not ended within `seconds`.
  bool Await(double seconds, Timed* timed) {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::chrono::duration<double> limit(seconds);
    if (!over_.wait_for(lock, limit, [this] { return is_over_; })) return false;
    *timed = timed_;
    return true;
  }

 private:
  Round(size_t requests, std::shared_ptr<void> owner)
      : owner_(std::move(owner)), unfinished_(requests) {}

  const std::shared_ptr<void> owner_;
  const TimePoint start_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable over_;
  size_t unfinished_;  // guarded by mutex_, as all below
  std::shared_ptr<Round> self_;
  Timed timed_;
  bool is_over_ = false;
};

// Shared with rounds and callbacks.
class Bench : public std::enable_shared_from_this<Bench> {
 public:
  Bench(Engine* engine, const BenchCase& bench_case);
  Status Run(BenchResult* result);

 private:
  int Rounds(BenchWay way) const;
  char* Input(int round, int tensor) const;
  char* Output(int round, int tensor) const;
  void FillAll(BenchWay way);
  Status CheckAll(BenchWay way) const;
  Status TakeSample(BenchWay way, double* seconds);
  Timed RunDirectly(BenchWay way);
  Status Call(BenchWay way, Transport* transport, int round, int tensor);
  Request MakeRequest(int round, int tensor);
  Request InPlace(const char* what, const Signature& signature, void* data) const;
  Request MakeAligner();
  Timed RunRound(std::vector<Request> requests, const std::string& what);
  Timed TooLong(const std::string& what) const;
  Status CheckMemory();
  Status BroadcastMore();
  Status TakeSlowest();
  std::vector<BenchWay> Ways() const;

  Engine* const engine_;
  const BenchCase case_;
  const Topology topology_;
  const size_t bytes_;  // per tensor and rank
  std::string label_;
  std::vector<char> input_;                  // a period of this rank's numbers
  std::vector<std::vector<char>> expected_;  // allreduce: one; allgather: by rank
  LineMemory inputs_;
  LineMemory outputs_;           // null: in place
  size_t needed_ = 0;            // bytes of both
  int32_t lacking_ = 0;          // the number, from 1, of a rank that has no memory
  uint8_t more_ = 1;             // whether to take another sample; rank 0 decides
  float aligner_ = 0;            // the data of MakeAligner
  std::vector<double> seconds_;  // by sample; the ways alternate
};

Bench::Bench(Engine* engine, const BenchCase& bench_case)
    : engine_(engine),
      case_(bench_case),
      topology_(engine->topology()),
      bytes_(bench_case.count * SizeOf(bench_case.dtype)),
      label_("bench " + std::string(Name(case_.kind)) + " " + Name(case_.dtype) + " " +
             std::to_string(case_.count) + " x " + std::to_string(case_.tensors)) {
  const auto of_rank = [&](int rank) {
    return MakeBlock(case_.dtype, [rank](size_t i) { return InputValue(i, rank); });
  };
  input_ = of_rank(topology_.rank);
  const size_t tensors =
      static_cast<size_t>(case_.tensors) * std::max(case_.direct_rounds, case_.engine_rounds);
  // Aligned like TensorFlow's memory. At least a byte, so that null always means a lack of memory.
  const auto allocate = [](size_t bytes) { return NewLineMemory(std::max<size_t>(1, bytes)); };
  inputs_ = allocate(needed_ = tensors * bytes_);
  if (case_.kind == OpKind::kAllgather) {
    for (int rank = 0; rank < topology_.size; ++rank) expected_.push_back(of_rank(rank));
    outputs_ = allocate(needed_ * topology_.size);
    if (outputs_ == nullptr) inputs_ = nullptr;
    needed_ += needed_ * topology_.size;
  } else {
    expected_.push_back(
        MakeBlock(case_.dtype, [this](size_t i) { return SumValue(i, topology_.size); }));
  }
}

int Bench::Rounds(BenchWay way) const {
  return way == BenchWay::kEngine ? case_.engine_rounds : case_.direct_rounds;
}

char* Bench::Input(int round, int tensor) const {
  return inputs_.get() + (static_cast<size_t>(round) * case_.tensors + tensor) * bytes_;
}

char* Bench::Output(int round, int tensor) const {
  if (outputs_ == nullptr) return Input(round, tensor);
  const size_t index = static_cast<size_t>(round) * case_.tensors + tensor;
  return outputs_.get() + index * bytes_ * topology_.size;
}

void Bench::FillAll(BenchWay way) {
  for (int round = 0; round < Rounds(way); ++round) {
    for (int tensor = 0; tensor < case_.tensors; ++tensor) {
      if (outputs_ != nullptr) {
        std::memset(Output(round, tensor), 0x7b, bytes_ * topology_.size);
      }
      Fill(Input(round, tensor), bytes_, input_);
    }
  }
}

Status Bench::CheckAll(BenchWay way) const {
  for (int round = 0; round < Rounds(way); ++round) {
    for (int tensor = 0; tensor < case_.tensors; ++tensor) {
      const char* out = Output(round, tensor);
      for (const std::vector<char>& block : expected_) {
        if (!Holds(out, bytes_, block)) {
          return Status(Code::kInternal, "rank " + std::to_string(topology_.rank) + "/" +
                                             std::to_string(topology_.size) + ": " + label_ +
                                             " gave a wrong result");
        }
        out += bytes_;
      }
    }
  }
  return Status();
}

Status Bench::Call(BenchWay way, Transport* transport, int round, int tensor) {
  const TimePoint deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                std::chrono::duration<double>(case_.timeout));
  const void* in = Input(round, tensor);
  void* out = Output(round, tensor);
  if (case_.kind == OpKind::kAllgather) {
    return transport->Allgather(in, out, std::vector<size_t>(topology_.size, bytes_), deadline);
  }
  const Reduction reduction = {case_.count, case_.dtype, ReduceOp::kSum, 1};
  if (way == BenchWay::kPlain) {
    return transport->PlainAllreduce(in, out, reduction, TimePoint::max());
  }
  return transport->Allreduce(in, out, reduction, deadline);
}

// Called on the communication thread, in a barrier's `done`.
Timed Bench::RunDirectly(BenchWay way) {
  Transport* const transport = engine_->transport();
  // The ranks leave the barrier microseconds apart; these rounds bring them as close as possible.
  for (int i = 0; i < 2; ++i) {
    float value = 1;
    const Status status =
        transport->Allreduce(&value, &value, {1, DataType::kFloat32, ReduceOp::kSum, 1},
                             Clock::now() + std::chrono::minutes(1));
    if (!status.ok()) return {status, 0};
  }
  const TimePoint start = Clock::now();
  for (int round = 0; round < case_.direct_rounds; ++round) {
    for (int tensor = 0; tensor < case_.tensors; ++tensor) {
      const Status status = Call(way, transport, round, tensor);
      if (!status.ok()) return {status, 0};
    }
  }
  return {Status(), SecondsSince(start) / case_.direct_rounds};
}

Request Bench::MakeRequest(int round, int tensor) {
  Request request;
  request.name = label_ + " #" + std::to_string(tensor);
  request.signature = {
      case_.kind, ReduceOp::kSum, case_.dtype, 0, {static_cast<int64_t>(case_.count)}};
  request.input = Input(round, tensor);
  if (case_.kind == OpKind::kAllgather) {
    request.allocate = [this, round, tensor](const std::vector<int64_t>&) -> void* {
      return Output(round, tensor);
    };
  } else {
    request.output = Output(round, tensor);
  }
  return request;
}

// A request with one tensor, both input and output; `what` follows the label in its name.
Request Bench::InPlace(const char* what, const Signature& signature, void* data) const {
  Request request;
  request.name = label_ + what;
  request.signature = signature;
  request.input = request.output = data;
  return request;
}

// A tiny allreduce, after which the ranks continue at nearly the same time.
Request Bench::MakeAligner() {
  return InPlace(" together", {OpKind::kAllreduce, ReduceOp::kSum, DataType::kFloat32, 0, {1}},
                 &aligner_);
}

Timed Bench::TooLong(const std::string& what) const {
  return {Status(Code::kDeadlineExceeded,
                 "rank " + std::to_string(topology_.rank) + "/" + std::to_string(topology_.size) +
                     ": '" + what + "' did not end within " +
                     std::to_string(static_cast<int>(case_.timeout)) +
                     " s; a rank has stopped or runs another case, or --timeout is too short"),
          0};
}

Timed Bench::RunRound(std::vector<Request> requests, const std::string& what) {
  const std::shared_ptr<Round> round = Round::Make(requests.size(), shared_from_this());
  for (Request& request : requests) {
    request.done = [self = round.get()](const Status& status) { self->EndOne(status); };
  }
  engine_->Submit(std::move(requests), nullptr);  // together, like the gradients of a step
  Timed timed;
  return round->Await(case_.timeout, &timed) ? timed : TooLong(what);
}

Status Bench::TakeSample(BenchWay way, double* seconds) {
  FillAll(way);
  Request barrier;
  barrier.name = label_ + (way == BenchWay::kEngine ? " start" : " directly");
  barrier.signature.kind = OpKind::kBarrier;
  Timed timed;
  if (way == BenchWay::kEngine) {
    timed = RunRound({std::move(barrier)}, label_);
    // As in RunDirectly: the ranks leave the barrier microseconds apart.
    for (int i = 0; i < 2 && timed.status.ok(); ++i) timed = RunRound({MakeAligner()}, label_);
    double sum = 0;
    for (int round = 0; round < case_.engine_rounds && timed.status.ok(); ++round) {
      std::vector<Request> requests;
      for (int t = 0; t < case_.tensors; ++t) requests.push_back(MakeRequest(round, t));
      timed = RunRound(std::move(requests), label_);
      sum += timed.seconds;
    }
    *seconds = sum / case_.engine_rounds;
  } else {
    // std::future would need a newer libstdc++ than the wheel may require.
    const std::shared_ptr<Round> round = Round::Make(1, shared_from_this());
    barrier.done = [this, self = round.get(), way](const Status& status) {
      self->EndOne(status.ok() ? RunDirectly(way) : Timed{status, 0});
    };
    engine_->Submit(std::move(barrier));
    if (!round->Await(case_.timeout, &timed)) timed = TooLong(label_);
    *seconds = timed.seconds;
  }
  return timed.status.ok() ? CheckAll(way) : timed.status;
}

// Fails on all ranks if one has no memory, so that none waits for it.
Status Bench::CheckMemory() {
  lacking_ = inputs_ == nullptr ? topology_.rank + 1 : 0;
  const Signature one = {OpKind::kAllreduce, ReduceOp::kMax, DataType::kInt32, 0, {1}};
  TFMPI_RETURN_IF_NOT_OK(RunRound({InPlace(" memory", one, &lacking_)}, label_ + " memory").status);
  if (lacking_ == 0) return Status();
  return Status(Code::kUnavailable, "rank " + std::to_string(lacking_ - 1) + "/" +
                                        std::to_string(topology_.size) + ": " + label_ +
                                        " found no memory for " + std::to_string(needed_) +
                                        " bytes; use smaller --sizes");
}

Status Bench::BroadcastMore() {
  const Signature byte = {OpKind::kBroadcast, ReduceOp::kSum, DataType::kUint8, 0, {1}};
  return RunRound({InPlace(" once more", byte, &more_)}, label_ + " once more").status;
}

// Replaces each of `seconds_` with the maximum over the ranks.
Status Bench::TakeSlowest() {
  const auto samples = static_cast<int64_t>(seconds_.size());
  const Signature all = {OpKind::kAllreduce, ReduceOp::kMax, DataType::kFloat64, 0, {samples}};
  return RunRound({InPlace(" slowest", all, seconds_.data())}, label_ + " slowest").status;
}

// The engine sends half and bfloat16 as float32, so the other ways would transfer other data.
std::vector<BenchWay> Bench::Ways() const {
  if (case_.kind == OpKind::kAllgather) return {BenchWay::kTransport, BenchWay::kEngine};
  if (!IsWireForm(case_.dtype)) return {BenchWay::kEngine};
  return {BenchWay::kPlain, BenchWay::kTransport, BenchWay::kEngine};
}

Status Bench::Run(BenchResult* result) {
  TFMPI_RETURN_IF_NOT_OK(CheckMemory());
  const std::vector<BenchWay> ways = Ways();
  const TimePoint start = Clock::now();
  for (int sample = -1; more_ != 0; ++sample) {  // the first one is a warm-up
    for (BenchWay way : ways) {
      double seconds = 0;
      TFMPI_RETURN_IF_NOT_OK(TakeSample(way, &seconds));
      if (sample >= 0) seconds_.push_back(seconds);
    }
    const int taken = sample + 1;
    more_ = taken < case_.min_samples ||
            (taken < case_.max_samples && SecondsSince(start) < case_.budget);
    TFMPI_RETURN_IF_NOT_OK(BroadcastMore());
  }
  TFMPI_RETURN_IF_NOT_OK(TakeSlowest());
  for (size_t i = 0; i < seconds_.size(); ++i) {
    result->seconds[static_cast<int>(ways[i % ways.size()])].push_back(seconds_[i]);
  }
  return Status();
}

}  // namespace

Status RunBench(Engine* engine, const BenchCase& bench_case, BenchResult* result) {
  return std::make_shared<Bench>(engine, bench_case)->Run(result);
}

}  // namespace tfmpi
