#include "tensorflow_patches/core/relay/relay.h"

#include <algorithm>
#include <utility>

#include "tensorflow_patches/core/base/bytes.h"

namespace tfmpi {
namespace {

// Whether these are ranks of a group of this size, ascending.
bool AreRanks(const std::vector<RankSet::Run>& runs, int size) {
  int next = 0;
  for (const RankSet::Run& run : runs) {
    if (run.first < next || run.first >= size || run.count <= 0 || run.count > size - run.first) {
      return false;
    }
    next = run.first + run.count;
  }
  return !runs.empty();
}

// Whether two lists of one entry each, for the same name or number, are equal.
bool Same(const ReadyList& a, const ReadyList& b) {
  if (!a.ready.empty() && !b.ready.empty()) return true;
  return Encode(a) == Encode(b);
}

// Whether `list` contains the single entry of `more`.
bool Repeats(const ReadyList& list, const ReadyList& more) {
  const auto is_in = [](const auto& all, const auto& some, const auto& key_of) {
    return !some.empty() && std::any_of(all.begin(), all.end(), [&](const auto& one) {
      return key_of(one) == key_of(some.front());
    });
  };
  return is_in(list.ready, more.ready, [](NameId id) { return id; }) ||
         is_in(list.gathers, more.gathers, [](const KnownGather& gather) { return gather.id; }) ||
         is_in(list.requests, more.requests, [](const NamedSignature& one) { return one.name; });
}

bool IsOnlyReady(const ReadyList& list) {
  return list.withdrawn.empty() && !list.joined && list.leaving.empty() && list.wait_state.empty();
}

}  // namespace

std::string Encode(const std::vector<Announcement>& announcements) {
  Writer writer;
  writer.List(announcements, [&](const Announcement& announcement) {
    writer.List(announcement.ranks.runs(), [&](const RankSet::Run& run) {
      writer.Unsigned(run.first);
      writer.Unsigned(run.count);
    });
    writer.String(Encode(announcement.list));
  });
  return writer.Take();
}

bool Decode(const std::string& bytes, int size, std::vector<Announcement>* announcements) {
  Reader reader(bytes);
  reader.List(*announcements, [&](Announcement& announcement) {
    std::vector<RankSet::Run> runs;
    reader.List(runs, [&](RankSet::Run& run) {
      reader.Unsigned(run.first);
      reader.Unsigned(run.count);
    });
    std::string list;
    reader.String(list);
    const bool valid = AreRanks(runs, size) && Decode(list, &announcement.list);
    reader.Check(valid);
    if (!valid) return;
    for (const RankSet::Run& run : runs) announcement.ranks.Append(run);
  });
  return reader.Finished();
}

void Relay::Add(Announcement announcement, TimePoint now) {
  if (announcement.list.empty()) return;
  if (options_.name_of_all_ranks && IsOnlyReady(announcement.list)) {
    return AddReady(announcement, now);
  }
  PassAll();
  const bool quiet =
      !announcement.list.wait_state.empty() && announcement.list.wait_state.back().has_no_gradients;
  for (const int rank : announcement.ranks.ranks()) {
    quiet_.Remove(rank);
    if (announcement.list.joined && !joined_.Contains(rank)) joined_.Add(RankSet(rank));
    if (quiet && !joined_.Contains(rank)) quiet_.Add(RankSet(rank));
  }
  due_.push_back(std::move(announcement));
  open_.clear();
}

void Relay::AddReady(const Announcement& announcement, TimePoint now) {
  if (quiet_.Intersects(announcement.ranks)) {
    for (const int rank : announcement.ranks.ranks()) quiet_.Remove(rank);
  }
  const ReadyList& list = announcement.list;
  for (const NameId id : list.ready) {
    ReadyList one;
    one.ready = {id};
    Announce(&numbered_, id, announcement.ranks, std::move(one), now);
  }
  for (const KnownGather& gather : list.gathers) {
    ReadyList one;
    one.gathers = {gather};
    Announce(&numbered_, gather.id, announcement.ranks, std::move(one), now);
  }
  for (const NamedSignature& named : list.requests) {
    ReadyList one;
    one.requests = {named};
    Announce(&named_, named.name, announcement.ranks, std::move(one), now);
  }
}

// `list`: with one entry.
bool Relay::IsHeldBack(const ReadyList& list) const {
  const std::string* name = nullptr;  // unless only some ranks announce it
  if (list.requests.empty()) {
    name = options_.name_of_all_ranks(list.ready.empty() ? list.gathers.front().id
                                                         : list.ready.front());
  } else if (list.requests.front().signature.members == nullptr) {
    name = &list.requests.front().name;
  }
  return name != nullptr && failed_.count(*name) == 0;
}

template <typename Key>
void Relay::Announce(std::map<Key, Name>* names, const Key& key, const RankSet& ranks,
                     ReadyList list, TimePoint now) {
  if (!IsHeldBack(list)) {
    open_.clear();  // two announcements of a name by one rank must not share a list
    return Emit({ranks, std::move(list)});
  }
  Name* name = &(*names)[key];
  // Announced again, so the announcements that were passed on have been answered.
  if (name->passed.Intersects(ranks)) name->passed = RankSet();
  Keep(name, ranks, std::move(list), now);
  if (!IsComplete(*name)) return;
  Pass(name);
  names->erase(key);
}

void Relay::Keep(Name* name, const RankSet& ranks, ReadyList list, TimePoint now) {
  if (name->parts.empty() && kept_++ == 0) since_ = now;
  name->kept.Add(ranks);
  for (Announcement& part : name->parts) {
    if (Same(part.list, list)) return part.ranks.Add(ranks);
  }
  name->parts.push_back({ranks, std::move(list)});
}

// A rank that is quiet now may have announced this name earlier, and is then counted twice: the
// name is forwarded too soon, which costs only a message.
bool Relay::IsComplete(const Name& name) const {
  return name.passed.size() + name.kept.size() + joined_.size() + quiet_.size() >= num_below_;
}

void Relay::Pass(Name* name) {
  if (name->parts.empty()) return;
  for (Announcement& part : name->parts) Emit(std::move(part));
  name->parts.clear();
  name->passed.Add(name->kept);
  name->kept = RankSet();
  --kept_;
}

bool Relay::HaveJoined(const std::vector<int>& ranks) const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [this](int rank) { return joined_.Contains(rank); });
}

