#include "tensorflow_patches/core/recovery/survivors.h"

#include <algorithm>

#include "tensorflow_patches/core/base/bytes.h"

namespace tfmpi {
namespace {

template <typename Io, typename Data>
void ReportFields(Io* io, Data& report) {
  io->Signed(report.former_rank);
  io->Unsigned(report.done);
  io->Unsigned(report.first);
  io->List(report.roots, [&](auto& root) { io->Signed(root); });
  io->String(report.needs_all);
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
  Writer writer;
  ReportFields(&writer, own);
  std::vector<std::string> all;
  TFMPI_RETURN_IF_NOT_OK(AllgatherStrings(among, writer.Take(), deadline, &all));
  for (const std::string& bytes : all) {
    Reader reader(bytes);
    Report report;
    ReportFields(&reader, report);
    if (!reader.Finished()) {
      return Status(Code::kInternal, "cannot read the report of a survivor");
    }
    regrouping->reports.push_back(report);
  }
  const auto by_done = [](const Report& a, const Report& b) { return a.done < b.done; };
  const auto [least, most] =
      std::minmax_element(regrouping->reports.begin(), regrouping->reports.end(), by_done);
  regrouping->least_done = least->done;
  regrouping->most_done = most->done;
  if (least->done == most->done) return Status();
  if (most->first > least->done) {
    return Status(Code::kInternal, "rank " + std::to_string(most->former_rank) +
                                       " no longer has the results that other ranks lack");
  }
  const auto root = static_cast<size_t>(most - regrouping->reports.begin());
  std::string bytes;  // empty on all ranks but the root, so this is a broadcast
  if (among->topology().rank == static_cast<int>(root)) {
    bytes = history.EncodeAfter(regrouping->least_done);
  }
  all.clear();
  TFMPI_RETURN_IF_NOT_OK(AllgatherStrings(among, bytes, deadline, &all));
  if (!History::Decode(all[root], &regrouping->missing)) {
    return Status(Code::kInternal, "cannot read the results of other ranks");
  }
  return Status();
}

}  // namespace tfmpi
