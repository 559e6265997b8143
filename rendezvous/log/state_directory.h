// The directory that holds one server's state, locked for as long as the object lives. Moves with
// its owner; one thread.
#ifndef CADRE_RENDEZVOUS_LOG_STATE_DIRECTORY_H_
#define CADRE_RENDEZVOUS_LOG_STATE_DIRECTORY_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/scoped_fd.h"

namespace cadre::log {

class StateDirectory {
 public:
  // Makes the directory (0700) where it is missing, so that its name outlives a loss of power.
  // Errors name it and say what to do:
  //   ALREADY_EXISTS     another server uses it
  //   INVALID_ARGUMENT   it cannot be made, read or written, or is another user's
  static absl::StatusOr<std::unique_ptr<StateDirectory>> Lock(const std::string& path);
  StateDirectory(const StateDirectory&) = delete;
  StateDirectory& operator=(const StateDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  StateDirectory(std::string path, ScopedFd lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}

  const std::string path_;
  const ScopedFd lock_;
};

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_STATE_DIRECTORY_H_
