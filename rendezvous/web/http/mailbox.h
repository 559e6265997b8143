// Where other threads leave work for a loop that waits for a descriptor. Thread safe.
#ifndef CADRE_RENDEZVOUS_WEB_HTTP_MAILBOX_H_
#define CADRE_RENDEZVOUS_WEB_HTTP_MAILBOX_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace cadre::web {

class Mailbox {
 public:
  // `places`: see TakePlace.
  explicit Mailbox(size_t places);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Readable when something was posted, or Stop was called.
  int fd() const { return fd_; }

  void Post(std::function<void()> task);
  // A place for a task that is to come, free again with the last copy of what is returned; null:
  // all are taken. Posting itself refuses nothing: whoever will post what others ask for takes a
  // place before it asks, so that what waits here is bounded and no answer is dropped.
  std::shared_ptr<const void> TakePlace();
  std::vector<std::function<void()>> Take();
  // Drops the tasks that wait, and those that come later.
  void Close();

  void Stop();
  bool stopping() const { return stopping_; }

 private:
  const size_t places_;
  // May outlive this.
  const std::shared_ptr<std::atomic<size_t>> taken_ = std::make_shared<std::atomic<size_t>>(0);
  const int fd_;
  std::atomic<bool> stopping_{false};
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_HTTP_MAILBOX_H_
