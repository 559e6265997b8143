#include "launcher/display/output_writer.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre {

struct OutputWriter::State {
  struct Piece {
    int fd;
    std::string text;
  };
  const size_t limit;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Piece> pieces;
  // Queued or being written.
  size_t bytes = 0;
  size_t left_out_lines = 0;
  bool started = false;
  bool ended = false;

  explicit State(size_t limit) : limit(limit) {}
  void Run();
  void Enqueue(int fd, std::string text) {
    bytes += text.size();
    if (!pieces.empty() && pieces.back().fd == fd && pieces.back().text.size() < 65536) {
      pieces.back().text += text;
    } else {
      pieces.push_back({fd, std::move(text)});
    }
  }
};

namespace {

// Blocks as long as the reader does. A reader that is gone takes everything.
void WriteAll(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = write(fd, text.data() + done, text.size() - done);
    if (written > 0) {
      done += static_cast<size_t>(written);
    } else if (errno == EAGAIN) {
      // Somebody made the description non-blocking.
      pollfd ready = {fd, POLLOUT, 0};
      poll(&ready, 1, 1000);
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace

void OutputWriter::State::Run() {
  std::unique_lock<std::mutex> lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return !pieces.empty() || ended; });
    if (ended) return;
    Piece piece = std::move(pieces.front());
    pieces.pop_front();
    lock.unlock();
    WriteAll(piece.fd, piece.text);
    lock.lock();
    bytes -= piece.text.size();
    changed.notify_all();
  }
}

OutputWriter::OutputWriter(size_t limit) : state_(std::make_shared<State>(limit)) {}

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

bool OutputWriter::Flush(absl::Duration limit) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  return state_->changed.wait_for(lock, absl::ToChronoNanoseconds(limit),
                                  [this] { return state_->bytes == 0; });
}

}  // namespace cadre
