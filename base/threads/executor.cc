#include "base/threads/executor.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/steady_wait.h"

namespace cadre {

bool Executor::Enter() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (options_.due == nullptr || runner_ != Runner::kNone || woken_ || !tasks_.empty()) {
    return false;
  }
  runner_ = Runner::kPoster;
  return true;
}

void Executor::Leave() {
  Task next;
  while (NextForPoster(options_.due(), &next)) next.run();
}

bool Executor::NextForPoster(MonoTime due, Task* next) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (due < rests_until_) WakeLoop();
  if (!woken_ && !tasks_.empty() && tasks_.front().anywhere) {
    *next = std::move(tasks_.front());
    tasks_.pop_front();
    if (next->bytes > 0) --load_.tasks;
    load_.bytes -= next->bytes;
    return true;
  }
  runner_ = Runner::kNone;
  if (!tasks_.empty()) WakeLoop();
  // Take may be waiting for the turn.
  if (woken_) changed_.notify_one();
  return false;
}

bool Executor::Add(Task task, const Load& room) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return AddLocked(std::move(task), room);
}

bool Executor::AddAll(std::vector<Task> tasks, const Load& room) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Task& task : tasks) {
    if (!AddLocked(std::move(task), room)) return false;
  }
  return true;
}

bool Executor::AddLocked(Task&& task, const Load& room) {
  if (closed_) return false;
  if (task.bytes > 0) {
    if (load_.tasks >= room.tasks || load_.bytes + task.bytes > room.bytes) return false;
    ++load_.tasks;
    load_.bytes += task.bytes;
  }
  tasks_.push_back(std::move(task));
  // A poster that has the turn checks for tasks when it is done.
  if (runner_ != Runner::kPoster) WakeLoop();
  return true;
}

Executor::Load Executor::load() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return load_;
}

void Executor::Rest(MonoTime until) {
  const std::lock_guard<std::mutex> lock(mutex_);
  rests_until_ = until;
  runner_ = Runner::kNone;
}

void Executor::Await(MonoTime until) {
  std::unique_lock<std::mutex> lock(mutex_);
  WaitFor(changed_, lock, until - MonoNow(), [this] { return woken_; });
}

std::deque<Executor::Task> Executor::Take() {
  std::unique_lock<std::mutex> lock(mutex_);
  woken_ = true;
  changed_.wait(lock, [this] { return runner_ != Runner::kPoster; });
  woken_ = false;
  runner_ = Runner::kLoop;
  return TakeTasks();
}

bool Executor::has_tasks() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !tasks_.empty();
}

std::deque<Executor::Task> Executor::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  return TakeTasks();
}

std::deque<Executor::Task> Executor::TakeTasks() {
  load_ = {0, 0};
  return std::exchange(tasks_, {});
}

void Executor::WakeLoop() {
  if (std::exchange(woken_, true)) return;
  if (options_.wake != nullptr) options_.wake();
  changed_.notify_one();
}

}  // namespace cadre
