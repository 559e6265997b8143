// The files of allocations on this node: the directory in which the cluster's agent puts what its
// launchers read, the removal of what users' jobs left, and the logs of workers, which are read for
// the server. All of it blocks on the file system.
#ifndef CADRE_AGENT_CLUSTER_ALLOCATIONS_DIRECTORY_H_
#define CADRE_AGENT_CLUSTER_ALLOCATIONS_DIRECTORY_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/scoped_fd.h"
#include "base/threads/file_thread.h"
#include "proto/cluster.pb.h"

namespace cadre::agent {

// The agent's directory. It is held by a lock that ends with the process, however that ends. Used
// by one thread.
class AllocationsDirectory {
 public:
  // Makes <parent>/cadre-agent-XXXXXX, which other users may traverse but not list. Directories
  // that killed agents of this user left there are removed; the call waits only briefly for that.
  static absl::StatusOr<std::unique_ptr<AllocationsDirectory>> Make(
      const std::string& parent = "/tmp");
  // Removes the directory with its content. If that takes more than a moment, the next agent
  // removes the rest.
  ~AllocationsDirectory();
  AllocationsDirectory(const AllocationsDirectory&) = delete;
  AllocationsDirectory& operator=(const AllocationsDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  AllocationsDirectory(std::string path, ScopedFd lock, std::unique_ptr<FileThread> removal)
      : path_(std::move(path)), lock_(std::move(lock)), removal_(std::move(removal)) {}

  const std::string path_;
  // flock(2) on the directory itself, which works across PID namespaces too.
  const ScopedFd lock_;
  const std::unique_ptr<FileThread> removal_;
};

// Removes an agent's own directory and what is in it: any number of files of users' jobs, at any
// depth, under names that may change meanwhile. Directories that belong to a user are emptied as
// that user (users.h): if the user swaps names meanwhile, the agent can only be made to remove
// files of the same user. Returns false if something is left, for example files of another user in
// such a directory. Any thread.
bool RemoveAsOwners(const std::string& path);

// Empties the directory. It holds three descriptors at most, because directories that lie deep are
// first moved up to the top. Any thread.
bool EmptyDirectory(int directory);

// Reads a piece of a worker's log file with the rights of the job's user: up to `read.limit` bytes
// from `read.offset`, or of the last `read.tail` bytes; none at the current end of the file. An
// agent that runs as root reads as the user, and root's files only with `root_too`. NOT_FOUND:
// there is no such file; PERMISSION_DENIED; FAILED_PRECONDITION: it is not a regular file, or there
// is no such user. The caller fills in the other fields of the chunk; `file` identifies the file on
// this machine. Any thread.
absl::StatusOr<v1::LogChunk> ReadLogFile(const v1::ReadLog& read, bool root_too);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_ALLOCATIONS_DIRECTORY_H_
