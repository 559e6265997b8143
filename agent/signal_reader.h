// The signals that end a launcher, read from a descriptor. One thread.
#ifndef CADRE_AGENT_SIGNAL_READER_H_
#define CADRE_AGENT_SIGNAL_READER_H_

#include <errno.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cadre::agent {

// Closes the descriptor with the scope.
class SignalReader {
 public:
  // For the signals that the calling thread blocks.
  static absl::StatusOr<std::unique_ptr<SignalReader>> Make() {
    sigset_t signals;
    sigprocmask(SIG_BLOCK, nullptr, &signals);
    const int fd = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
    if (fd < 0) return absl::ErrnoToStatus(errno, "cannot make a signalfd");
    return std::unique_ptr<SignalReader>(new SignalReader(fd));
  }
  ~SignalReader() { close(fd_); }
  int fd() const { return fd_; }

  std::vector<int> Read() {
    std::vector<int> signals;
    signalfd_siginfo info;
    while (read(fd_, &info, sizeof(info)) == sizeof(info)) {
      signals.push_back(static_cast<int>(info.ssi_signo));
    }
    return signals;
  }

 private:
  explicit SignalReader(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_SIGNAL_READER_H_
