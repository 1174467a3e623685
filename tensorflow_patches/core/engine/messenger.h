// The messages of this rank: ready lists on their way to rank 0, response lists from it, and signs
// of life, between the ranks that core/transport/control_links.h names. Each is numbered and sealed
// (envelope.h). A rank with others below it passes on what they say (relay.h).
//
// Communication thread. Says only what it is told to say; fails nobody.

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

  // In the group that the transport is of now.
  void Restart();

  const ControlLinks& links() const { return links_; }
  // What this rank says goes with what those below it say, from TakeDue.
  bool relays() const { return relay_ != nullptr; }
  // Some of that is kept back, for a while; is there now.
  bool keeps() const { return relay_ != nullptr && relay_->keeps(); }
  bool has_due() const { return relay_ != nullptr && relay_->has_due(); }
  // To be passed on: on rank 0 to its coordinator.
  std::vector<Announcement> TakeDue();

  // Of this rank: to its parent, or its relay.
  Status SendUp(const ReadyList& ready_list);
  Status SendUp(const std::vector<Announcement>& announcements);
  // To all below this rank; `bytes`: of the list. Returns when they can read it, if they are to
  // begin something then.
  Status SendDown(const ResponseList& response_list, const std::string& bytes);

  struct Incoming {
    std::vector<Announcement> announcements;  // to rank 0's coordinator
    ResponseList response_list;               // has been sent down
  };
  // What has come is taken in.
  Status Receive(const ControlMessage& sealed, Incoming* incoming);
  // Its bytes, and what is wrong with it, or "".
  std::string Unseal(const ControlMessage& sealed, std::string* bytes);

  // A message that changes nothing, to all that this rank speaks with: heartbeats.h. None goes up
  // after the last word of this rank and those below it, so none is left when MPI ends.
  Status SendHeartbeat();
  Heartbeats& heartbeats() { return heartbeats_; }
  const Heartbeats& heartbeats() const { return heartbeats_; }
  TimePoint heard_of_coordinator() const { return heard_of_coordinator_; }  // of no use on rank 0
  // Whom this rank must hear: its parent and its children, but for those that, with all below
  // them, have joined: they may be gone.
  std::vector<int> Peers() const;

  // Best effort, over a transport that may be what has failed: peers that are not told time out.
  // Those below would not hear of it by way of this rank any more.
  void SendFailureToPeers(const Status& status);
  // This rank stops before the group does, and passes nothing on any more.
  void SendStopToChildren(const std::string& why);

 private:
  Status Send(int rank, const std::string& message);
  Status ReceiveFromParent(const std::string& bytes, ResponseList* response_list);
  Status ReceiveFromChild(int source, const std::string& bytes,
                          std::vector<Announcement>* announcements);

  EngineState* const state_;
  const PendingRequests* const pending_;
  ControlLinks links_;
  std::unique_ptr<Relay> relay_;  // who has some below it
  RankSet joined_;                // of those that speak with rank 0 without a relay
  // Messages so far, to each rank and from each.
  std::vector<uint32_t> sent_;
  std::vector<uint32_t> received_;
  Heartbeats heartbeats_;
  TimePoint heard_of_coordinator_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_MESSENGER_H_
