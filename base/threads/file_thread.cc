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
    bool tells = false;
  };

  // False: no thread is to be had just now.
  static bool Start(std::shared_ptr<State> state);
  explicit State(Options wanted) : options(wanted), news(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  void Run();
  void Tell() const {
    const uint64_t one = 1;
    // Fails only where it is readable anyway.
    [[maybe_unused]] const ssize_t n = write(news.get(), &one, sizeof(one));
  }

  const Options options;
  const ScopedFd news;
  std::mutex mutex;
  std::condition_variable changed;
  bool started = false;
  bool ended = false;
  std::deque<Item> items;
  size_t bytes = 0;                    // of those that wait, and of the one that runs
  MonoTime began = MonoTime::Never();  // the one that runs
  bool room_wanted = false;
};

bool FileThread::State::Start(std::shared_ptr<State> state) {
  try {
    // Detached, because nothing ends a task that waits in the kernel; it owns its state.
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
    if (item.tells || room) Tell();
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

void FileThread::TakeNews() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(fd(), &count, sizeof(count));
}

void FileThread::Post(Task task, size_t bytes, bool tells) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->items.push_back({std::move(task), bytes, tells});
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

MonoTime FileThread::StandsStillAt() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->began + kStandsStillAfter;
}

bool FileThread::Drain(absl::Duration limit) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  return WaitFor(state_->changed, lock, limit,
                 [this] { return state_->items.empty() && state_->began == MonoTime::Never(); });
}

bool FileThread::RunWithin(absl::Duration limit, Task task) {
  if (StandsStill(MonoNow())) return false;
  Post(std::move(task));
  return Drain(limit);
}

}  // namespace cadre
