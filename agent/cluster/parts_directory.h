// The directory in which a cluster's agent puts what its launchers read. Held by a lock that ends
// with the process, however it ends. One thread.
#ifndef CADRE_AGENT_CLUSTER_PARTS_DIRECTORY_H_
#define CADRE_AGENT_CLUSTER_PARTS_DIRECTORY_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/scoped_fd.h"
#include "base/threads/file_thread.h"

namespace cadre::agent {

class PartsDirectory {
 public:
  // Makes <parent>/cadre-agent-XXXXXX, closed to others but for passing through. What agents of
  // this user left there when they were killed is removed, first where that takes a moment only.
  static absl::StatusOr<std::unique_ptr<PartsDirectory>> Make(const std::string& parent = "/tmp");
  // Removes it with all that is in it; what that takes more than a moment is left.
  ~PartsDirectory();
  PartsDirectory(const PartsDirectory&) = delete;
  PartsDirectory& operator=(const PartsDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  PartsDirectory(std::string path, ScopedFd lock, std::unique_ptr<FileThread> removal)
      : path_(std::move(path)), lock_(std::move(lock)), removal_(std::move(removal)) {}

  const std::string path_;
  // The directory itself, with flock(2): seen from other PID namespaces too.
  const ScopedFd lock_;
  const std::unique_ptr<FileThread> removal_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_PARTS_DIRECTORY_H_
