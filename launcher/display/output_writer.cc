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

// A reader is known to go on when it has taken so much.
constexpr size_t kWrittenAtOnce = 16 << 10;

// Between two questions whether to go on waiting.
constexpr absl::Duration kAskAgain = absl::Milliseconds(50);

// Bytes that could not be written, and the errno of the last of it.
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
  const absl::Duration stands_still;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Piece> pieces;
  // Queued or being written.
  size_t bytes = 0;
  size_t left_out_lines = 0;
  std::map<int, Loss> losses;
  bool started = false;
  bool ended = false;
  // MonoNow() when something was written last, or came to be after nothing was left.
  std::atomic<int64_t> taken_us{0};

  // What is being written goes to a pipe.
  bool to_pipe = false;

  State(size_t limit, absl::Duration stands_still) : limit(limit), stands_still(stands_still) {}
  void Run();
  void Note(int fd, const Loss& loss);
  MonoTime StandsStillAt(absl::Duration limit) const {
    return MonoTime::FromMicros(taken_us) + limit;
  }
  void Enqueue(int fd, std::string text) {
    if (bytes == 0) taken_us = MonoNow().micros();
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

// Blocks as long as the reader does. Returns what is lost.
Loss WriteAll(int fd, const std::string& text, std::atomic<int64_t>& taken_us) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written =
        write(fd, text.data() + done, std::min(kWrittenAtOnce, text.size() - done));
    if (written > 0) {
      done += static_cast<size_t>(written);
      taken_us = MonoNow().micros();
    } else if (errno == EAGAIN) {
      // Somebody made the description non-blocking.
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
    const Loss loss = WriteAll(piece.fd, piece.text, taken_us);
    lock.lock();
    bytes -= piece.text.size();
    if (loss.error != 0 && loss.error != EPIPE) Note(piece.fd, loss);
    changed.notify_all();
  }
}

void OutputWriter::State::Note(int fd, const Loss& loss) {
  Loss& total = losses[fd];
  if (total.bytes == 0 && fd != STDERR_FILENO) {
    Enqueue(STDERR_FILENO, absl::StrCat("cadre: cannot write to ", Name(fd), ": ",
                                        strerror(loss.error), "; the workers go on\n"));
  }
  total.error = loss.error;
  total.bytes += loss.bytes;
}

OutputWriter::OutputWriter(size_t limit, absl::Duration stands_still)
    : state_(std::make_shared<State>(limit, stands_still)) {}

OutputWriter::~OutputWriter() {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->ended = true;
  state_->changed.notify_all();
}

void OutputWriter::Write(int fd, std::string text) {
  if (text.empty()) return;
  std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->bytes + text.size() > state_->limit) {
    state_->left_out_lines += std::count(text.begin(), text.end(), '\n');
    return;
  }
  if (state_->left_out_lines > 0) {
    state_->Enqueue(STDERR_FILENO,
                    absl::StrCat("cadre: ", state_->left_out_lines,
                                 " lines left out here, because nobody read them in time; they are "
                                 "in the log files\n"));
    state_->left_out_lines = 0;
  }
  state_->Enqueue(fd, std::move(text));
  if (!state_->started) {
    state_->started = true;
    // Detached, because a write to a terminal that stands still cannot be ended; it owns its state.
    std::thread([state = state_] { state->Run(); }).detach();
  }
  state_->changed.notify_all();
}

std::vector<std::string> OutputWriter::Losses() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  std::vector<std::string> lines;
  for (const auto& [fd, loss] : state_->losses) {
    lines.push_back(absl::StrCat(loss.bytes, " bytes for ", Name(fd),
                                 " are lost: ", strerror(loss.error),
                                 "; what workers wrote is in their log files"));
  }
  return lines;
}

bool OutputWriter::HasRoom() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->bytes < state_->limit / 16) return true;
  return !state_->to_pipe && MonoNow() >= state_->StandsStillAt(state_->stands_still);
}

bool OutputWriter::Flush(absl::Duration limit) { return FlushPatiently(limit, nullptr); }

bool OutputWriter::FlushPatiently(absl::Duration limit, const std::function<bool()>& interrupted) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  // From the call on, too: what stood still before may go on now.
  const MonoTime least = MonoNow() + limit;
  while (state_->bytes > 0) {
    absl::Duration left = std::max(least, state_->StandsStillAt(limit)) - MonoNow();
    if (interrupted && interrupted()) return false;
    if (interrupted && state_->to_pipe) left = kAskAgain;
    if (left <= absl::ZeroDuration()) return false;
    if (interrupted) left = std::min(left, kAskAgain);
    state_->changed.wait_for(lock, absl::ToChronoNanoseconds(left));
  }
  return true;
}

}  // namespace cadre::launcher
