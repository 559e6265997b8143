// Another process of this program, with the same arguments and environment: started anew, so that
// threads, CUDA and locks of this one do not matter. One thread uses an object.
#ifndef CADRE_WORKER_RUNTIME_LAUNCHED_OWN_PROCESS_H_
#define CADRE_WORKER_RUNTIME_LAUNCHED_OWN_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/scoped_fd.h"
#include "cadre/result.h"

namespace cadre::launched {

class OwnProcess {
 public:
  // It finds the other end of socket() by the variable kSpawnedVariable. It is killed when the
  // calling thread ends. RESOURCE_EXHAUSTED: no more processes or descriptors; UNAVAILABLE: /proc
  // is not there.
  static Result<std::unique_ptr<OwnProcess>> Start();
  // Kills it if it still runs, and waits for that.
  ~OwnProcess();
  OwnProcess(const OwnProcess&) = delete;
  OwnProcess& operator=(const OwnProcess&) = delete;

  pid_t pid() const { return pid_; }
  int socket() const { return socket_.get(); }
  // Readable when it has ended.
  int pidfd() const { return pidfd_.get(); }
  void Signal(int signal);
  // "exited with status 3", "was ended by signal 9 (SIGKILL)"; nullopt: it still runs.
  std::optional<std::string> End();

 private:
  OwnProcess(pid_t pid, ScopedFd pidfd, ScopedFd socket);

  const pid_t pid_;
  const ScopedFd pidfd_;
  const ScopedFd socket_;
  std::optional<std::string> end_;
};

}  // namespace cadre::launched

#endif  // CADRE_WORKER_RUNTIME_LAUNCHED_OWN_PROCESS_H_
