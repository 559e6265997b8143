// A worker's progress reports: the page that its node reads, and the lines for its launcher.
#include "worker_runtime/progress/progress_page.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"

namespace cadre::progress {
namespace {

// The most ranks that one text describes.
constexpr int kRanksInText = 16;

Status Failed(const char* what, const std::string& path) {
  return InternalError(
      absl::StrCat("progress page ", path, ": ", what, ": ", std::strerror(errno)));
}

// The page of this process, and its owner once that differs from the environment.
struct ThisWorker {
  absl::Mutex mutex;
  std::weak_ptr<ProgressPage> page ABSL_GUARDED_BY(mutex);
  std::optional<PageOwner> owner ABSL_GUARDED_BY(mutex);
};

ThisWorker& This() {
  static auto* const worker = new ThisWorker;
  return *worker;
}

std::optional<PageOwner> OwnerFromEnvironment() {
  const char* const generation = std::getenv("CADRE_GENERATION");
  const char* const rank = std::getenv("RANK");
  const char* const world_size = std::getenv("WORLD_SIZE");
  PageOwner owner;
  if (generation == nullptr || rank == nullptr || world_size == nullptr ||
      !absl::SimpleAtoi(generation, &owner.generation) || !absl::SimpleAtoi(rank, &owner.rank) ||
      !absl::SimpleAtoi(world_size, &owner.world_size)) {
    return std::nullopt;
  }
  return owner;
}

}  // namespace

Result<std::unique_ptr<ProgressPage>> ProgressPage::Create(const std::string& directory,
                                                           const PageOwner& owner) {
  const std::string path = ProgressPagePath(directory, owner.generation, owner.rank);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return Failed("open", path);
  void* memory = MAP_FAILED;
  if (ftruncate(fd, kProgressPageBytes) == 0) {
    memory = mmap(nullptr, kProgressPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  Status failed = memory == MAP_FAILED ? Failed("map", path) : OkStatus();
  close(fd);
  if (!failed.ok()) {
    unlink(path.c_str());
    return failed;
  }
  auto* words = static_cast<ProgressPageWords*>(memory);
  words->generation = owner.generation;
  words->rank = owner.rank;
  words->world_size = owner.world_size;
  words->pid = getpid();
  std::unique_ptr<ProgressPage> page(new ProgressPage(directory, path, owner, words));
  page->Enter(WorkerPhase::kStarting, 0);
  words->magic = ProgressPageWords::kMagic;
  return page;
}

Result<std::unique_ptr<ProgressPage>> ProgressPage::CreateNextToAgent(const PageOwner& owner) {
  const char* socket = std::getenv("CADRE_AGENT");
  if (socket == nullptr || *socket == '\0') return nullptr;
  return Create(std::filesystem::path(socket).parent_path().string(), owner);
}

std::shared_ptr<ProgressPage> ProgressPage::OfThisWorker() {
  ThisWorker& worker = This();
  absl::MutexLock lock(&worker.mutex);
  if (std::shared_ptr<ProgressPage> page = worker.page.lock()) return page;
  const std::optional<PageOwner> owner = worker.owner ? worker.owner : OwnerFromEnvironment();
  if (!owner) return nullptr;
  Result<std::unique_ptr<ProgressPage>> made = CreateNextToAgent(*owner);
  std::shared_ptr<ProgressPage> page = made.ok() ? *std::move(made) : nullptr;
  worker.page = page;
  return page;
}

void ProgressPage::MoveThisWorker(const PageOwner& owner) {
  ThisWorker& worker = This();
  absl::MutexLock lock(&worker.mutex);
  worker.owner = owner;
  worker.page.reset();
}

ProgressPage::~ProgressPage() {
  munmap(words_, kProgressPageBytes);
  unlink(path_.c_str());
}

void ProgressPage::Enter(WorkerPhase phase, int64_t step, int bucket) {
  constexpr auto kOrder = std::memory_order_relaxed;
  words_->phase.store(static_cast<uint32_t>(phase), kOrder);
  words_->step.store(step, kOrder);
  words_->bucket.store(bucket, kOrder);
  words_->since.store(MonoNow().micros(), kOrder);
}

uint64_t ProgressPage::Begin(int64_t step, int bucket, const Buffer& buffer) {
  constexpr auto kOrder = std::memory_order_relaxed;
  const uint64_t sequence = words_->begun.fetch_add(1, kOrder) + 1;
  ProgressPageWords::Collective& record = words_->At(sequence);
  record.sequence.store(sequence, kOrder);
  record.step.store(step, kOrder);
  record.bucket.store(bucket, kOrder);
  record.type.store(static_cast<uint32_t>(buffer.type), kOrder);
  record.state.store(static_cast<uint32_t>(CollectiveRecord::State::kRunning), kOrder);
  record.count.store(buffer.count, kOrder);
  record.begin.store(MonoNow().micros(), kOrder);
  return sequence;
}

void ProgressPage::End(uint64_t sequence, bool ok) {
  ProgressPageWords::Collective& record = words_->At(sequence);
  if (record.sequence != sequence) return;
  record.state =
      static_cast<uint32_t>(ok ? CollectiveRecord::State::kDone : CollectiveRecord::State::kFailed);
}

std::string ProgressPage::DescribeAll() const {
  std::vector<std::string> lines;
  const int described = std::min(owner_.world_size, kRanksInText);
  for (int rank = 0; rank < described; ++rank) {
    const auto snapshot = ReadProgressPage(ProgressPagePath(directory_, owner_.generation, rank));
    if (snapshot.ok()) lines.push_back(Describe(*snapshot, MonoNow()));
  }
  if (described < owner_.world_size) {
    lines.push_back(absl::StrCat("and ", owner_.world_size - described, " more"));
  }
  return absl::StrJoin(lines, "; ");
}

namespace {

// write() to a pipe that may have no reader, without the SIGPIPE that would end this program.
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
  // A program that this one starts must not keep the pipe open.
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
