#include "tests/core/simulation/referee.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tfmpi {
namespace {

std::string Who(const Referee::Call& call) {
  return "rank " + std::to_string(call.rank) + ", '" + call.item.name + "' number " +
         std::to_string(call.number);
}

// Element 0 counts the ranks; one element per rank is the number of its request, from 1; others are
// 0.
size_t Elements(const Item& item, int ranks) { return 1 + ranks + item.more; }

double Get(const Item& item, const std::vector<char>& data, size_t index) {
  if (item.average) {
    float value = 0;
    std::memcpy(&value, data.data() + index * sizeof value, sizeof value);
    return value;
  }
  int64_t value = 0;
  std::memcpy(&value, data.data() + index * sizeof value, sizeof value);
  return static_cast<double>(value);
}

void Set(const Item& item, std::vector<char>* data, size_t index, int value) {
  const float small = static_cast<float>(value);
  const int64_t large = value;
  if (item.average) {
    std::memcpy(data->data() + index * sizeof small, &small, sizeof small);
  } else {
    std::memcpy(data->data() + index * sizeof large, &large, sizeof large);
  }
}

int RowsOf(int rank, int number) { return 1 + (rank + number) % 2; }

}  // namespace

std::vector<Referee::Call*> Referee::Submit(Engine* engine, int rank,
                                            const std::vector<Item>& items) {
  std::vector<Call*> calls;
  std::vector<Request> requests;
  for (const Item& item : items) {
    Call& call = calls_.emplace_back();
    call.rank = rank;
    call.number = numbers_[{rank, item.name}]++;
    call.item = item;
    calls.push_back(&call);
    requests.push_back(MakeRequest(&call));
    if (!item.twice) continue;
    requests.back().done = [this, &call, engine](const Status& status) {
      Ended(&call, status);
      Item again = call.item;
      again.twice = false;
      Submit(engine, call.rank, {again});
    };
  }
  std::vector<Ticket> tickets;
  engine->Submit(std::move(requests), &tickets);
  for (size_t i = 0; i < tickets.size(); ++i) calls[i]->ticket = tickets[i];
  return calls;
}

Request Referee::MakeRequest(Call* call) {
  const Item& item = call->item;
  Request request;
  request.name = item.name;
  request.done = [this, call](const Status& status) { Ended(call, status); };
  Signature& signature = request.signature;
  signature.kind = item.kind;
  signature.root = item.kind == OpKind::kBroadcast ? item.root : 0;
  signature.op = item.average ? ReduceOp::kAverage : ReduceOp::kSum;
  signature.dtype = item.average ? DataType::kFloat32 : DataType::kInt64;
  if (item.kind == OpKind::kBarrier) return request;
  if (item.kind == OpKind::kAllgather) {
    const int rows = RowsOf(call->rank, call->number);
    signature.shape = {rows, 2 + item.more};
    call->input.resize(static_cast<size_t>(NumElements(signature.shape)) * SizeOf(signature.dtype));
    for (int row = 0; row < rows; ++row) {
      Set(item, &call->input, static_cast<size_t>(row * (2 + item.more)), call->rank);
      Set(item, &call->input, static_cast<size_t>(row * (2 + item.more) + 1), call->number + 1);
    }
    request.allocate = [call, width = call->input.size() / rows](const std::vector<int64_t>& all) {
      call->rows = all;
      int64_t rows = 0;
      for (const int64_t one : all) rows += one;
      call->output.resize(static_cast<size_t>(rows) * width);
      return static_cast<void*>(call->output.data());
    };
    request.input = call->input.data();
    return request;
  }
  const size_t elements = Elements(item, ranks_);
  signature.shape = {static_cast<int64_t>(elements)};
  call->input.resize(elements * SizeOf(signature.dtype));
  call->output.resize(call->input.size());
  Set(item, &call->input, 0, 1);
  Set(item, &call->input, static_cast<size_t>(1 + call->rank), call->number + 1);
  if (item.kind == OpKind::kBroadcast) call->output = call->input;
  request.input = call->input.data();
  request.output = call->output.data();
  return request;
}

void Referee::Ended(Call* call, const Status& status) {
  if (std::exchange(call->done, true)) wrong_ = Who(*call) + " has ended twice";
  call->status = status;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (joins_[rank]) call->joined.insert(rank);
  }
  if (!status.ok()) return;
  const std::string wrong = Read(call);
  if (!wrong.empty() && wrong_.empty()) wrong_ = Who(*call) + ": " + wrong;
}

