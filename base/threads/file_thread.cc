#include "base/threads/file_thread.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/scoped_fd.h"
#include "base/steady_wait.h"

namespace cadre {

struct FileThread::State {
  struct Item {
    Task run;
    size_t bytes = 0;
    bool notify = false;
  };

  // Returns false if no thread can be created now.
  static bool Start(std::shared_ptr<State> state);
  explicit State(Options wanted) : options(wanted), news(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  void Run();
  void Notify() const {
    const uint64_t one = 1;
    // This fails only if the descriptor is readable already.
    [[maybe_unused]] const ssize_t n = write(news.get(), &one, sizeof(one));
  }

  const Options options;
  const ScopedFd news;
  std::mutex mutex;
  std::condition_variable changed;
  bool started = false;
  bool ended = false;
  std::deque<Item> items;
  size_t bytes = 0;                    // of the waiting tasks and the running one
  MonoTime began = MonoTime::Never();  // start of the running task
  bool room_wanted = false;
};

bool FileThread::State::Start(std::shared_ptr<State> state) {
  try {
    // Detached, because a task that hangs in the kernel cannot be ended; the thread shares the
    // state.
    std::thread([state] { state->Run(); }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

void FileThread::State::Run() {
  if (options.own_descriptors && unshare(CLONE_FILES | CLONE_FS) == 0) {
    const auto kept = static_cast<unsigned>(news.get());
    if (kept > STDERR_FILENO + 1) close_range(STDERR_FILENO + 1, kept - 1, 0);
    close_range(kept + 1, ~0u, 0);
  }
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return !items.empty() || ended; });
    if (ended) return;
    Item item = std::move(items.front());
    items.pop_front();
    began = MonoNow();
    lock.unlock();
    item.run();
    item.run = nullptr;
    lock.lock();
    began = MonoTime::Never();
    bytes -= item.bytes;
    const bool room = room_wanted && bytes <= options.room / 2;
    if (room) room_wanted = false;
    if (item.notify || room) Notify();
    changed.notify_all();
  }
}

FileThread::FileThread(Options options) : state_(std::make_shared<State>(options)) {}

FileThread::~FileThread() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->ended = true;
  state_->changed.notify_all();
}

int FileThread::fd() const { return state_->news.get(); }

void FileThread::ClearReadable() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(fd(), &count, sizeof(count));
}

void FileThread::Post(Task task, size_t bytes, bool notify) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->items.push_back({std::move(task), bytes, notify});
  state_->bytes += bytes;
  if (!state_->started) state_->started = State::Start(state_);
  state_->changed.notify_all();
}

bool FileThread::HasRoom(size_t bytes) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->bytes + bytes <= state_->options.room) return true;
  state_->room_wanted = true;
  return false;
}

MonoTime FileThread::HungAt() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->began + kFileTaskHungAfter;
}

bool FileThread::Drain(absl::Duration limit) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  return WaitFor(state_->changed, lock, limit,
                 [this] { return state_->items.empty() && state_->began == MonoTime::Never(); });
}

bool FileThread::RunWithin(absl::Duration limit, Task task) {
  if (IsHung(MonoNow())) return false;
  Post(std::move(task));
  return Drain(limit);
}

}  // namespace cadre
