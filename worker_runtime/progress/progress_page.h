// How a worker reports its position: on one page of a memory-mapped file, and in lines to the
// launcher. Writing the page costs only a few stores, and any process on the node can read it while
// the worker runs, when it is stopped, and after its death.
#ifndef CADRE_WORKER_RUNTIME_PROGRESS_PROGRESS_PAGE_H_
#define CADRE_WORKER_RUNTIME_PROGRESS_PROGRESS_PAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/progress_snapshot.h"
#include "base/time.h"
#include "cadre/communicator.h"
#include "cadre/result.h"

namespace cadre::progress {

// Writes progress lines for the launcher to the descriptor that it passed to this process. Never
// blocks, never fails: a line that does not fit is dropped.

// Reports that follow the last one sooner than this are dropped.
constexpr absl::Duration kMinProgressInterval = absl::Milliseconds(100);

// Thread safe.
class ProgressWriter {
 public:
  // Writes to `fd`, which stays open and is not owned. Anything but a pipe or a socket is ignored:
  // the number is then stale and refers to another file of this process.
  explicit ProgressWriter(int fd);

  // "step=418 samples_per_second=1234.5 loss=0.25\n"
  void Report(MonoTime now, int64_t step, double samples_per_second, double loss);

 private:
  absl::Mutex mutex_;
  int fd_ ABSL_GUARDED_BY(mutex_);
  bool wrote_ ABSL_GUARDED_BY(mutex_) = false;
  MonoTime last_ ABSL_GUARDED_BY(mutex_);
};

// Thread safe: every word is stored atomically. A reader may see a collective half of whose words
// belong to the one before.
class ProgressPage {
 public:
  // Creates the worker's page in `directory`, which all workers of the node share. The file is
  // removed when this object is destroyed, and stays if the process dies.
  static Result<std::unique_ptr<ProgressPage>> Create(const std::string& directory,
                                                      const PageOwner& owner);
  // Creates the page in the agent's directory; returns null without an agent.
  static Result<std::unique_ptr<ProgressPage>> CreateNextToAgent(const PageOwner& owner);
  // The page of this process, by RANK, WORLD_SIZE and CADRE_GENERATION: created by the first call
  // and shared by all callers. Null without an agent, or if it cannot be created, since training
  // does not depend on it.
  static std::shared_ptr<ProgressPage> OfThisWorker();
  // Makes this process that rank of that generation, whatever its environment says: the next call
  // of OfThisWorker() creates another page.
  static void MoveThisWorker(const PageOwner& owner);
  ~ProgressPage();
  ProgressPage(const ProgressPage&) = delete;
  ProgressPage& operator=(const ProgressPage&) = delete;

  void Enter(WorkerPhase phase, int64_t step, int bucket = -1);
  // Records the start of a bucket's all-reduce; returns its number for End().
  uint64_t Begin(int64_t step, int bucket, const Buffer& buffer);
  void End(uint64_t sequence, bool ok);

  // One line about every rank of this generation that has a page here, separated by "; ".
  std::string DescribeAll() const;
  const std::string& path() const { return path_; }

 private:
  ProgressPage(std::string directory, std::string path, const PageOwner& owner,
               ProgressPageWords* words)
      : directory_(std::move(directory)), path_(std::move(path)), owner_(owner), words_(words) {}

  const std::string directory_;
  const std::string path_;
  const PageOwner owner_;
  ProgressPageWords* const words_;
};

}  // namespace cadre::progress

#endif  // CADRE_WORKER_RUNTIME_PROGRESS_PROGRESS_PAGE_H_
