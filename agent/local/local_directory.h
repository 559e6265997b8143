// The directory in which workers find their agent: a unix socket and a token, for this user only.
// The memory of its workers' checkpoints is behind a link in it, and goes with it. Owned by one
// thread; removed with the object.
#ifndef CADRE_AGENT_LOCAL_LOCAL_DIRECTORY_H_
#define CADRE_AGENT_LOCAL_LOCAL_DIRECTORY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/scoped_fd.h"

namespace cadre::agent {

class LocalDirectory {
 public:
  // Makes <parent>/cadre-<uid>/agent-<pid>/ with mode 0700, listens on `socket` in it
  // and writes `token`. `parent` empty: XDG_RUNTIME_DIR, or /tmp where that is unset or too
  // long for a socket. Directories there of agents that were killed are removed first.
  // cadre-<uid> as UserDirectoryIn() has it. PERMISSION_DENIED: it is open to others.
  static absl::StatusOr<std::unique_ptr<LocalDirectory>> Make(const std::string& parent = "");
  // Takes the directory of an agent that is gone, and listens in its place; the token stays.
  static absl::StatusOr<std::unique_ptr<LocalDirectory>> Adopt(const std::string& path);
  // Those of this user's agents, in no order; `parent` as for Make.
  static std::vector<std::string> All(const std::string& parent = "");
  ~LocalDirectory();
  LocalDirectory(const LocalDirectory&) = delete;
  LocalDirectory& operator=(const LocalDirectory&) = delete;

  static std::string TokenPath(const std::string& directory) { return directory + "/token"; }
  // Where a supervisor listens whose agent may be gone while its workers go on.
  static std::string SupervisorPath(const std::string& directory) {
    return directory + "/supervisor";
  }

  // Makes anew what the system has removed of it: systemd removes /run/user/UID when the user's
  // last session on the machine ends, and what is old in /tmp. Where its place is gone too, path()
  // is another one from then on, in /tmp. True: something was missing, and listener() may be
  // another.
  absl::StatusOr<bool> Restore();

  // It stays when this object goes, for an agent that carries on.
  void Keep() { kept_ = true; }

  const std::string& path() const { return path_; }
  std::string socket_path() const;
  std::string token_path() const { return TokenPath(path_); }
  const std::string& token() const { return token_; }
  // Non-blocking; readable when a worker connects.
  int listener() const { return listener_; }

  // The next connection of this user or root, non-blocking; -1 when there is none. Others are
  // turned away.
  int Accept();

 private:
  LocalDirectory() = default;
  // What is missing in path_.
  absl::Status Fill();
  absl::Status MakeMemory();
  absl::Status Listen();

  std::string path_;
  // Behind the link, which may be removed before it; empty: it is in the directory.
  std::string memory_;
  // systemd removes nothing from a directory that somebody has locked.
  ScopedFd lock_;
  std::string token_;
  int listener_ = -1;
  bool kept_ = false;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_LOCAL_LOCAL_DIRECTORY_H_
