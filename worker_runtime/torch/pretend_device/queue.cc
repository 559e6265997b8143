#include "worker_runtime/torch/pretend_device/queue.h"

#include <exception>
#include <stdexcept>
#include <thread>
#include <utility>

namespace cadre::pretend {

using Lock = std::unique_lock<std::mutex>;

Queue::Queue() {
  std::thread([this] { Run(); }).detach();
}

void Queue::Push(Job job, double seconds) {
  {
    const Lock lock(mutex_);
    jobs_.push_back({std::move(job), seconds});
    ++pushed_;
  }
  changed_.notify_all();
}

void Queue::Run() {
  for (;;) {
    Entry entry;
    {
      Lock lock(mutex_);
      changed_.wait(lock, [this] { return !jobs_.empty() && !held_; });
      entry = std::move(jobs_.front());
      jobs_.pop_front();
    }
    std::string error;
    try {
      entry.job();
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    entry.job = nullptr;  // what it holds goes before it counts as done
    now_ += entry.seconds;
    {
      const Lock lock(mutex_);
      ++done_;
      if (error_.empty()) error_ = error;
    }
    changed_.notify_all();
  }
}

bool Queue::idle() const {
  CountWait();
  const Lock lock(mutex_);
  return done_ == pushed_;
}

void Queue::Synchronize() {
  CountWait();
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
  recorded_on_ = &queue;
  queue.Push([state = state_, version = ++version_, &queue] {
    {
      const Lock lock(state->mutex);
      state->times[version] = queue.now();
    }
    state->changed.notify_all();
  });
}

void Event::Block(Queue& queue) const {
  if (version_ == 0) return;  // never recorded
  queue.Push([state = state_, version = version_, &queue] {
    Lock lock(state->mutex);
    state->changed.wait(lock, [&] { return state->Passed(version); });
    queue.AdvanceTo(state->times[version]);
  });
}

void Event::CountWait() const {
  if (recorded_on_ != nullptr) recorded_on_->CountWait();
}

bool Event::done() const {
  CountWait();
  const Lock lock(state_->mutex);
  return state_->Passed(version_);
}

void Event::Synchronize() const {
  CountWait();
  Lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->Passed(version_); });
}

}  // namespace cadre::pretend
