// A launcher that serves its job from within its process (--standalone, a head node) answers the
// commands of its user on the same machine at a unix socket in RuntimeDirectory(), so that they
// need no server, port or token: who may connect may look into the launcher, and end it, anyway.
// One connection at a time, a question and an answer each.
#ifndef CADRE_LAUNCHER_ATTACH_LOCAL_CONTROL_H_
#define CADRE_LAUNCHER_ATTACH_LOCAL_CONTROL_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/scoped_fd.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "rendezvous/host/core_thread.h"

namespace cadre::launcher {

class LocalControl {
 public:
  // What answers now.
  using Serving = std::function<absl::StatusOr<std::shared_ptr<host::CoreThread>>()>;

  // `log_dir`: of the launcher's job, absolute or empty. Null: there is no place for the socket,
  // and the commands find the job's files alone.
  static std::unique_ptr<LocalControl> Start(std::string log_dir, const std::string& job,
                                             Serving serving);
  // Removes the socket, and what lies beside it; the thread answers whoever it is at.
  ~LocalControl();
  LocalControl(const LocalControl&) = delete;
  LocalControl& operator=(const LocalControl&) = delete;

 private:
  LocalControl(std::string path, ScopedFd socket, std::string log_dir, Serving serving);
  void Run();
  void Answer(int connection) const;

  const std::string path_;
  const ScopedFd socket_;
  const std::string log_dir_;
  const Serving serving_;
  std::thread thread_;
};

// One that cannot answer: it was stopped, by Ctrl-Z for instance. What is known of it lies in a
// file beside its socket.
struct SuspendedLauncher {
  pid_t pid = 0;
  std::string job;
  std::string log_dir;
};

// One such launcher, as its user's commands see it.
class LocalLauncher {
 public:
  // All that run on this machine now, the newest first, but suspended ones. Sockets that killed
  // ones have left are removed.
  static std::vector<LocalLauncher> All();
  static std::vector<SuspendedLauncher> Suspended();

  // UNAVAILABLE: it has gone meanwhile.
  absl::StatusOr<std::vector<v1::JobStatus>> List() const;
  // NOT_FOUND: it has another job.
  absl::StatusOr<v1::JobStatus> Get(const std::string& job) const;
  // Ends it as Ctrl-C does. NOT_FOUND, and FAILED_PRECONDITION: it has ended.
  absl::StatusOr<v1::JobStatus> Cancel(const std::string& job, const std::string& reason) const;
  absl::StatusOr<v1::GetStacksReply> GetStacks(const v1::GetStacksRequest& request) const;
  absl::StatusOr<std::string> LogDir() const;

 private:
  explicit LocalLauncher(std::string path) : path_(std::move(path)) {}
  absl::StatusOr<std::string> Ask(char question, const std::string& text) const;

  std::string path_;
};

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ATTACH_LOCAL_CONTROL_H_
