// The server's disk: what RecordLog promises, and how it breaks. What was appended with OK is there
// after a crash. One thread.
#ifndef CADRE_TESTS_SIMULATION_DISK_H_
#define CADRE_TESTS_SIMULATION_DISK_H_

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "proto/record.pb.h"
#include "rendezvous/log/record_log.h"
#include "tests/simulation/plan.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class Disk {
 public:
  Disk(World& world, const Plan& plan, Mutation mutation);

  // The log and what it holds. `crash` is called at moments in the middle of an Append when the
  // server's process dies there; nothing of it runs after that.
  log::OpenedLog Open(std::function<void()> crash);

  void set_state(absl::Status state) { state_ = std::move(state); }
  // The process has died: what was not written yet never will be.
  void LoseUnsynced() { unsynced_.clear(); }
  // Somebody removed the directory.
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
  // Only with kPersistAfterSending.
  std::vector<v1::Record> unsynced_;
};

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_DISK_H_
