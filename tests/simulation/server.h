// The server: the real core behind the real commit queue, driven as rendezvous/host/core_thread
// drives them: what was read is handled in batches, each batch is saved before anything that
// follows from it is said, a due deadline comes after the batch. It stands still, dies and starts
// anew from its disk. One thread.
#ifndef CADRE_TESTS_SIMULATION_SERVER_H_
#define CADRE_TESTS_SIMULATION_SERVER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "rendezvous/core/core.h"
#include "rendezvous/host/commit_queue.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/network.h"
#include "tests/simulation/oracle.h"

namespace cadre::simulation {

class Server final : public StreamServer {
 public:
  Server(World& world, const Plan& plan, Mutation mutation, Network& network, Oracle& oracle);

  void Start();
  // Its process dies; it is started again after that long.
  void Kill(absl::Duration back_after, bool state_is_lost);
  void Pause(absl::Duration lasts);
  void SetDisk(absl::Status state) { disk_.set_state(std::move(state)); }
  void Cancel(const std::string& job);
  // Makes good what faults have left: it runs, and so does its disk.
  void Heal();

  // A call outside any stream; dropped when the server is away. `done` may never be called.
  void Call(const v1::StoreRequest& request, std::function<void(const v1::StoreReply&)> done);

  bool up() const { return core_ != nullptr; }
  // Only while up.
  const Core& core() const { return *core_; }
  MonoTime Local() const { return plan_.server_clock.Local(world_.now()); }
  bool Idle() const;
  // How long it has not stood still.
  absl::Duration Running();

  // --- StreamServer ---
  bool Listens() const override { return up(); }
  bool StandsStill() const override { return world_.now() < paused_until_; }
  void OnOpened(ConnectionId id, int node) override;
  void OnMessage(ConnectionId id, const v1::NodeMessage& message) override;
  void OnClosed(ConnectionId id) override;

 private:
  struct Task {
    MonoTime arrived;
    Event event;
  };

  void Post(Event event);
  void WakeAt(MonoTime at);
  void Wake();
  void SaveBatch();
  void TellWhetherItCanSave();
  void Handle(Event event);
  bool Refuse(Event* event);
  void Step(const Event& event);
  void CarryOut(const Effects& effects);
  void Reply(const ReplyToCall& reply);
  void Mutate(Event* event);
  bool Dying() const { return dying_; }

  World& world_;
  const Plan& plan_;
  const Mutation mutation_;
  Network& network_;
  Oracle& oracle_;
  Disk disk_;

  // One life of the process. The core goes last.
  std::unique_ptr<Core> core_;
  std::unique_ptr<host::CommitQueue> commits_;
  uint64_t life_ = 0;
  bool dying_ = false;  // killed in the middle of something
  // Effects that are not saved yet: then the core is ahead of its disk.
  bool unsaved_ = false;
  bool can_save_ = true;  // as the core was told
  std::deque<Task> inbox_;
  std::set<StreamId> streams_;
  std::set<StreamId> closed_by_core_;
  std::map<CallId, std::function<void(const v1::StoreReply&)>> calls_;
  uint64_t last_call_ = 0;
  MonoTime wake_at_ = MonoTime::Never();
  MonoTime paused_until_;
  absl::Duration running_;  // up to counted_until_
  MonoTime counted_until_;
  bool was_paused_ = false;
  MonoTime start_at_ = MonoTime::Never();
};

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_SERVER_H_