std::string Referee::Read(Call* call) const {
  if (call->item.kind == OpKind::kBarrier) return "";
  const std::string wrong = call->item.kind == OpKind::kAllgather ? ReadRows(call) : ReadSum(call);
  if (!wrong.empty() || call->item.kind == OpKind::kBroadcast) return wrong;
  const auto own = call->met.find(call->rank);
  if (own == call->met.end() || own->second != call->number) return "its own data is not in it";
  for (int rank = 0; rank < ranks_; ++rank) {
    if (call->met.count(rank) == 0 && call->joined.count(rank) == 0) {
      return "without rank " + std::to_string(rank) + ", whose script goes on";
    }
  }
  return "";
}

// The result of a broadcast contains only the root's data.
std::string Referee::ReadSum(Call* call) const {
  const Item& item = call->item;
  int contributors = 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    contributors += Get(item, call->output, static_cast<size_t>(1 + rank)) != 0;
  }
  const double divisor = item.average && item.kind == OpKind::kAllreduce ? contributors : 1;
  const auto whole = [&](size_t index, double* value) {
    const double found = Get(item, call->output, index);
    *value = std::round(found * divisor);
    // The factor 1/n and the product are rounded once each.
    const bool exact = contributors == 1 || contributors == 2 || contributors == 4;
    const double error = exact || divisor == 1 ? 0 : std::fabs(found) * 0x1p-22;
    return std::fabs(*value / divisor - found) <= error;
  };
  for (size_t index = 0; index < Elements(item, ranks_); ++index) {
    double value = 0;
    const bool is_whole = whole(index, &value);
    const size_t rank = index - 1;
    const bool is_rank = index > 0 && rank < static_cast<size_t>(ranks_);
    if (!is_whole || (index == 0 && value != contributors) ||
        (!is_rank && index > 0 && value != 0)) {
      return "element " + std::to_string(index) + " is " +
             std::to_string(Get(item, call->output, index));
    }
    if (is_rank && value != 0) call->met[static_cast<int>(rank)] = static_cast<int>(value) - 1;
  }
  if (item.kind != OpKind::kBroadcast) return "";
  if (call->met.size() == 1 && call->met.count(item.root) == 1) return "";
  return "it is not what rank " + std::to_string(item.root) + " had";
}

std::string Referee::ReadRows(Call* call) const {
  const size_t width = static_cast<size_t>(2 + call->item.more);
  size_t row = 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    for (int64_t i = 0; i < call->rows[rank]; ++i, ++row) {
      const int source = static_cast<int>(Get(call->item, call->output, row * width));
      const int number = static_cast<int>(Get(call->item, call->output, row * width + 1)) - 1;
      if (source != rank) return "a row of rank " + std::to_string(source) + " among another's";
      const auto [met, is_new] = call->met.emplace(rank, number);
      if (!is_new && met->second != number) return "rows of two requests of one rank";
    }
    if (call->rows[rank] != 0 && call->rows[rank] != RowsOf(rank, call->met[rank])) {
      return "other rows than rank " + std::to_string(rank) + " has";
    }
  }
  return "";
}

bool Referee::Done(int rank) const {
  return std::all_of(calls_.begin(), calls_.end(),
                     [rank](const Call& call) { return call.rank != rank || call.done; });
}

std::string Referee::Verdict(bool alike) const {
  if (!wrong_.empty()) return wrong_;
  // By request (name, rank, number), a call whose result contains it.
  std::map<std::tuple<std::string, int, int>, const Call*> meetings;
  for (const Call& call : calls_) {
    if (!call.done || !call.status.ok() || call.item.kind == OpKind::kBroadcast) continue;
    for (const auto& [rank, number] : call.met) {
      const auto [it, is_new] =
          meetings.emplace(std::make_tuple(call.item.name, rank, number), &call);
      if (!is_new && it->second->met != call.met) {
        return Who(call) + " met others than " + Who(*it->second) + " in the same";
      }
      if (alike && number != call.number) {
        return Who(call) + " met number " + std::to_string(number) + " of rank " +
               std::to_string(rank);
      }
    }
  }
  for (const Call& call : calls_) {
    if (call.item.kind != OpKind::kBroadcast || !call.done || !call.status.ok() || !alike) continue;
    if (call.met.at(call.item.root) != call.number) return Who(call) + " has another broadcast";
  }
  return "";
}

}  // namespace tfmpi
