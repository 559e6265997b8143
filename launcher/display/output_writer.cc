#include "launcher/display/output_writer.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace cadre::launcher {

namespace {

// A reader that has taken this many bytes is known to be active.
constexpr size_t kWrittenAtOnce = 16 << 10;

// The interval at which the caller is asked whether to continue waiting.
constexpr absl::Duration kInterruptPollInterval = absl::Milliseconds(50);

// Bytes that could not be written, and the errno of the last failure.
struct Loss {
  int error = 0;
  uint64_t bytes = 0;
};

}  // namespace

struct OutputWriter::State {
  struct Piece {
    int fd;
    std::string text;
  };
  const size_t limit;
  const absl::Duration hung_timeout;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Piece> pieces;
  // Queued or being written.
  size_t bytes = 0;
  size_t dropped_lines = 0;
  std::map<int, Loss> losses;
  bool started = false;
  bool ended = false;
  // MonoNow() when something was last written, or was queued while the queue was empty.
  std::atomic<int64_t> last_progress_us{0};

  // Whether the text being written goes to a pipe.
  bool to_pipe = false;

  State(size_t limit, absl::Duration hung_timeout) : limit(limit), hung_timeout(hung_timeout) {}
  void Run();
  void NoteLoss(int fd, const Loss& loss);
  MonoTime HungAt(absl::Duration limit) const {
    return MonoTime::FromMicros(last_progress_us) + limit;
  }
  void Enqueue(int fd, std::string text) {
    if (bytes == 0) last_progress_us = MonoNow().micros();
    bytes += text.size();
    if (!pieces.empty() && pieces.back().fd == fd && pieces.back().text.size() < 65536) {
      pieces.back().text += text;
    } else {
      pieces.push_back({fd, std::move(text)});
    }
  }
};

namespace {

bool IsPipe(int fd) {
  struct stat found;
  return fstat(fd, &found) == 0 && (S_ISFIFO(found.st_mode) || S_ISSOCK(found.st_mode));
}

std::string Name(int fd) {
  return fd == STDOUT_FILENO   ? "standard output"
         : fd == STDERR_FILENO ? "standard error"
                               : absl::StrCat("descriptor ", fd);
}

// Blocks as long as the reader does. Returns what was lost.
Loss WriteAll(int fd, const std::string& text, std::atomic<int64_t>& last_progress_us) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written =
        write(fd, text.data() + done, std::min(kWrittenAtOnce, text.size() - done));
    if (written > 0) {
      done += static_cast<size_t>(written);
      last_progress_us = MonoNow().micros();
    } else if (errno == EAGAIN) {
      // Another process has made the open file description non-blocking.
      pollfd ready = {fd, POLLOUT, 0};
      poll(&ready, 1, 1000);
    } else if (errno != EINTR) {
      return {errno, text.size() - done};
    }
  }
  return {};
}

}  // namespace

void OutputWriter::State::Run() {
  std::unique_lock<std::mutex> lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return !pieces.empty() || ended; });
    if (ended) return;
    Piece piece = std::move(pieces.front());
    pieces.pop_front();
    to_pipe = IsPipe(piece.fd);
    lock.unlock();
    const Loss loss = WriteAll(piece.fd, piece.text, last_progress_us);
    lock.lock();
    bytes -= piece.text.size();
    if (loss.error != 0 && loss.error != EPIPE) NoteLoss(piece.fd, loss);
    changed.notify_all();
  }
}

void OutputWriter::State::NoteLoss(int fd, const Loss& loss) {
  Loss& total = losses[fd];
  if (total.bytes == 0 && fd != STDERR_FILENO) {
    Enqueue(STDERR_FILENO, absl::StrCat("cadre: cannot write to ", Name(fd), ": ",
                                        strerror(loss.error), "; the workers continue\n"));
  }
  total.error = loss.error;
  total.bytes += loss.bytes;
}

OutputWriter::OutputWriter(size_t limit, absl::Duration hung_timeout)
    : state_(std::make_shared<State>(limit, hung_timeout)) {}

OutputWriter::~OutputWriter() {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->ended = true;
  state_->changed.notify_all();
}

void OutputWriter::Write(int fd, std::string text) {
  if (text.empty()) return;
  std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->bytes + text.size() > state_->limit) {
    state_->dropped_lines += std::count(text.begin(), text.end(), '\n');
    return;
  }
  if (state_->dropped_lines > 0) {
    state_->Enqueue(STDERR_FILENO, absl::StrCat("cadre: ", state_->dropped_lines,
                                                " lines were dropped here, because the reader was "
                                                "too slow; they are in the log files\n"));
    state_->dropped_lines = 0;
  }
  state_->Enqueue(fd, std::move(text));
  if (!state_->started) {
    state_->started = true;
    // Detached, because a write to a hung terminal cannot be ended; the thread shares the state.
    std::thread([state = state_] { state->Run(); }).detach();
  }
  state_->changed.notify_all();
}

std::vector<std::string> OutputWriter::Losses() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  std::vector<std::string> lines;
  for (const auto& [fd, loss] : state_->losses) {
    lines.push_back(absl::StrCat(loss.bytes, " bytes for ", Name(fd),
                                 " were lost: ", strerror(loss.error),
                                 "; the workers' output is in their log files"));
  }
  return lines;
}

bool OutputWriter::HasRoom() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->bytes < state_->limit / 16) return true;
  return !state_->to_pipe && MonoNow() >= state_->HungAt(state_->hung_timeout);
}

bool OutputWriter::Flush(absl::Duration limit) { return FlushUntilInterrupted(limit, nullptr); }

bool OutputWriter::FlushUntilInterrupted(absl::Duration limit,
                                         const std::function<bool()>& interrupted) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  // Also counted from this call, because a reader that was hung may continue now.
  const MonoTime least = MonoNow() + limit;
  while (state_->bytes > 0) {
    absl::Duration left = std::max(least, state_->HungAt(limit)) - MonoNow();
    if (interrupted && interrupted()) return false;
    if (interrupted && state_->to_pipe) left = kInterruptPollInterval;
    if (left <= absl::ZeroDuration()) return false;
    if (interrupted) left = std::min(left, kInterruptPollInterval);
    state_->changed.wait_for(lock, absl::ToChronoNanoseconds(left));
  }
  return true;
}

}  // namespace cadre::launcher