void Relay::OnErrors(const std::vector<NamedError>& errors) {
  PassAll();
  for (const NamedError& error : errors) failed_.insert(error.name);
}

void Relay::PassAll() {
  for (auto& [id, name] : numbered_) Pass(&name);
  for (auto& [key, name] : named_) Pass(&name);
}

// Announcements of the same ranks share one list, in which each name occurs once.
void Relay::Emit(Announcement announcement) {
  const auto [place, is_new] = open_.try_emplace(announcement.ranks.runs(), due_.size());
  if (is_new) return due_.push_back(std::move(announcement));
  ReadyList& list = due_[place->second].list;
  if (Repeats(list, announcement.list)) {
    open_.clear();
    return Emit(std::move(announcement));
  }
  const auto add = [](auto* to, const auto& from) {
    to->insert(to->end(), from.begin(), from.end());
  };
  add(&list.ready, announcement.list.ready);
  add(&list.gathers, announcement.list.gathers);
  add(&list.requests, announcement.list.requests);
}

std::vector<Announcement> Relay::TakeDue(TimePoint now) {
  if (holds_back() && now - since_ >= options_.patience) PassAll();
  open_.clear();
  for (Announcement& announcement : due_) {
    std::sort(announcement.list.ready.begin(), announcement.list.ready.end());
  }
  return std::exchange(due_, {});
}

}  // namespace tfmpi
