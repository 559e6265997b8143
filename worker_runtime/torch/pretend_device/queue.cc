#include "worker_runtime/torch/pretend_device/queue.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <thread>
#include <utility>

namespace cadre::pretend {

using Lock = std::unique_lock<std::mutex>;

Queue::Queue() {
  std::thread([this] { Run(); }).detach();
}

void Queue::Push(Job job) {
  {
    const Lock lock(mutex_);
    jobs_.push_back(std::move(job));
    ++pushed_;
  }
  changed_.notify_all();
}

void Queue::Run() {
  for (;;) {
    Job job;
    {
      Lock lock(mutex_);
      changed_.wait(lock, [this] { return !jobs_.empty() && !held_; });
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    std::string error;
    try {
      job();
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    job = nullptr;  // what it holds goes before it counts as done
    {
      const Lock lock(mutex_);
      ++done_;
      if (error_.empty()) error_ = error;
    }
    changed_.notify_all();
  }
}

bool Queue::idle() const {
  const Lock lock(mutex_);
  return done_ == pushed_;
}

void Queue::Synchronize() {
  Lock lock(mutex_);
  changed_.wait(lock, [this, until = pushed_] { return done_ >= until; });
  if (!error_.empty()) throw std::runtime_error("pretend device: asynchronous error: " + error_);
}

void Queue::Hold(bool hold) {
  {
    const Lock lock(mutex_);
    held_ = hold;
  }
  changed_.notify_all();
}

uint64_t Queue::done() const {
  const Lock lock(mutex_);
  return done_;
}

void Event::Record(Queue& queue) {
  queue.Push([state = state_, version = ++version_] {
    {
      const Lock lock(state->mutex);
      state->done = std::max(state->done, version);
    }
    state->changed.notify_all();
  });
}

void Event::Block(Queue& queue) const {
  queue.Push([state = state_, version = version_] {
    Lock lock(state->mutex);
    state->changed.wait(lock, [&] { return state->done >= version; });
  });
}

bool Event::done() const {
  const Lock lock(state_->mutex);
  return state_->done >= version_;
}

void Event::Synchronize() const {
  Lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->done >= version_; });
}

}  // namespace cadre::pretend
