// Between which ranks messages travel: ready lists on their way to rank 0, response lists from it,
// and signs of life (core/transport/control_links.h).

#include <algorithm>
#include <utility>

#include "tensorflow_patches/core/agreement/envelope.h"
#include "tensorflow_patches/core/engine/engine.h"

namespace tfmpi {

void Engine::MakeLinks() {
  links_ = transport_->links();
  relay_.reset();
  if (!links_.tree || links_.children.empty()) return;
  RelayOptions options;
  options.patience = options_.vote_patience;
  // Statistics tell which rank came last.
  if (!options_.stats) {
    options.of_all_ranks = [this](NameId id) {
      communication_thread_.AssertMine();
      return names_.has(id) && names_.signature(id).members == nullptr;
    };
  }
  relay_ = std::make_unique<Relay>(links_.below, std::move(options));
}

// What this rank says to the coordinator.
void Engine::SayUp(const ReadyList& ready_list) {
  const int rank = topology().rank;
  if (relay_ != nullptr) return relay_->Take({RankSet(rank), ready_list}, now_);  // PassOn is next
  if (coordinator_ != nullptr) return Tell(rank, ready_list);
  const Status status =
      Send(links_.parent, links_.tree ? Encode({{RankSet(rank), ready_list}}) : Encode(ready_list));
  if (!status.ok()) Fail(status);
}

// To all below this rank; `bytes`: of the list.
void Engine::SayDown(const ResponseList& response_list, const std::string& bytes) {
  if (relay_ != nullptr && !response_list.errors.empty()) relay_->ForgetPassed();
  for (const int child : links_.children) {
    const Status status = Send(child, bytes);
    if (!status.ok()) return Fail(status);
  }
  if (response_list.responses.empty() || links_.children.empty()) return;
  const Status status = transport_->Flush(Clock::now() + options_.collective_timeout);
  if (!status.ok()) Fail(status);
}

// What this rank and those below it say, as far as it is due.
bool Engine::PassOn() {
  if (relay_ == nullptr) return false;
  const std::vector<Announcement> due = relay_->TakeDue(now_);
  if (due.empty()) return false;
  if (coordinator_ != nullptr) {
    for (const Announcement& announcement : due) {
      if (failure_.ok()) Hear(announcement);
    }
  } else if (const Status status = Send(links_.parent, Encode(due)); !status.ok()) {
    Fail(status);
  }
  return true;
}

// On rank 0.
void Engine::Hear(const Announcement& announcement) {
  if (AnswersAsOne(announcement)) return;
  for (const int rank : announcement.ranks.ranks()) Tell(rank, announcement.list);
}

// All ranks have what is expected, and the coordinator knows of nothing else: it would decide that,
// for so many ranks and names.
bool Engine::AnswersAsOne(const Announcement& announcement) {
  if (announcement.ranks.size() != topology().size || !bypass_.IsExpected(announcement.list) ||
      !coordinator_->idle()) {
    return false;
  }
  if (options_.trace) {
    const std::string said = Encode(announcement.list);
    for (const int rank : announcement.ranks.ranks()) {
      options_.trace(EngineOptions::Event::kHeard, rank, said);
    }
  }
  coordinator_->Predicted(bypass_.expected().back(), now_);
  as_one_.fetch_add(1, std::memory_order_relaxed);
  Answer(bypass_.expected_list());
  return true;
}

Status Engine::Send(int rank, const std::string& message) {
  communication_stats_.Sent(message.size());
  messages_sent_.fetch_add(1, std::memory_order_relaxed);
  return transport_->Send(rank, Seal(++sent_[rank], message));
}

void Engine::Handle(const ControlMessage& sealed) {
  communication_stats_.Received();
  messages_received_.fetch_add(1, std::memory_order_relaxed);
  std::string bytes;
  const std::string wrong = Open(++received_[sealed.source], sealed.bytes, &bytes);
  if (!wrong.empty()) {
    const std::string me = std::to_string(topology().rank);
    return Fail(Status(Code::kInternal, "rank " + me + " hears of rank " +
                                            std::to_string(sealed.source) + ": " + wrong +
                                            "; the memory or the network between them is at "
                                            "fault"));
  }
  life_signs_.Heard(sealed.source);
  if (sealed.source == 0) heard_of_coordinator_ = now_;
  if (coordinator_ == nullptr && sealed.source == links_.parent) {
    HearFromAbove(bytes);
  } else {
    HearFromBelow(sealed.source, bytes);
  }
}

void Engine::HearFromBelow(int source, const std::string& bytes) {
  const auto fail = [&]() TFMPI_REQUIRES(communication_thread_) {
    Fail(Status(Code::kInternal, "rank " + std::to_string(topology().rank) +
                                     " cannot read a ready list of rank " +
                                     std::to_string(source)));
  };
  if (relay_ != nullptr) {
    std::vector<Announcement> announcements;
    if (!Decode(bytes, topology().size, &announcements)) return fail();
    for (Announcement& announcement : announcements) relay_->Take(std::move(announcement), now_);
    return;
  }
  ReadyList ready_list;
  if (coordinator_ == nullptr || !Decode(bytes, &ready_list)) return fail();
  if (!ready_list.empty()) Tell(source, ready_list);
}

void Engine::HearFromAbove(const std::string& bytes) {
  ResponseList response_list;
  if (!Decode(bytes, &response_list)) {
    return Fail(Status(Code::kInternal, "cannot read a response list of rank 0"));
  }
  if (response_list.empty()) return;
  SayDown(response_list, bytes);
  if (failure_.ok()) ExecuteResponseList(response_list);
}

// On rank 0, what `rank` says.
void Engine::Tell(int rank, const ReadyList& ready_list) {
  if (options_.trace) options_.trace(EngineOptions::Event::kHeard, rank, Encode(ready_list));
  if (ready_list.joined) {
    const std::string post = std::string(kJoinedPost) + "\n" + std::to_string(rank);
    CountPost(post);
    NotePost(post);
    life_signs_.Begin(now_);
  }
  coordinator_->Receive(rank, ready_list, Clock::now());
}

// A rank hears its parent and its children, but for those that, with all below them, have joined:
// they may be gone.
void Engine::CheckPeers() {
  if (!life_signs_.begun() || !failure_.ok()) return;
  if (life_signs_.IsDue(now_)) GiveLifeSign();
  if (options_.coordinator.stall_timeout.count() == 0) return;
  if (coordinator_ == nullptr) CheckPeer(links_.parent);
  for (size_t i = 0; i < links_.children.size(); ++i) {
    const int child = links_.children[i];
    const bool joined = relay_ != nullptr ? relay_->HaveJoined(links_.below_child[i])
                                          : coordinator_->HasJoined(child);
    if (!joined) CheckPeer(child);
  }
}

void Engine::CheckPeer(int rank) {
  const Clock::duration limit = WithGrace(options_.coordinator.stall_timeout);
  if (!failure_.ok() || life_signs_.SilenceOf(rank) < limit) return;
  Fail(Status(Code::kDeadlineExceeded,
              "rank " + std::to_string(topology().rank) + "/" + std::to_string(topology().size) +
                  ": nothing has been heard of rank " + std::to_string(rank) +
                  " for longer than TF_MPI_STALL_TIMEOUT, while a rank waits for the others' "
                  "scripts to end; its process is stopped or has died"));
}

// An empty message, which changes nothing and is not passed on: life_signs.h. None goes up after
// the last word of this rank and those below it, so none is left when MPI ends.
void Engine::GiveLifeSign() {
  const bool done = relay_ != nullptr ? relay_->HaveJoined(links_.below) : joined_;
  Status status;
  if (coordinator_ == nullptr && !done) {
    status = Send(links_.parent,
                  links_.tree ? Encode(std::vector<Announcement>()) : Encode(ReadyList()));
  }
  const std::string bytes = links_.children.empty() ? std::string() : Encode(ResponseList());
  for (size_t i = 0; i < links_.children.size() && status.ok(); ++i) {
    status = Send(links_.children[i], bytes);
  }
  if (!status.ok()) Fail(status);
}

// Best effort, over a transport that may be what has failed: peers that are not told time out.
// Those below would not hear of it by way of this rank any more.
void Engine::TellPeers(const Status& status) {
  if (coordinator_ == nullptr) {
    ReadyList ready_list;
    ready_list.leaving = status.message();
    Send(links_.parent,
         links_.tree ? Encode({{RankSet(topology().rank), ready_list}}) : Encode(ready_list));
  }
  ResponseList response_list;
  response_list.fatal = status.message();
  for (const int child : links_.children) Send(child, Encode(response_list));
}

// This rank stops before the group does, and passes nothing on any more.
void Engine::TellBelowOfEnd() {
  if (coordinator_ != nullptr || links_.children.empty()) return;
  ResponseList response_list;
  response_list.fatal =
      "rank " + std::to_string(topology().rank) + "/" + std::to_string(topology().size) +
      " has stopped: " + (leave_requested_ ? leave_reason_ : "its engine has ended");
  for (const int child : links_.children) Send(child, Encode(response_list));
}

}  // namespace tfmpi
