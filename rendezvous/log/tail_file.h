// Which record was acknowledged last, and of which state: 16 bytes in a file. Written with each
// commit and never synced, so it costs nothing. One thread.
#ifndef CADRE_RENDEZVOUS_LOG_TAIL_FILE_H_
#define CADRE_RENDEZVOUS_LOG_TAIL_FILE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace cadre::log {

struct Tail {
  uint64_t server_id = 0;
  int64_t last = 0;
};

class TailFile {
 public:
  // Makes it where it is missing. UNAVAILABLE: it cannot be opened.
  static absl::StatusOr<std::unique_ptr<TailFile>> Open(const std::string& path);
  ~TailFile();
  TailFile(const TailFile&) = delete;
  TailFile& operator=(const TailFile&) = delete;

  // Nothing: the file is new.
  std::optional<Tail> Read() const;
  absl::Status Write(const Tail& tail) const;

 private:
  explicit TailFile(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_TAIL_FILE_H_
