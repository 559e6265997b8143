#include "worker_runtime/progress_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"

namespace cadre {
namespace {

constexpr uint64_t kMagic = 0x0167617050726443;  // "CdrPpag", format 1
// Ranks that one text tells about.
constexpr int kRanksInText = 16;

absl::Status Failed(const char* what, const std::string& path) {
  return absl::InternalError(
      absl::StrCat("progress page ", path, ": ", what, ": ", std::strerror(errno)));
}

std::string PhaseText(const ProgressSnapshot& snapshot) {
  switch (snapshot.phase) {
    case WorkerPhase::kStarting:
      return "starts";
    case WorkerPhase::kForward:
      return "is in the forward pass";
    case WorkerPhase::kBackward:
      return "is in the backward pass";
    case WorkerPhase::kWaiting:
      return absl::StrCat("waits for bucket ", snapshot.bucket);
    case WorkerPhase::kBetween:
      return "is done with it and has not begun the next";
    case WorkerPhase::kFailed:
      return "has failed";
  }
  return "is in an unknown phase";
}

}  // namespace

struct ProgressPage::Words {
  struct Collective {
    std::atomic<uint64_t> sequence;
    std::atomic<int64_t> step;
    std::atomic<int32_t> bucket;
    std::atomic<uint32_t> type;
    std::atomic<uint32_t> state;
    uint32_t unused;
    std::atomic<uint64_t> count;
    std::atomic<int64_t> begin;  // microseconds of the machine's CLOCK_MONOTONIC
  };

  std::atomic<uint64_t> magic;
  std::atomic<uint64_t> generation;
  std::atomic<int32_t> rank;
  std::atomic<int32_t> world_size;
  std::atomic<int32_t> pid;
  std::atomic<uint32_t> phase;
  std::atomic<int64_t> step;
  std::atomic<int64_t> since;  // as Collective::begin
  std::atomic<int32_t> bucket;
  uint32_t unused;
  std::atomic<uint64_t> begun;
  std::array<Collective, kCollectivesInPage> collectives;

  Collective& At(uint64_t sequence) { return collectives[sequence % kCollectivesInPage]; }
};

std::string ProgressPagePath(const std::string& directory, uint64_t generation, int rank) {
  return absl::StrCat(directory, "/progress_", generation, "_", rank, ".page");
}

absl::StatusOr<std::unique_ptr<ProgressPage>> ProgressPage::Create(const std::string& directory,
                                                                   const PageOwner& owner) {
  static_assert(sizeof(Words) <= kProgressPageBytes, "all of it is in one page");
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");
  const std::string path = ProgressPagePath(directory, owner.generation, owner.rank);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return Failed("open", path);
  void* memory = MAP_FAILED;
  if (ftruncate(fd, kProgressPageBytes) == 0) {
    memory = mmap(nullptr, kProgressPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  absl::Status failed = memory == MAP_FAILED ? Failed("map", path) : absl::OkStatus();
  close(fd);
  if (!failed.ok()) {
    unlink(path.c_str());
    return failed;
  }
  auto* words = static_cast<Words*>(memory);
  words->generation = owner.generation;
  words->rank = owner.rank;
  words->world_size = owner.world_size;
  words->pid = getpid();
  std::unique_ptr<ProgressPage> page(new ProgressPage(directory, path, owner, words));
  page->Enter(WorkerPhase::kStarting, 0);
  words->magic = kMagic;
  return page;
}

absl::StatusOr<std::unique_ptr<ProgressPage>> ProgressPage::CreateNextToAgent(
    const PageOwner& owner) {
  const char* socket = std::getenv("CADRE_AGENT");
  if (socket == nullptr || *socket == '\0') return nullptr;
  return Create(std::filesystem::path(socket).parent_path().string(), owner);
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
  Words::Collective& record = words_->At(sequence);
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
  Words::Collective& record = words_->At(sequence);
  if (record.sequence != sequence) return;
  record.state =
      static_cast<uint32_t>(ok ? CollectiveRecord::State::kDone : CollectiveRecord::State::kFailed);
}

absl::StatusOr<ProgressSnapshot> ReadProgressPage(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0 && errno == ENOENT) {
    return absl::NotFoundError(absl::StrCat("there is no progress page ", path));
  }
  if (fd < 0) return Failed("open", path);
  struct stat info = {};
  void* memory = MAP_FAILED;
  const bool right_size = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
                          info.st_size == static_cast<off_t>(kProgressPageBytes);
  if (right_size) memory = mmap(nullptr, kProgressPageBytes, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (!right_size) {
    return absl::DataLossError(
        absl::StrCat(path, " is no progress page: it has not ", kProgressPageBytes, " bytes"));
  }
  if (memory == MAP_FAILED) return Failed("map", path);
  auto* words = static_cast<ProgressPage::Words*>(memory);
  absl::StatusOr<ProgressSnapshot> result;
  if (words->magic != kMagic) {
    result = absl::DataLossError(absl::StrCat(path, " is no progress page of this version"));
  } else {
    ProgressSnapshot snapshot;
    snapshot.owner = {words->generation, words->rank, words->world_size};
    snapshot.pid = words->pid;
    snapshot.phase = static_cast<WorkerPhase>(words->phase.load());
    snapshot.step = words->step;
    snapshot.bucket = words->bucket;
    snapshot.since = MonoTime::FromMicros(words->since);
    for (const auto& record : words->collectives) {
      if (record.sequence == 0) continue;
      snapshot.collectives.push_back({record.sequence, record.step, record.bucket,
                                      static_cast<DataType>(record.type.load()),
                                      static_cast<CollectiveRecord::State>(record.state.load()),
                                      record.count, MonoTime::FromMicros(record.begin)});
    }
    result = std::move(snapshot);
  }
  munmap(memory, kProgressPageBytes);
  if (result.ok()) {
    std::sort(result->collectives.begin(), result->collectives.end(),
              [](const auto& a, const auto& b) { return a.sequence < b.sequence; });
  }
  return result;
}

std::string Describe(const ProgressSnapshot& snapshot, MonoTime now) {
  const absl::Duration age = absl::Trunc(now - snapshot.since, absl::Milliseconds(100));
  return absl::StrCat("rank ", snapshot.owner.rank, " (pid ", snapshot.pid, "): step ",
                      snapshot.step, ", ", PhaseText(snapshot), " since ",
                      absl::FormatDuration(age));
}

std::string ProgressPage::DescribeAll() const {
  std::vector<std::string> lines;
  const int told = std::min(owner_.world_size, kRanksInText);
  for (int rank = 0; rank < told; ++rank) {
    const auto snapshot = ReadProgressPage(ProgressPagePath(directory_, owner_.generation, rank));
    if (snapshot.ok()) lines.push_back(Describe(*snapshot, MonoNow()));
  }
  if (told < owner_.world_size) {
    lines.push_back(absl::StrCat("and ", owner_.world_size - told, " more"));
  }
  return absl::StrJoin(lines, "; ");
}

}  // namespace cadre
