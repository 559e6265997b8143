// Follows files for readers: the end of what is there, then what is added. Used by the HTTP
// server's thread; a file on a disk that does not answer holds up that thread alone.
#ifndef CADRE_RENDEZVOUS_WEB_DASHBOARD_LOG_TAILS_H_
#define CADRE_RENDEZVOUS_WEB_DASHBOARD_LOG_TAILS_H_

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/web/http/http_server.h"

namespace cadre::web {

// Of a file that is there already, its end is shown.
inline constexpr size_t kTailBytes = 64 << 10;
// Read from each file at one tick at most; while as much waits for its reader nothing is read.
inline constexpr size_t kTailBytesPerTick = 256 << 10;

class LogTails {
 public:
  // Files are those of the directory `root`; what is no regular file there is not shown.
  explicit LogTails(std::string root) : root_(std::move(root)) {}
  ~LogTails();
  LogTails(const LogTails&) = delete;
  LogTails& operator=(const LogTails&) = delete;

  // `path` below the root. A file that is not there yet is waited for; why one cannot be read is
  // written in its place.
  void Add(std::shared_ptr<HttpExchange> exchange, const std::string& path);
  void Tick();
  // Sends what is left and ends all.
  void Finish();

 private:
  struct Tail {
    std::shared_ptr<HttpExchange> exchange;
    std::string path;
    int fd = -1;
    off_t offset = 0;
  };
  void Open(Tail& tail);
  void Send(Tail& tail);

  const std::string root_;
  std::vector<Tail> tails_;
};

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_DASHBOARD_LOG_TAILS_H_
