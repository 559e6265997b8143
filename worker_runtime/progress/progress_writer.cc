#include "worker_runtime/progress/progress_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_format.h"

namespace cadre::progress {
namespace {

// write() to a pipe without a reader, minus the signal that would end this program.
ssize_t WriteWithoutSignal(int fd, const std::string& text) {
  sigset_t pipe_signal, before, pending;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  sigpending(&pending);
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  const ssize_t written = write(fd, text.data(), text.size());
  const int error = errno;
  if (written < 0 && error == EPIPE && sigismember(&pending, SIGPIPE) == 0) {
    const timespec no_wait = {};
    sigtimedwait(&pipe_signal, nullptr, &no_wait);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return written;
}

}  // namespace

ProgressWriter::ProgressWriter(int fd) : fd_(fd) {
  struct stat status;
  if (fd < 0 || fstat(fd, &status) != 0 ||
      !(S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode))) {
    fd_ = -1;
    return;
  }
  // A program that this one starts is not a worker, and must not keep the pipe open.
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

void ProgressWriter::Report(MonoTime now, int64_t step, double samples_per_second, double loss) {
  absl::MutexLock lock(&mutex_);
  if (fd_ < 0 || (wrote_ && now < last_ + kMinProgressInterval)) return;
  const std::string line =
      absl::StrFormat("step=%d samples_per_second=%g loss=%g\n", step, samples_per_second, loss);
  // Shorter than PIPE_BUF, so it is written whole or not at all.
  const ssize_t written = WriteWithoutSignal(fd_, line);
  if (written < 0 && errno == EPIPE) fd_ = -1;
  wrote_ = true;
  last_ = now;
}

}  // namespace cadre::progress
