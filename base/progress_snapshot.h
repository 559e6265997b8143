// What a worker wrote into its progress page (worker_runtime/progress/progress_page.h), as anybody
// on the node reads it: while the worker runs, when it is stopped, and after its death. Any thread.
#ifndef CADRE_BASE_PROGRESS_SNAPSHOT_H_
#define CADRE_BASE_PROGRESS_SNAPSHOT_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/time.h"

namespace cadre {

inline constexpr size_t kProgressPageBytes = 4096;
// Collectives that the page remembers.
inline constexpr size_t kCollectivesInPage = 64;

enum class WorkerPhase : uint32_t { kStarting, kForward, kBackward, kWaiting, kBetween, kFailed };

// The worker whose page it is.
struct PageOwner {
  uint64_t generation = 0;
  int rank = 0;
  int world_size = 1;
};

struct CollectiveRecord {
  enum class State : uint32_t { kRunning, kDone, kFailed };
  uint64_t sequence = 0;  // counts from 1
  int64_t step = 0;
  int bucket = -1;
  uint32_t type = 0;  // worker_runtime's DataType
  State state = State::kRunning;
  uint64_t count = 0;
  MonoTime begin;
};

struct ProgressSnapshot {
  PageOwner owner;
  int pid = 0;
  WorkerPhase phase = WorkerPhase::kStarting;
  int64_t step = 0;
  // Of kWaiting; else -1.
  int bucket = -1;
  // When the phase began, on the machine's CLOCK_MONOTONIC.
  MonoTime since;
  // Oldest first.
  std::vector<CollectiveRecord> collectives;
};

// The page as it lies in the file. Each word is stored at once, with no order between them.
struct ProgressPageWords {
  static constexpr uint64_t kMagic = 0x0167617050726443;  // "CdrPpag", format 1

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
static_assert(sizeof(ProgressPageWords) <= kProgressPageBytes, "all of it is in one page");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");

std::string ProgressPagePath(const std::string& directory, uint64_t generation, int rank);
// CADRE_PROGRESS_FILE of a worker: any program shows progress by touching it.
std::string ProgressFilePath(const std::string& directory, uint64_t generation, int rank);
// CADRE_STACK_FILE of a worker: a Python program's stacks, when its agent asks for them.
std::string StackFilePath(const std::string& directory, uint64_t generation, int rank);

// Appears in that directory when the generation's workers are to save and begin the next one
// (CADRE_CHECKPOINT_FILE).
std::string CheckpointFilePath(const std::string& directory, uint64_t generation);

// A folder in memory in which the workers of that directory's agent may keep checkpoints, over all
// generations (CADRE_CHECKPOINT_MEMORY).
std::string CheckpointMemoryPath(const std::string& directory);

// Takes microseconds and does not map the file: what its owner does to it cannot hurt the reader.
// NOT_FOUND: there is no such file. DATA_LOSS: it is no such page; says why.
absl::StatusOr<ProgressSnapshot> ReadProgressPage(const std::string& path);

// "waits for bucket 2", "is in the forward pass".
std::string PhaseText(WorkerPhase phase, int bucket);

// "rank 1 (pid 17): step 418, waits for bucket 2 since 41 s".
std::string Describe(const ProgressSnapshot& snapshot, MonoTime now);

}  // namespace cadre

#endif  // CADRE_BASE_PROGRESS_SNAPSHOT_H_
