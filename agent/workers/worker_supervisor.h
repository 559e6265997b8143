// The supervisor of this node's workers, and the one that takes its place when it is lost. One
// thread.
#ifndef CADRE_AGENT_WORKERS_WORKER_SUPERVISOR_H_
#define CADRE_AGENT_WORKERS_WORKER_SUPERVISOR_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/display.h"
#include "agent/supervisor/client.h"
#include "agent/supervisor/frames.h"
#include "agent/supervisor/leftovers.h"
#include "base/clock.h"
#include "base/time.h"

namespace cadre::agent {

class WorkerSupervisor {
 public:
  WorkerSupervisor(std::unique_ptr<supervisor::Client> client, Display& display);

  // False: it is lost for good.
  bool exists() const { return client_ != nullptr; }
  // Why, once it is.
  const std::string& why_lost() const { return why_lost_; }
  // Readable when Read should be called; -1 where there is none.
  int fd() const { return exists() ? client_->fd() : -1; }
  bool WantsWrite() const { return exists() && client_->WantsWrite(); }
  // As supervisor::Client has it; only where there is one.
  uint32_t frames_version() const { return client_->frames_version(); }

  // False: it is lost for good by this, because it does not take what it is sent. That it is gone
  // is found by Read.
  [[nodiscard]] bool Send(const supervisor::Frame& frame, MonoTime now = MonoNow());
  // UNAVAILABLE: it is gone, and its workers with it; call Replace.
  absl::StatusOr<std::vector<supervisor::Frame>> Read();
  // Starts another one in its place, if it had started a worker before: one that cannot even do
  // that has no better successor. False: it is lost for good.
  bool Replace(const std::string& how);
  // Kills once more what the replaced one has left, and returns what SIGKILL has not ended.
  std::vector<supervisor::RemainsFrame> KillLeftovers();

  // Somebody may have stopped it.
  void ContinueIfStopped();
  // As supervisor::Client has it: workers go on, or are killed.
  void LetGo();
  void Close() { client_.reset(); }

 private:
  std::unique_ptr<supervisor::Client> client_;  // null once it is lost for good
  std::string why_lost_;
  Display& display_;
  bool has_started_a_worker_ = false;
  supervisor::Leftovers leftovers_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_WORKER_SUPERVISOR_H_
