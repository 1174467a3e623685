#include "tensorflow_patches/core/recovery/survivors.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "tensorflow_patches/core/memory/leaked_memory.h"

namespace tfmpi {
namespace {

struct Head {
  int64_t former_rank;
  uint64_t done;
  uint64_t first;
  uint64_t roots;
};

std::string Encode(const Report& report) {
  const Head head = {report.former_rank, report.done, report.first, report.roots.size()};
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  for (const int32_t root : report.roots) {
    bytes.append(reinterpret_cast<const char*>(&root), sizeof root);
  }
  return bytes + report.needs_all;
}

bool Decode(const std::string& bytes, Report* report) {
  Head head;
  if (bytes.size() < sizeof head) return false;
  std::memcpy(&head, bytes.data(), sizeof head);
  report->former_rank = static_cast<int>(head.former_rank);
  report->done = head.done;
  report->first = head.first;
  if ((bytes.size() - sizeof head) / sizeof(int32_t) < head.roots) return false;
  report->roots.resize(head.roots);
  const size_t roots = head.roots * sizeof(int32_t);
  if (roots != 0) std::memcpy(report->roots.data(), bytes.data() + sizeof head, roots);
  report->needs_all = bytes.substr(sizeof head + roots);
  return true;
}

// Memory for an operation. If the operation fails it may still write there, so the memory stays.
class OperationMemory {
 public:
  explicit OperationMemory(size_t bytes) : bytes_(std::make_unique<std::string>(bytes, '\0')) {}
  std::string& bytes() { return *bytes_; }
  Status KeepOnFailure(const Status& status) {
    if (!status.ok()) KeepUntilExit(std::move(bytes_));
    return status;
  }

 private:
  std::unique_ptr<std::string> bytes_;
};

// Gathers every rank's bytes.
Status Gather(Transport* among, const std::string& own, TimePoint deadline,
              std::vector<std::string>* all) {
  const auto ranks = static_cast<size_t>(among->topology().size);
  const auto rank = static_cast<size_t>(among->topology().rank);
  OperationMemory lengths(ranks * sizeof(uint64_t));
  auto* const length = reinterpret_cast<uint64_t*>(lengths.bytes().data());
  length[rank] = own.size();
  const std::vector<size_t> each(ranks, sizeof(uint64_t));
  Status status = lengths.KeepOnFailure(among->Allgather(&length[rank], length, each, deadline));
  if (!status.ok()) return status;
  const std::vector<size_t> sizes(length, length + ranks);
  OperationMemory memory(std::accumulate(sizes.begin(), sizes.end(), size_t{0}));
  char* const bytes = memory.bytes().data();
  size_t at = std::accumulate(sizes.begin(), sizes.begin() + among->topology().rank, size_t{0});
  std::copy(own.begin(), own.end(), bytes + at);
  status = memory.KeepOnFailure(among->Allgather(bytes + at, bytes, sizes, deadline));
  if (!status.ok()) return status;
  at = 0;
  for (const size_t size : sizes) {
    all->push_back(memory.bytes().substr(at, size));
    at += size;
  }
  return status;
}

Status Share(Transport* among, int root, TimePoint deadline, std::string* bytes) {
  OperationMemory length(sizeof(uint64_t));
  auto* const number = reinterpret_cast<uint64_t*>(length.bytes().data());
  *number = bytes->size();
  Status status = length.KeepOnFailure(among->Broadcast(number, sizeof *number, root, deadline));
  if (!status.ok()) return status;
  OperationMemory memory(*number);
  std::copy(bytes->begin(), bytes->end(), memory.bytes().begin());
  status = memory.KeepOnFailure(among->Broadcast(memory.bytes().data(), *number, root, deadline));
  if (status.ok()) *bytes = std::move(memory.bytes());
  return status;
}

}  // namespace

int Regrouping::NewRank(int former_rank) const {
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].former_rank == former_rank) return static_cast<int>(rank);
  }
  return -1;
}

Status ExchangeReports(Transport* among, const Report& own, const History& history,
                       TimePoint deadline, Regrouping* regrouping) {
  std::vector<std::string> all;
  Status status = Gather(among, Encode(own), deadline, &all);
  if (!status.ok()) return status;
  for (const std::string& bytes : all) {
    Report report;
    if (!Decode(bytes, &report))
      return Status(Code::kInternal, "cannot read the report of a survivor");
    regrouping->reports.push_back(report);
  }
  const auto by_done = [](const Report& a, const Report& b) { return a.done < b.done; };
  const auto [least, most] =
      std::minmax_element(regrouping->reports.begin(), regrouping->reports.end(), by_done);
  regrouping->least_done = least->done;
  regrouping->most_done = most->done;
  if (least->done == most->done) return status;
  if (most->first > least->done) {
    return Status(Code::kInternal, "rank " + std::to_string(most->former_rank) +
                                       " no longer has the results that other ranks lack");
  }
  const int root = static_cast<int>(most - regrouping->reports.begin());
  std::string bytes;
  if (among->topology().rank == root) bytes = history.EncodeAfter(regrouping->least_done);
  status = Share(among, root, deadline, &bytes);
  if (status.ok() && !History::Decode(bytes, &regrouping->missing)) {
    status = Status(Code::kInternal, "cannot read the results of other ranks");
  }
  return status;
}

}  // namespace tfmpi
