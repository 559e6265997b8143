// One page of a file into which a worker writes where it is. It costs nothing but a few stores, and
// can be read by anybody on the node while the worker runs, when it is stopped, and after its
// death.
#ifndef CADRE_WORKER_RUNTIME_PROGRESS_PAGE_H_
#define CADRE_WORKER_RUNTIME_PROGRESS_PAGE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/time.h"
#include "worker_runtime/communicator.h"

namespace cadre {

inline constexpr size_t kProgressPageBytes = 4096;
// Collectives that the page remembers.
inline constexpr size_t kCollectivesInPage = 64;

enum class WorkerPhase : uint32_t { kStarting, kForward, kBackward, kWaiting, kBetween, kFailed };

// Whose page it is.
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
  DataType type = DataType::kFloat32;
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
  // When the phase began.
  MonoTime since;
  // Oldest first.
  std::vector<CollectiveRecord> collectives;
};

// Thread safe: every word is stored at once. A reader may see a collective of which half is of the
// one before.
class ProgressPage {
 public:
  // The worker's page in `directory`, which all workers of the node share. The file goes when this
  // does, and stays when the process dies.
  static absl::StatusOr<std::unique_ptr<ProgressPage>> Create(const std::string& directory,
                                                              const PageOwner& owner);
  // In the agent's directory; null without an agent.
  static absl::StatusOr<std::unique_ptr<ProgressPage>> CreateNextToAgent(const PageOwner& owner);
  ~ProgressPage();
  ProgressPage(const ProgressPage&) = delete;
  ProgressPage& operator=(const ProgressPage&) = delete;

  void Enter(WorkerPhase phase, int64_t step, int bucket = -1);
  // An all-reduce of a bucket; returns its number for End().
  uint64_t Begin(int64_t step, int bucket, const Buffer& buffer);
  void End(uint64_t sequence, bool ok);

  // One line about every rank of this generation with a page here, "; " between them.
  std::string DescribeAll() const;
  const std::string& path() const { return path_; }

 private:
  struct Words;

  ProgressPage(std::string directory, std::string path, const PageOwner& owner, Words* words)
      : directory_(std::move(directory)), path_(std::move(path)), owner_(owner), words_(words) {}

  friend absl::StatusOr<ProgressSnapshot> ReadProgressPage(const std::string& path);

  const std::string directory_;
  const std::string path_;
  const PageOwner owner_;
  Words* const words_;
};

std::string ProgressPagePath(const std::string& directory, uint64_t generation, int rank);

// NOT_FOUND: there is no such file. DATA_LOSS: it is no such page; says why.
absl::StatusOr<ProgressSnapshot> ReadProgressPage(const std::string& path);

// "rank 1 (pid 17): step 418, waits for bucket 2 since 41 s".
std::string Describe(const ProgressSnapshot& snapshot, MonoTime now);

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_PROGRESS_PAGE_H_
