// The token that a user's processes on one machine share for the server on a port of its loopback:
// a file in RuntimeDirectory(), which whoever comes first makes. Each process that uses it has a
// lock on it, so that it can be told when nobody does any more; then it is removed, by the last
// user or, where that was killed, by whoever comes next for any port. Thread safe.
#ifndef CADRE_LAUNCHER_ATTACH_LOOPBACK_TOKEN_H_
#define CADRE_LAUNCHER_ATTACH_LOOPBACK_TOKEN_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace cadre::launcher {

// One user of the token, as long as it lives.
class LoopbackTokenUse {
 public:
  // Errors: as ReadTokenFile; UNAVAILABLE: others take and remove it all the time.
  static absl::StatusOr<std::unique_ptr<LoopbackTokenUse>> Begin(int port);
  // Removes the file if nobody else uses it.
  ~LoopbackTokenUse();
  LoopbackTokenUse(const LoopbackTokenUse&) = delete;
  LoopbackTokenUse& operator=(const LoopbackTokenUse&) = delete;

  const std::string& token() const { return token_; }

 private:
  LoopbackTokenUse(std::string path, int fd, std::string token);
  const std::string path_;
  const int fd_;
  const std::string token_;
};

// The same for a process that uses it until it ends, or until EndLoopbackTokens().
absl::StatusOr<std::string> LoopbackToken(int port);
void EndLoopbackTokens();

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ATTACH_LOOPBACK_TOKEN_H_
