// The directory in which a server keeps its SQLite log: its lock, and the tail file beside the log.
// One thread.
#ifndef CADRE_RENDEZVOUS_LOG_SQLITE_DIRECTORY_H_
#define CADRE_RENDEZVOUS_LOG_SQLITE_DIRECTORY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/scoped_fd.h"

namespace cadre::log {

// Locked while the object lives.
class StateDirectory {
 public:
  // Creates the directory (0700) if it is missing, and makes its name durable. Errors name it and
  // say what to do:
  //   ALREADY_EXISTS     another server uses it
  //   INVALID_ARGUMENT   it cannot be made, read or written, or belongs to another user
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

// The content of the tail file.
struct Tail {
  uint64_t server_id = 0;
  int64_t last = 0;
};

// The file with the number of the last acknowledged record, and its state: 16 bytes in a file. It
// is written at each commit and never synced, so it costs almost nothing.
class TailFile {
 public:
  // Creates the file if it is missing. UNAVAILABLE: it cannot be opened.
  static absl::StatusOr<std::unique_ptr<TailFile>> Open(const std::string& path);
  ~TailFile();
  TailFile(const TailFile&) = delete;
  TailFile& operator=(const TailFile&) = delete;

  // nullopt: the file is new.
  std::optional<Tail> Read() const;
  absl::Status Write(const Tail& tail) const;

 private:
  explicit TailFile(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_SQLITE_DIRECTORY_H_
