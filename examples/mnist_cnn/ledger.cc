#include "ledger.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "unlike_name.h"

namespace cadre::mnist {
namespace {

std::string Who(const std::string& what, const WorkerPlace& place) {
  return what + " generation=" + std::to_string(place.generation) +
         " rank=" + std::to_string(place.rank) + " world=" + std::to_string(place.world_size);
}

std::string When(int64_t step) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  return " step=" + std::to_string(step) + " at_us=" + std::to_string(us);
}

}  // namespace

Result<Ledger> Ledger::Open(const std::string& directory) {
  if (directory.empty()) return Ledger("", -1);
  std::string path = directory + "/" + UnlikeName();
  const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) {
    return UnavailableError("--ledger: " + path + ": " + std::strerror(errno));
  }
  return Ledger(std::move(path), fd);
}

Ledger::Ledger(Ledger&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

Ledger::~Ledger() {
  if (fd_ >= 0) close(fd_);
}

Status Ledger::Take(const WorkerPlace& place, int64_t epoch, int64_t step,
                    const std::vector<int64_t>& samples) const {
  if (fd_ < 0) return OkStatus();
  std::string line =
      Who("take", place) + " epoch=" + std::to_string(epoch) + When(step) + " samples=";
  for (size_t i = 0; i < samples.size(); ++i) {
    if (i > 0) line += ',';
    line += std::to_string(samples[i]);
  }
  return Append(line + "\n");
}

Status Ledger::Done(const WorkerPlace& place, int64_t step) const {
  if (fd_ < 0) return OkStatus();
  return Append(Who("done", place) + When(step) + "\n");
}

Status Ledger::Append(const std::string& line) const {
  const ssize_t n = write(fd_, line.data(), line.size());
  if (n == static_cast<ssize_t>(line.size())) return OkStatus();
  return DataLossError("--ledger: " + path_ + ": " +
                       (n < 0 ? std::strerror(errno) : "the disk is full"));
}

}  // namespace cadre::mnist
