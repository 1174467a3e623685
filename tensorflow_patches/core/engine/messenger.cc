#include "tensorflow_patches/core/engine/messenger.h"

#include <utility>

#include "tensorflow_patches/core/agreement/envelope.h"

namespace tfmpi {

Messenger::Messenger(EngineState* state, const PendingRequests* pending)
    : state_(state), pending_(pending), heartbeats_(0) {
  Restart();
}

void Messenger::Restart() {
  const auto size = static_cast<size_t>(state_->size());
  sent_.assign(size, 0);
  received_.assign(size, 0);
  joined_ = RankSet();
  heartbeats_ = Heartbeats(state_->size());
  if (state_->joined) heartbeats_.Begin(state_->now);
  links_ = state_->transport->links();
  relay_.reset();
  if (!links_.tree || links_.children.empty()) return;
  RelayOptions options;
  options.patience = state_->options.vote_patience;
  // Statistics include which rank came last, so with them nothing is held back.
  if (!state_->options.stats) {
    options.name_of_all_ranks = [names = &pending_->names()](NameId id) -> const std::string* {
      const bool of_all = names->has(id) && names->signature(id).members == nullptr;
      return of_all ? &names->entry(id)->name : nullptr;
    };
  }
  relay_ = std::make_unique<Relay>(links_.below, std::move(options));
}

std::vector<Announcement> Messenger::TakeDue() {
  return relay_ != nullptr ? relay_->TakeDue(state_->now) : std::vector<Announcement>();
}

Status Messenger::SendUp(const ReadyList& ready_list) {
  const RankSet self(state_->rank());
  if (relay_ != nullptr) {
    relay_->Add({self, ready_list}, state_->now);
    return Status();
  }
  if (links_.tree) return SendUp(std::vector<Announcement>{{self, ready_list}});
  return Send(links_.parent, Encode(ready_list));
}

Status Messenger::SendUp(const std::vector<Announcement>& announcements) {
  return Send(links_.parent, Encode(announcements));
}

Status Messenger::SendDown(const ResponseList& response_list, const std::string& bytes) {
  if (relay_ != nullptr && !response_list.errors.empty()) relay_->OnErrors(response_list.errors);
  for (const int child : links_.children) {
    TFMPI_RETURN_IF_NOT_OK(Send(child, bytes));
  }
  if (response_list.responses.empty() || links_.children.empty()) return Status();
  return state_->transport->Flush(Clock::now() + state_->options.collective_timeout);
}

Status Messenger::Send(int rank, const std::string& message) {
  state_->stats.Sent(message.size());
  state_->published->messages_sent.Add(1);
  return state_->transport->Send(rank, Seal(++sent_[rank], message));
}

std::string Messenger::Unseal(const ControlMessage& sealed, std::string* bytes) {
  return Open(++received_[sealed.source], sealed.bytes, bytes);
}

Status Messenger::Receive(const ControlMessage& sealed, Incoming* incoming) {
  const int source = sealed.source, rank = state_->rank();
  state_->stats.Received();
  state_->published->messages_received.Add(1);
  std::string bytes;
  const std::string wrong = Unseal(sealed, &bytes);
  if (!wrong.empty()) {
    return Status(Code::kInternal, "rank " + std::to_string(rank) + " received from rank " +
                                       std::to_string(source) + ": " + wrong +
                                       "; check the memory and the network between them");
  }
  heartbeats_.OnMessage(source);
  if (source == 0) last_heard_from_coordinator_ = state_->now;
  return rank != 0 && source == links_.parent
             ? ReceiveFromParent(bytes, &incoming->response_list)
             : ReceiveFromChild(source, bytes, &incoming->announcements);
}

Status Messenger::ReceiveFromParent(const std::string& bytes, ResponseList* response_list) {
  if (!Decode(bytes, response_list)) {
    return Status(Code::kInternal,
                  state_->Me() + " cannot read a response list from rank " +
                      std::to_string(links_.parent) +
                      ". Either another process sends messages as that rank, or this is a bug in "
                      "tensorflow.mpi; please report it");
  }
  return response_list->empty() ? Status() : SendDown(*response_list, bytes);
}

Status Messenger::ReceiveFromChild(int source, const std::string& bytes,
                                   std::vector<Announcement>* announcements) {
  const int rank = state_->rank();
  const auto unreadable = [&] {
    return Status(Code::kInternal, "rank " + std::to_string(rank) +
                                       " cannot read a ready list from rank " +
                                       std::to_string(source) +
                                       ". Either another process sends messages as that rank, or "
                                       "this is a bug in tensorflow.mpi; please report it");
  };
  if (relay_ != nullptr) {
    std::vector<Announcement> to_relay;
    if (!Decode(bytes, state_->size(), &to_relay)) return unreadable();
    for (Announcement& announcement : to_relay) {
      relay_->Add(std::move(announcement), state_->now);
    }
    return Status();
  }
  ReadyList ready_list;
  if (rank != 0 || !Decode(bytes, &ready_list)) return unreadable();
  if (ready_list.joined && !joined_.Contains(source)) joined_.Add(RankSet(source));
  if (!ready_list.empty()) announcements->push_back({RankSet(source), std::move(ready_list)});
  return Status();
}

Status Messenger::SendHeartbeat() {
  const bool all_joined = relay_ != nullptr ? relay_->HaveJoined(links_.below) : state_->joined;
  if (state_->rank() != 0 && !all_joined) {
    TFMPI_RETURN_IF_NOT_OK(Send(
        links_.parent, links_.tree ? Encode(std::vector<Announcement>()) : Encode(ReadyList())));
  }
  const std::string bytes = Encode(ResponseList());
  for (const int child : links_.children) {
    TFMPI_RETURN_IF_NOT_OK(Send(child, bytes));
  }
  return Status();
}

std::vector<int> Messenger::Peers() const {
  std::vector<int> peers;
  if (state_->rank() != 0) peers.push_back(links_.parent);
  for (size_t i = 0; i < links_.children.size(); ++i) {
    const int child = links_.children[i];
    const bool joined =
        relay_ != nullptr ? relay_->HaveJoined(links_.below_child[i]) : joined_.Contains(child);
    if (!joined) peers.push_back(child);
  }
  return peers;
}

void Messenger::SendFailureToPeers(const Status& status) {
  if (state_->rank() != 0) {
    ReadyList ready_list;
    ready_list.leaving = status.message();
    Send(links_.parent,
         links_.tree ? Encode({{RankSet(state_->rank()), ready_list}}) : Encode(ready_list));
  }
  SendFatalToChildren(status.message());
}

void Messenger::SendStopToChildren(const std::string& why) {
  if (state_->rank() != 0) SendFatalToChildren(state_->Me() + " has stopped: " + why);
}

void Messenger::SendFatalToChildren(const std::string& why) {
  ResponseList response_list;
  response_list.fatal = why;
  for (const int child : links_.children) Send(child, Encode(response_list));
}

}  // namespace tfmpi
