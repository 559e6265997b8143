#include "rendezvous/web/http/mailbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace cadre::web {

Mailbox::Mailbox(size_t places) : places_(places), fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

Mailbox::~Mailbox() { close(fd_); }

void Mailbox::Post(std::function<void()> task) {
  const absl::MutexLock lock(&mutex_);
  if (closed_) return;
  tasks_.push_back(std::move(task));
  eventfd_write(fd_, 1);
}

std::shared_ptr<const void> Mailbox::TakePlace() {
  if (taken_->fetch_add(1) >= places_) {
    taken_->fetch_sub(1);
    return nullptr;
  }
  return std::shared_ptr<const void>(taken_.get(),
                                     [taken = taken_](const void*) { taken->fetch_sub(1); });
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
