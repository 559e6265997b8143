#include "base/progress_snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// The worker may write any number into its page, and MonoTime begins at 0.
MonoTime TimeOf(int64_t micros) { return MonoTime::FromMicros(std::max<int64_t>(micros, 0)); }

absl::StatusOr<ProgressSnapshot> Take(const ProgressPageWords& words, const std::string& path) {
  if (words.magic != ProgressPageWords::kMagic) {
    return absl::DataLossError(absl::StrCat(path, " is no progress page of this version"));
  }
  ProgressSnapshot snapshot;
  snapshot.owner = {words.generation, words.rank, words.world_size};
  snapshot.pid = words.pid;
  snapshot.phase = static_cast<WorkerPhase>(words.phase.load());
  snapshot.step = words.step;
  snapshot.bucket = words.bucket;
  snapshot.since = TimeOf(words.since);
  for (const auto& record : words.collectives) {
    if (record.sequence == 0) continue;
    snapshot.collectives.push_back({record.sequence, record.step, record.bucket, record.type,
                                    static_cast<CollectiveRecord::State>(record.state.load()),
                                    record.count, TimeOf(record.begin)});
  }
  std::sort(snapshot.collectives.begin(), snapshot.collectives.end(),
            [](const auto& a, const auto& b) { return a.sequence < b.sequence; });
  return snapshot;
}

}  // namespace

std::string ProgressPagePath(const std::string& directory, uint64_t generation, int rank) {
  return absl::StrCat(directory, "/progress_", generation, "_", rank, ".page");
}

std::string ProgressFilePath(const std::string& directory, uint64_t generation, int rank) {
  return absl::StrCat(directory, "/progress_", generation, "_", rank, ".touch");
}

std::string StackFilePath(const std::string& directory, uint64_t generation, int rank) {
  return absl::StrCat(directory, "/stacks_", generation, "_", rank, ".txt");
}

std::string CheckpointFilePath(const std::string& directory, uint64_t generation) {
  return absl::StrCat(directory, "/checkpoint.", generation);
}

std::string CheckpointMemoryPath(const std::string& directory) { return directory + "/memory"; }

absl::StatusOr<ProgressSnapshot> ReadProgressPage(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT) {
    return absl::NotFoundError(absl::StrCat("there is no progress page ", path));
  }
  if (fd < 0) {
    return absl::InternalError(absl::StrCat("progress page ", path, ": open: ", strerror(errno)));
  }
  alignas(ProgressPageWords) char bytes[kProgressPageBytes];
  struct stat info = {};
  const bool right_size = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
                          info.st_size == static_cast<off_t>(kProgressPageBytes) &&
                          pread(fd, bytes, sizeof(bytes), 0) == static_cast<ssize_t>(sizeof(bytes));
  close(fd);
  if (!right_size) {
    return absl::DataLossError(
        absl::StrCat(path, " is no progress page: it has not ", kProgressPageBytes, " bytes"));
  }
  return Take(*reinterpret_cast<const ProgressPageWords*>(bytes), path);
}

std::string PhaseText(WorkerPhase phase, int bucket) {
  switch (phase) {
    case WorkerPhase::kStarting:
      return "starts";
    case WorkerPhase::kForward:
      return "is in the forward pass";
    case WorkerPhase::kBackward:
      return "is in the backward pass";
    case WorkerPhase::kWaiting:
      return absl::StrCat("waits for bucket ", bucket);
    case WorkerPhase::kBetween:
      return "is done with it and has not begun the next";
    case WorkerPhase::kFailed:
      return "has failed";
  }
  return "is in an unknown phase";
}

std::string Describe(const ProgressSnapshot& snapshot, MonoTime now) {
  const absl::Duration age = absl::Trunc(now - snapshot.since, absl::Milliseconds(100));
  return absl::StrCat("rank ", snapshot.owner.rank, " (pid ", snapshot.pid, "): step ",
                      snapshot.step, ", ", PhaseText(snapshot.phase, snapshot.bucket), " since ",
                      absl::FormatDuration(age));
}

}  // namespace cadre
