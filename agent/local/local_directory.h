// The directory in which workers find their agent: a unix socket and a token, for this user only.
// The memory of the workers' checkpoints is behind a link in it, and is removed with it. Owned by
// one thread; removed with the object.
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
  // Makes <parent>/cadre-<uid>/agent-<pid>/ with mode 0700, listens on `socket` in it and writes
  // `token`. `parent` empty: XDG_RUNTIME_DIR, or /tmp if that is unset or too long for a socket.
  // First removes directories of killed agents there. The directory cadre-<uid> is that of
  // UserDirectoryIn(). PERMISSION_DENIED: other users may open it.
  static absl::StatusOr<std::unique_ptr<LocalDirectory>> Make(const std::string& parent = "");
  // Takes over the directory of an agent that is gone, and listens there; the token is kept.
  static absl::StatusOr<std::unique_ptr<LocalDirectory>> Adopt(const std::string& path);
  // The directories of this user's agents, unordered; `parent` as for Make.
  static std::vector<std::string> All(const std::string& parent = "");
  ~LocalDirectory();
  LocalDirectory(const LocalDirectory&) = delete;
  LocalDirectory& operator=(const LocalDirectory&) = delete;

  static std::string TokenPath(const std::string& directory) { return directory + "/token"; }
  // The socket of a supervisor whose agent may be gone while its workers run on.
  static std::string SupervisorPath(const std::string& directory) {
    return directory + "/supervisor";
  }

  // Restores what the system has removed of the directory: systemd removes /run/user/UID when the
  // user's last session on the machine ends, and old files in /tmp. If the parent is gone too,
  // path() changes to one in /tmp. Returns true if something was missing; listener() may then have
  // changed.
  absl::StatusOr<bool> Restore();

  // The directory is not removed with this object, for an agent that will adopt the workers.
  void DoNotRemove() { kept_ = true; }

  const std::string& path() const { return path_; }
  std::string socket_path() const;
  std::string token_path() const { return TokenPath(path_); }
  const std::string& token() const { return token_; }
  // Non-blocking; readable when a worker connects.
  int listener() const { return listener_; }

  // The next connection from this user or root, non-blocking; -1 if there is none. Connections of
  // other users are closed.
  int Accept();

 private:
  LocalDirectory() = default;
  // Makes what is missing in path_.
  absl::Status Fill();
  absl::Status MakeMemory();
  absl::Status Listen();

  std::string path_;
  // The directory behind the link, which may be removed before the link; empty: it is in path_.
  std::string memory_;
  // systemd removes nothing from a locked directory.
  ScopedFd lock_;
  std::string token_;
  int listener_ = -1;
  bool kept_ = false;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_LOCAL_LOCAL_DIRECTORY_H_
