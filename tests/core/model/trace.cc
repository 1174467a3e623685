#include "tests/core/model/trace.h"

#include <algorithm>
#include <map>
#include <set>

#include "tensorflow_patches/core/agreement/coordinator.h"
#include "tensorflow_patches/core/agreement/message.h"

namespace tfmpi {
namespace {

using What = EngineOptions::Event;

// Every name has a set of ranks that have announced it and were not answered, and a set of ranks
// that an error has answered before they announced it.
class Model {
 public:
  explicit Model(int ranks) : ranks_(ranks) {}

  std::string OnReadyList(int rank, const ReadyList& ready_list) {
    for (const NameId id : ready_list.ready) Announce(rank, NameOf(id));
    for (const KnownGather& gather : ready_list.gathers) Announce(rank, NameOf(gather.id));
    for (const NamedSignature& named : ready_list.requests) Announce(rank, named.name);
    if (ready_list.joined) joined_.insert(rank);
    return wrong_;
  }

  std::string Told(const ResponseList& response_list) {
    for (const Response& response : response_list.responses) {
      for (const ResponseItem& item : response.items) Answer(response, Learn(item));
    }
    for (const Withdrawal& withdrawal : response_list.withdrawn) {
      if (announced_[withdrawal.name].erase(withdrawal.rank) == 0) {
        Blame("rank " + std::to_string(withdrawal.rank) + " is let go of '" + withdrawal.name +
              "', which it has not announced");
      }
    }
    for (const NamedError& error : response_list.errors) {
      std::set<int>& announced = announced_[error.name];
      for (int rank = 0; rank < ranks_; ++rank) {
        if (announced.count(rank) == 0 && joined_.count(rank) == 0) ++owed_[error.name][rank];
      }
      announced.clear();
    }
    return wrong_;
  }

  // All ranks have voted for the list, and none has announced its requests to the coordinator.
  std::string Voted(const ResponseList& response_list) {
    for (const Response& response : response_list.responses) {
      if (response.contributors != ranks_) Blame("a vote without all ranks");
      for (const ResponseItem& item : response.items) {
        const std::string name = NameOf(item.id);
        if (!announced_[name].empty()) Blame("'" + name + "' was voted for, and announced");
        if (!joined_.empty()) Blame("'" + name + "' was voted for after a rank has joined");
      }
    }
    return wrong_;
  }

  std::string Learn(const ResponseItem& item) {
    if (item.is_new && item.id != kNoId) names_[item.id] = item.named.name;
    return item.is_new ? item.named.name : NameOf(item.id);
  }

 private:
  std::string NameOf(NameId id) {
    const auto it = names_.find(id);
    if (it == names_.end()) Blame("nobody knows number " + std::to_string(id));
    return it == names_.end() ? std::string() : it->second;
  }

  void Announce(int rank, const std::string& name) {
    if (int& owed = owed_[name][rank]; owed > 0) {
      --owed;
    } else if (!announced_[name].insert(rank).second) {
      Blame("rank " + std::to_string(rank) + " announces '" + name + "' twice");
    }
  }

  void Answer(const Response& response, const std::string& name) {
    std::set<int>& announced = announced_[name];
    for (int rank = 0; rank < ranks_; ++rank) {
      if (announced.count(rank) == 0 && joined_.count(rank) == 0) {
        Blame("'" + name + "' without rank " + std::to_string(rank));
      }
    }
    if (static_cast<int>(announced.size()) != response.contributors) {
      Blame("'" + name + "' is of " + std::to_string(announced.size()) + " ranks, not of " +
            std::to_string(response.contributors));
    }
    announced.clear();
  }

  void Blame(const std::string& wrong) {
    if (wrong_.empty()) wrong_ = wrong;
  }

  const int ranks_;
  std::map<NameId, std::string> names_;
  std::map<std::string, std::set<int>> announced_;
  std::map<std::string, std::map<int, int>> owed_;
  std::set<int> joined_;
  std::string wrong_;
};

ResponseList ReadResponses(const std::string& message) {
  ResponseList response_list;
  Decode(message, &response_list);
  return response_list;
}

// The decisions, without their division into lists and without all that depends on time only.
struct Decisions {
  std::vector<std::string> items;
  std::vector<std::string> errors;
  std::vector<std::string> withdrawn;

