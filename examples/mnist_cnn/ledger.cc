#include "examples/mnist_cnn/ledger.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"

namespace cadre::mnist {
namespace {

std::string Who(const char* what, const WorkerPlace& place) {
  return absl::StrCat(what, " generation=", place.generation, " rank=", place.rank,
                      " world=", place.world_size);
}

std::string When(int64_t step) {
  return absl::StrCat(" step=", step, " at_us=", MonoNow().micros());
}

}  // namespace

absl::StatusOr<Ledger> Ledger::Open(const std::string& directory) {
  if (directory.empty()) return Ledger("", -1);
  std::string path = absl::StrCat(directory, "/", getpid());
  const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) {
    return absl::UnavailableError(absl::StrCat("--ledger: ", path, ": ", std::strerror(errno)));
  }
  return Ledger(std::move(path), fd);
}

Ledger::Ledger(Ledger&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

Ledger::~Ledger() {
  if (fd_ >= 0) close(fd_);
}

absl::Status Ledger::Take(const WorkerPlace& place, int64_t epoch, int64_t step,
                          const std::vector<int64_t>& samples) const {
  if (fd_ < 0) return absl::OkStatus();
  return Append(absl::StrCat(Who("take", place), " epoch=", epoch, When(step),
                             " samples=", absl::StrJoin(samples, ","), "\n"));
}

absl::Status Ledger::Done(const WorkerPlace& place, int64_t step) const {
  if (fd_ < 0) return absl::OkStatus();
  return Append(absl::StrCat(Who("done", place), When(step), "\n"));
}

absl::Status Ledger::Append(const std::string& line) const {
  const ssize_t n = write(fd_, line.data(), line.size());
  if (n == static_cast<ssize_t>(line.size())) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("--ledger: ", path_, ": ", n < 0 ? std::strerror(errno) : "the disk is full"));
}

}  // namespace cadre::mnist
