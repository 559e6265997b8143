// A launcher that serves its job in its own process (--standalone, a head node) answers commands of
// its user on the same machine at a unix socket in RuntimeDirectory(), so that they need no server,
// port or token: a user who may connect could also trace or kill the launcher. One connection at a
// time, each with one request and one answer.
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
  // Returns the core that serves at present.
  using Serving = std::function<absl::StatusOr<std::shared_ptr<host::CoreThread>>()>;

  // `log_dir`: the log directory of the launcher's job, absolute or empty. Null: the socket could
  // not be created, and commands find only the job's files.
  static std::unique_ptr<LocalControl> Start(std::string log_dir, const std::string& job,
                                             Serving serving);
  // Removes the socket and the file beside it. A request that is being answered is finished.
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

// A launcher that cannot answer because it is stopped, by Ctrl-Z for example. Its job and log
// directory are known from a file beside its socket.
struct SuspendedLauncher {
  pid_t pid = 0;
  std::string job;
  std::string log_dir;
};

// A running launcher, as its user's commands see it.
class LocalLauncher {
 public:
  // All launchers that run on this machine now, the newest first, except suspended ones. Removes
  // sockets that killed launchers left.
  static std::vector<LocalLauncher> All();
  static std::vector<SuspendedLauncher> Suspended();

  // UNAVAILABLE: the launcher has ended meanwhile.
  absl::StatusOr<std::vector<v1::JobStatus>> List() const;
  // NOT_FOUND: the launcher runs another job.
  absl::StatusOr<v1::JobStatus> Get(const std::string& job) const;
  // Ends the job as Ctrl-C does. NOT_FOUND as for Get; FAILED_PRECONDITION: it has ended.
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
