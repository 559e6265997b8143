// A snapshot of a worker's progress page (worker_runtime/progress/progress_page.h). Any process of
// the node may read one: while the worker runs, when it is stopped, and after its death. Any
// thread.
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
// The page keeps the records of this many collectives.
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
  // Set in phase kWaiting; otherwise -1.
  int bucket = -1;
  // When the phase began, on the machine's CLOCK_MONOTONIC.
  MonoTime since;
  // Oldest first.
  std::vector<CollectiveRecord> collectives;
};

// The page as it is laid out in the file. Each word is stored atomically; there is no order between
// words.
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
// The path of CADRE_PROGRESS_FILE: any program reports progress by touching that file.
std::string ProgressFilePath(const std::string& directory, uint64_t generation, int rank);
// The path of CADRE_STACK_FILE: a Python worker writes its stacks there when its agent asks for
// them.
std::string StackFilePath(const std::string& directory, uint64_t generation, int rank);

// The path of CADRE_CHECKPOINT_FILE. The file appears when the workers of the generation should
// save a checkpoint and begin the next generation.
std::string CheckpointFilePath(const std::string& directory, uint64_t generation);

// The path of CADRE_CHECKPOINT_MEMORY: a directory in memory in which the workers of an agent may
// keep checkpoints across generations.
std::string CheckpointMemoryPath(const std::string& directory);

// Takes microseconds. The file is read and not mapped, so that its owner cannot crash the reader by
// truncating it. NOT_FOUND: there is no such file. DATA_LOSS: the file is no such page; the message
// says why.
absl::StatusOr<ProgressSnapshot> ReadProgressPage(const std::string& path);

// "waits for bucket 2", "is in the forward pass".
std::string PhaseText(WorkerPhase phase, int bucket);

// "rank 1 (pid 17): step 418, waits for bucket 2 since 41 s".
std::string Describe(const ProgressSnapshot& snapshot, MonoTime now);

}  // namespace cadre

#endif  // CADRE_BASE_PROGRESS_SNAPSHOT_H_
