// Where other threads leave work for a loop that waits for a descriptor. Thread safe.
#ifndef CADRE_RENDEZVOUS_WEB_HTTP_MAILBOX_H_
#define CADRE_RENDEZVOUS_WEB_HTTP_MAILBOX_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace cadre::web {

class Mailbox {
 public:
  // Holds so many tasks at most; more are dropped.
  explicit Mailbox(size_t max);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Readable when something was posted, or Stop was called.
  int fd() const { return fd_; }

  void Post(std::function<void()> task);
  std::vector<std::function<void()>> Take();
  // Drops the tasks that wait, and those that come later.
  void Close();

  void Stop();
  bool stopping() const { return stopping_; }

 private:
  const size_t max_;
  const int fd_;
  std::atomic<bool> stopping_{false};
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_HTTP_MAILBOX_H_
