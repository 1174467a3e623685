#include "tensorflow_patches/core/transport/roll_call.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace tfmpi {
namespace {

constexpr char kHello[] = "tensorflow.mpi hello\n";
constexpr char kVerdict[] = "tensorflow.mpi verdict\n";  // then the error, if there is one
constexpr char kHeard[] = "tensorflow.mpi heard\n";
constexpr std::chrono::seconds kMaxConfirmationWait{2};
constexpr std::chrono::milliseconds kPollInterval{10};
constexpr char kUnset[] = "nothing";  // shown as the value of a setting that a rank lacks

bool StartsWith(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

struct Setting {
  std::string name;
  std::vector<std::pair<std::string, std::vector<int>>> values;  // each with its ranks

  void Add(const std::string& value, int rank) {
    for (auto& [known, ranks] : values) {
      if (known == value) return ranks.push_back(rank);
    }
    values.push_back({value, {rank}});
  }

  std::string Describe() const {
    std::string text = name + ": ";
    for (size_t i = 0; i < values.size(); ++i) {
      const std::vector<int>& ranks = values[i].second;
      text += (i > 0 ? ", " : "") + NameRanks(ranks) + (ranks.size() > 1 ? " have '" : " has '") +
              values[i].first + "'";
    }
    return text;
  }
};

// `settings`: RollCallOptions::settings by rank. The result is in order of first occurrence.
std::vector<Setting> Collect(const std::vector<std::string>& settings) {
  std::vector<Setting> all;
  std::set<std::string> names;
  for (const std::string& text : settings) {
    for (const std::string& line : Lines(text)) {
      const std::string name = line.substr(0, line.find('='));
      if (names.insert(name).second) all.push_back({name, {}});
    }
  }
  for (size_t rank = 0; rank < settings.size(); ++rank) {
    std::map<std::string, std::string> own;
    for (const std::string& line : Lines(settings[rank])) {
      const size_t sign = std::min(line.find('='), line.size());
      own[line.substr(0, sign)] = line.substr(std::min(sign + 1, line.size()));
    }
    for (Setting& setting : all) {
      const auto it = own.find(setting.name);
      setting.Add(it != own.end() ? it->second : kUnset, static_cast<int>(rank));
    }
  }
  return all;
}

class Caller {
 public:
  Caller(Transport* transport, const RollCallOptions& options)
      : transport_(*transport), options_(options), size_(transport->topology().size) {}

  Status OnRank0() {
    std::vector<std::string> settings(size_);
    settings[0] = options_.settings;
    std::vector<bool> arrived(size_, false);
    arrived[0] = true;
    Status status = ReceiveSettings(Clock::now() + options_.timeout, &arrived, &settings);
    if (status.ok()) {
      const std::string differences = Differences(settings);
      if (!differences.empty()) status = Status(Code::kFailedPrecondition, differences);
    }
    // Also to ranks whose settings have not arrived.
    for (int rank = 1; rank < size_; ++rank) {
      TFMPI_RETURN_IF_NOT_OK(transport_.Send(rank, kVerdict + status.message()));
    }
    if (!status.ok()) AwaitConfirmations();
    options_.ReportWait("");
    return status;
  }

  Status OnOtherRanks() {
    TFMPI_RETURN_IF_NOT_OK(transport_.Send(0, kHello + options_.settings));
    options_.ReportWait("rank 0 to compare the settings of all ranks");
    const TimePoint deadline = Clock::now() + options_.timeout + options_.grace;
    std::vector<ControlMessage> inbox;
    while (inbox.empty()) {
      TFMPI_RETURN_IF_NOT_OK(transport_.Receive(&inbox));
      if (inbox.empty() && Clock::now() >= deadline) {
        return Status(Code::kDeadlineExceeded,
                      "rank 0 has not compared the settings of all ranks: its process hangs, or "
                      "runs another build of this wheel; install the same wheel on all nodes");
      }
      if (inbox.empty()) transport_.Wait(kPollInterval, true, [] { return false; });
    }
    options_.ReportWait("");
    const std::string& answer = inbox.front().bytes;
    if (!StartsWith(answer, kVerdict)) {
      return Status(Code::kFailedPrecondition,
                    "rank 0 runs another build of this wheel; install the same wheel on all nodes");
    }
    const std::string why = answer.substr(sizeof kVerdict - 1);
    if (why.empty()) return Status();
    const Status heard = transport_.Send(0, kHeard);
    return heard.ok() ? Status(Code::kFailedPrecondition, why) : heard;
  }

 private:
  Status ReceiveSettings(TimePoint deadline, std::vector<bool>* arrived,
                         std::vector<std::string>* settings) {
    std::vector<int> missing;
    while (true) {
      std::vector<int> still_missing;
      for (int rank = 0; rank < size_; ++rank) {
        if (!(*arrived)[rank]) still_missing.push_back(rank);
      }
      if (still_missing != missing) {
        missing = still_missing;
        options_.ReportWait(missing.empty() ? "" : NameRanks(missing) + " to send their settings");
      }
      if (missing.empty()) return Status();
      std::vector<ControlMessage> inbox;
      TFMPI_RETURN_IF_NOT_OK(transport_.Receive(&inbox));
      for (const ControlMessage& message : inbox) {
        if (!StartsWith(message.bytes, kHello)) {
          return Status(
              Code::kFailedPrecondition,
              NameRanks({message.source}) +
                  " runs another build of this wheel; install the same wheel on all nodes");
        }
        (*arrived)[message.source] = true;
        (*settings)[message.source] = message.bytes.substr(sizeof kHello - 1);
      }
      if (!inbox.empty()) continue;
      if (Clock::now() >= deadline) {
        return Status(Code::kDeadlineExceeded,
                      NameRanks(missing) +
                          " did not answer after MPI had started: a process hangs, or runs "
                          "another build of this wheel; install the same wheel on all nodes");
      }
      transport_.Wait(kPollInterval, true, [] { return false; });
    }
  }

  // Waits, at most kMaxConfirmationWait, until the others have received the error with which this
  // rank ends.
  void AwaitConfirmations() {
    const TimePoint deadline = Clock::now() + kMaxConfirmationWait;
    for (int heard = 1; heard < size_ && Clock::now() < deadline;) {
      std::vector<ControlMessage> inbox;
      if (!transport_.Receive(&inbox).ok()) return;
      for (const ControlMessage& message : inbox) heard += StartsWith(message.bytes, kHeard);
      if (inbox.empty()) transport_.Wait(kPollInterval, true, [] { return false; });
    }
  }

  Transport& transport_;
  const RollCallOptions& options_;
  const int size_;
};

}  // namespace

std::string NameRanks(const std::vector<int>& ranks) {
  constexpr size_t kMax = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMax); ++i) {
    const bool last = i + 1 == ranks.size();
    text += (i == 0 ? "" : last ? " and " : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kMax) text += " and " + std::to_string(ranks.size() - kMax) + " more";
  return text;
}

std::string Differences(const std::vector<std::string>& settings) {
  const std::vector<Setting> all = Collect(settings);
  // Other builds have other settings, but the build is the cause.
  if (!all.empty() && all.front().values.size() > 1) {
    return "the ranks run different builds, " + all.front().Describe() +
           "; install the same wheel on all nodes";
  }
  std::string text, names;
  for (const Setting& setting : all) {
    if (setting.values.size() == 1) continue;
    text += (text.empty() ? "" : "; ") + setting.Describe();
    names += " -x " + setting.name;
  }
  if (text.empty()) return text;
  return "the ranks' settings differ, and would make them train different models: " + text +
         ". Set them to the same values everywhere; Open MPI's mpirun passes them to other nodes "
         "only with" +
         names;
}

Status RollCall(Transport* transport, const RollCallOptions& options) {
  Caller caller(transport, options);
  return transport->topology().rank == 0 ? caller.OnRank0() : caller.OnOtherRanks();
}

}  // namespace tfmpi
