// The messages of this rank: ready lists to rank 0, response lists from it, and heartbeats, between
// the ranks that core/transport/control_links.h connects. Each is numbered and sealed (envelope.h).
// In a tree, a rank that has children relays their announcements (relay.h).
//
// Communication thread. It returns errors and never fails the engine itself.

#ifndef TFMPI_CORE_ENGINE_MESSENGER_H_
#define TFMPI_CORE_ENGINE_MESSENGER_H_

#include <memory>
#include <string>
#include <vector>

#include "tensorflow_patches/core/engine/engine_state.h"
#include "tensorflow_patches/core/engine/heartbeats.h"
#include "tensorflow_patches/core/engine/pending_requests.h"
#include "tensorflow_patches/core/relay/relay.h"
#include "tensorflow_patches/core/transport/control_links.h"

namespace tfmpi {

class Messenger {
 public:
  // Both outlive it.
  Messenger(EngineState* state, const PendingRequests* pending);

  // Starts anew for the group that the transport now has.
  void Restart();

  const ControlLinks& links() const { return links_; }
  // Whether this rank's announcements go out together with those of its children, from TakeDue.
  bool relays() const { return relay_ != nullptr; }
  // Whether announcements are held back for now; whether some are due.
  bool holds_back() const { return relay_ != nullptr && relay_->holds_back(); }
  bool has_due() const { return relay_ != nullptr && relay_->has_due(); }
  // The announcements to forward; on rank 0, to its coordinator.
  std::vector<Announcement> TakeDue();

  // Sends this rank's list to its parent, or passes it to this rank's relay.
  Status SendUp(const ReadyList& ready_list);
  // Sends to the parent what TakeDue has returned.
  Status SendUp(const std::vector<Announcement>& announcements);
  // Sends the list, encoded as `bytes`, to the children, which send it further down. With
  // responses, returns only when the children can read the list.
  Status SendDown(const ResponseList& response_list, const std::string& bytes);

  struct Incoming {
    std::vector<Announcement> announcements;  // on rank 0 without a relay, for the coordinator
    ResponseList response_list;               // already sent down
  };
  Status Receive(const ControlMessage& sealed, Incoming* incoming);
  // Extracts the bytes and counts the message: call it once for each. Returns what is wrong, or "".
  std::string Unseal(const ControlMessage& sealed, std::string* bytes);

  // Sends an empty message to the parent and the children (heartbeats.h). None goes up once this
  // rank and all ranks below it have joined, so that none is left unread when MPI ends.
  Status SendHeartbeat();
  Heartbeats& heartbeats() { return heartbeats_; }
  const Heartbeats& heartbeats() const { return heartbeats_; }
  // Set only where rank 0 is the parent, as on rank 1, which needs it (presence.cc).
  TimePoint last_heard_from_coordinator() const { return last_heard_from_coordinator_; }
  // The ranks that must not fall silent: this one's parent and children. A child may be gone, and
  // is left out, if it and all ranks below it have joined: no more requests will come from them.
  std::vector<int> Peers() const;

  // Best effort, since the transport may be what failed: peers that it does not reach time out. The
  // ranks below would otherwise receive nothing more through this rank.
  void SendFailureToPeers(const Status& status);
  // This rank stops before the group does, and forwards nothing from now on. On rank 0 it does
  // nothing: the coordinator has ended the group.
  void SendStopToChildren(const std::string& why);

 private:
  Status Send(int rank, const std::string& message);
  Status ReceiveFromParent(const std::string& bytes, ResponseList* response_list);
  Status ReceiveFromChild(int source, const std::string& bytes,
                          std::vector<Announcement>* announcements);
  void SendFatalToChildren(const std::string& why);

  EngineState* const state_;
  const PendingRequests* const pending_;
  ControlLinks links_;
  std::unique_ptr<Relay> relay_;  // null without children in a tree
  RankSet joined_;                // on rank 0 without a relay: the ranks that have joined
  // Messages so far, to each rank and from each.
  std::vector<uint32_t> sent_;
  std::vector<uint32_t> received_;
  Heartbeats heartbeats_;
  TimePoint last_heard_from_coordinator_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_MESSENGER_H_
