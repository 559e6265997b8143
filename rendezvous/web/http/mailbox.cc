#include "rendezvous/web/http/mailbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace cadre::web {

Mailbox::Mailbox(size_t max) : max_(max), fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

Mailbox::~Mailbox() { close(fd_); }

void Mailbox::Post(std::function<void()> task) {
  const absl::MutexLock lock(&mutex_);
  if (closed_ || tasks_.size() >= max_) return;
  tasks_.push_back(std::move(task));
  eventfd_write(fd_, 1);
}

std::vector<std::function<void()>> Mailbox::Take() {
  eventfd_t count;
  eventfd_read(fd_, &count);
  const absl::MutexLock lock(&mutex_);
  return std::exchange(tasks_, {});
}

void Mailbox::Close() {
  std::vector<std::function<void()>> dropped;
  const absl::MutexLock lock(&mutex_);
  closed_ = true;
  dropped.swap(tasks_);
}

void Mailbox::Stop() {
  stopping_ = true;
  eventfd_write(fd_, 1);
}

}  // namespace cadre::web
