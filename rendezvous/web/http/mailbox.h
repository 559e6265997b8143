// A queue of tasks from other threads to an event loop that polls a descriptor. Thread safe.
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
  // `places` is the limit of TakePlace.
  explicit Mailbox(size_t places);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Becomes readable when a task was posted or Stop was called.
  int fd() const { return fd_; }

  void Post(std::function<void()> task);
  // Reserves a place for a future task, until the last copy of the result is destroyed; null: all
  // are taken. Post itself never refuses. Code whose answer will be posted takes a place before it
  // asks, so that the waiting tasks are bounded and no answer is dropped.
  std::shared_ptr<const void> TakePlace();
  std::vector<std::function<void()>> Take();
  // Drops waiting and later tasks.
  void Close();

  void Stop();
  bool stopping() const { return stopping_; }

 private:
  const size_t places_;
  // Places may outlive this object.
  const std::shared_ptr<std::atomic<size_t>> taken_ = std::make_shared<std::atomic<size_t>>(0);
  const int fd_;
  std::atomic<bool> stopping_{false};
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_HTTP_MAILBOX_H_
