#include "rendezvous/web/dashboard/log_tails.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/web/dashboard/open_below.h"

namespace cadre::web {

LogTails::~LogTails() {
  for (const Tail& tail : tails_) {
    if (tail.fd >= 0) close(tail.fd);
  }
}

void LogTails::Add(std::shared_ptr<HttpExchange> exchange, const std::string& path) {
  if (!exchange->Begin("text/plain; charset=utf-8")) return;
  tails_.push_back({std::move(exchange), path});
  Send(tails_.back());
}

void LogTails::Open(Tail& tail) {
  // Only a file: a worker might have replaced it by something that makes an open wait, or leads
  // elsewhere.
  tail.fd = OpenBelow(root_, tail.path);
  if (tail.fd < 0 && errno != ENOENT) {
    tail.exchange->Write(absl::StrCat("(cannot read ", tail.path, ": ", strerror(errno), ")\n"));
    return tail.exchange->End();
  }
  struct stat found;
  if (tail.fd < 0 || fstat(tail.fd, &found) != 0) return;
  tail.offset = std::max<off_t>(0, found.st_size - static_cast<off_t>(kTailBytes));
}

void LogTails::Send(Tail& tail) {
  if (tail.fd < 0) Open(tail);
  if (tail.fd < 0 || tail.exchange->waiting() >= kTailBytesPerTick) return;
  std::string bytes(kTailBytesPerTick, '\0');
  const ssize_t count = pread(tail.fd, &bytes[0], bytes.size(), tail.offset);
  if (count <= 0) return;
  tail.offset += count;
  bytes.resize(count);
  tail.exchange->Write(bytes);
}

void LogTails::Tick() {
  for (auto tail = tails_.begin(); tail != tails_.end();) {
    if (!tail->exchange->closed()) Send(*tail);
    if (tail->exchange->closed()) {
      if (tail->fd >= 0) close(tail->fd);
      tail = tails_.erase(tail);
    } else {
      ++tail;
    }
  }
}

void LogTails::Finish() {
  Tick();
  for (Tail& tail : tails_) tail.exchange->End();
}

}  // namespace cadre::web
