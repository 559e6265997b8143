// The supervisor of this node's workers, including its replacement when it is lost. One thread.
#ifndef CADRE_AGENT_WORKERS_WORKER_SUPERVISOR_H_
#define CADRE_AGENT_WORKERS_WORKER_SUPERVISOR_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/display.h"
#include "agent/supervisor/client.h"
#include "agent/supervisor/frames.h"
#include "base/clock.h"
#include "base/time.h"

namespace cadre::agent {

class WorkerSupervisor {
 public:
  WorkerSupervisor(std::unique_ptr<supervisor::Client> client, Display& display);

  // Returns false if it is lost for good.
  bool exists() const { return client_ != nullptr; }
  // The reason, once it is lost.
  const std::string& why_lost() const { return why_lost_; }
  // Readable when Read should be called; -1 if there is no supervisor.
  int fd() const { return exists() ? client_->fd() : -1; }
  bool WantsWrite() const { return exists() && client_->WantsWrite(); }
  // As supervisor::Client::frames_version; requires exists().
  uint32_t frames_version() const { return client_->frames_version(); }

  // Returns false if the supervisor is now lost for good because it does not read. Whether it is
  // gone is found by Read.
  [[nodiscard]] bool Send(const supervisor::Frame& frame, MonoTime now = MonoNow());
  // UNAVAILABLE: it is gone, and its workers with it; call Replace.
  absl::StatusOr<std::vector<supervisor::Frame>> Read();
  // Starts another supervisor, if this one had started a worker before: otherwise another one would
  // fail too. Returns false if it is lost for good.
  bool Replace(const std::string& how);
  // Kills the replaced supervisor's processes again, and returns those that SIGKILL has not ended.
  std::vector<supervisor::RemainsFrame> KillLeftovers();

  // Continues the supervisor if it was stopped by a signal.
  void ContinueIfStopped();
  // As in supervisor::Client: Release leaves the workers running, Close kills them.
  void Release();
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