  void Add(const ResponseList& response_list) {
    for (const Response& response : response_list.responses) {
      for (const ResponseItem& item : response.items) {
        std::string text = std::to_string(item.id) + " of " + std::to_string(response.contributors);
        if (item.is_new) text += " '" + item.named.name + "' " + Describe(item.named.signature);
        for (const int64_t rows : item.rows) text += " " + std::to_string(rows);
        items.push_back(text);
      }
    }
    for (const NamedError& error : response_list.errors) {
      errors.push_back("'" + error.name + "': " + error.message);
    }
    for (const Withdrawal& withdrawal : response_list.withdrawn) {
      withdrawn.push_back("'" + withdrawal.name + "' of " + std::to_string(withdrawal.rank));
    }
  }
};

// Where they first differ, or "".
std::string Compare(const std::vector<std::string>& told, const std::vector<std::string>& decided) {
  const size_t common = std::min(told.size(), decided.size());
  for (size_t i = 0; i < common; ++i) {
    if (told[i] != decided[i]) return "rank 0 told " + told[i] + ", not " + decided[i];
  }
  if (told.size() == decided.size()) return "";
  return "rank 0 told " + std::to_string(told.size()) + " things, not " +
         std::to_string(decided.size());
}

}  // namespace

std::function<void(What, int, const std::string&)> Trace::Recorder(int rank) {
  return [this, rank](What event, int about, const std::string& message) {
    events_[rank].push_back({event, about, message});
  };
}

int Trace::Count(What event) const {
  return static_cast<int>(
      std::count_if(events_[0].begin(), events_[0].end(), [event](const Recorded& recorded) {
        return recorded.event == event && !ReadResponses(recorded.message).responses.empty();
      }));
}

std::string Trace::Check() const {
  Model model(ranks_);
  for (const Recorded& recorded : events_[0]) {
    std::string wrong;
    if (recorded.event == What::kReadyList) {
      ReadyList ready_list;
      Decode(recorded.message, &ready_list);
      wrong = model.OnReadyList(recorded.rank, ready_list);
    } else if (recorded.event == What::kResponseList) {
      wrong = model.Told(ReadResponses(recorded.message));
    } else {
      wrong = model.Voted(ReadResponses(recorded.message));
    }
    if (!wrong.empty()) return wrong;
  }
  // Operations that move data have one order on all ranks, however they were agreed on; so have the
  // response lists that the ranks receive. A rank that has failed may have done less.
  const auto project = [this](int rank, bool data) {
    std::vector<std::string> messages;
    for (const Recorded& recorded : events_[rank]) {
      if (recorded.event == What::kReadyList) continue;
      ResponseList response_list = ReadResponses(recorded.message);
      if (data ? response_list.responses.empty() : recorded.event != What::kResponseList) continue;
      if (tree_ && !response_list.fatal.empty()) break;
      if (data) {
        ResponseList only;
        only.responses = response_list.responses;
        messages.push_back(Encode(only));
      } else {
        messages.push_back(recorded.message);
      }
    }
    return messages;
  };
  for (const bool data : {true, false}) {
    const std::vector<std::string> first = project(0, data);
    for (int rank = 1; rank < ranks_; ++rank) {
      const std::vector<std::string> other = project(rank, data);
      const size_t common = std::min(first.size(), other.size());
      if (!std::equal(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(common),
                      other.begin())) {
        return "rank " + std::to_string(rank) + " does something else than rank 0";
      }
    }
  }
  return "";
}

std::string Trace::Replay() const {
  const TimePoint now = TimePoint() + std::chrono::hours(1);  // no time passes
  Coordinator coordinator(ranks_, CoordinatorOptions(), now);
  Decisions told, decided;
  for (const Recorded& recorded : events_[0]) {
    if (recorded.event == What::kResponseList) told.Add(ReadResponses(recorded.message));
    if (recorded.event != What::kReadyList) continue;
    ReadyList ready_list;
    Decode(recorded.message, &ready_list);
    coordinator.Receive(recorded.rank, ready_list, now);
    decided.Add(coordinator.Decide(now));
  }
  for (const auto& part : {&Decisions::items, &Decisions::errors, &Decisions::withdrawn}) {
    const std::string wrong = Compare(told.*part, decided.*part);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace tfmpi
