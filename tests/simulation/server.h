// The server and its disk, and a client outside the job that calls its store. One thread.
//
// The server is the real core behind the real commit queue, driven as rendezvous/host/core_thread
// drives them. Input is handled in batches; each batch is saved before any message that follows
// from it is sent; a due deadline comes after the batch. The server is paused, is killed and
// restarts from its disk.
#ifndef CADRE_TESTS_SIMULATION_SERVER_H_
#define CADRE_TESTS_SIMULATION_SERVER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/record.pb.h"
#include "rendezvous/core/core.h"
#include "rendezvous/host/commit_queue.h"
#include "rendezvous/log/record_log.h"
#include "tests/simulation/network.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/plan.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

// The server's disk: what RecordLog promises, and how it fails. Records that were appended with OK
// survive a crash.
class Disk {
 public:
  Disk(World& world, const Plan& plan, Mutation mutation);

  // Returns the log and its contents. `crash` is called in the middle of an Append when the
  // server's process is to die there; nothing of the server runs after that.
  log::OpenedLog Open(std::function<void()> crash);

  void set_state(absl::Status state) { state_ = std::move(state); }
  // The process has died, so records that were not written yet are lost.
  void LoseUnsynced() { unsynced_.clear(); }
  // Simulates that the directory was removed.
  void LoseAll();
  uint64_t server_id() const { return server_id_; }

 private:
  class Log;

  absl::Status Append(const std::vector<v1::Record>& records, const std::function<void()>& crash);
  absl::Status Compact(const std::vector<v1::Record>& snapshot);
  void Sync();

  World& world_;
  const Plan& plan_;
  const Mutation mutation_;
  uint64_t server_id_;
  absl::Status state_;
  std::vector<v1::Record> durable_;
  size_t appended_ = 0;  // since the last compaction
  // Used only with kPersistAfterSending.
  std::vector<v1::Record> unsynced_;
};

class Server final : public StreamServer {
 public:
  Server(World& world, const Plan& plan, Mutation mutation, Network& network, Oracle& oracle);

  void Start();
  // Kills the process; it is started again after `back_after`.
  void Kill(absl::Duration back_after, bool state_is_lost);
  void Pause(absl::Duration lasts);
  void SetDisk(absl::Status state) { disk_.set_state(std::move(state)); }
  void Cancel(const std::string& job);
  // Undoes what faults have left: the server and its disk work again.
  void Heal();

  // A call outside any stream; it is dropped while the server is down, so `done` may never be
  // called.
  void Call(const v1::StoreRequest& request, std::function<void(const v1::StoreReply&)> done);

  bool up() const { return core_ != nullptr; }
  // May be called only while up().
  const Core& core() const { return *core_; }
  MonoTime Local() const { return plan_.server_clock.Local(world_.now()); }
  bool Idle() const;
  // How long the server has run, pauses not counted.
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

  // The state of one life of the process. The core must be destroyed last.
  std::unique_ptr<Core> core_;
  std::unique_ptr<host::CommitQueue> commits_;
  uint64_t life_ = 0;
  bool dying_ = false;  // killed in the middle of something
  // Whether there are effects that are not saved yet: the core is then ahead of its disk.
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

// A client that calls the server's store outside any stream, over a network that loses, repeats and
// reorders calls and their answers. It repeats a call until it is answered.
class OutsideClient {
 public:
  OutsideClient(World& world, const Plan& plan, Network& network, Server& server, Oracle& oracle,
                std::string job);

  // Adds to a key of the newest generation, again and again, until the job has ended.
  void Start();

 private:
  void Next();
  void Send();
  void OnReply(const v1::StoreReply& reply);

  World& world_;
  const Plan& plan_;
  Network& network_;
  Server& server_;
  Oracle& oracle_;
  const std::string job_;
  const uint64_t client_;
  GenerationKey generation_;
  v1::StoreRequest request_;
  int64_t asked_ = 0;
  bool waits_ = false;
  int sent_ = 0;
};

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_SERVER_H_
