// One page of a file into which a worker writes where it is. It costs nothing but a few stores, and
// can be read by anybody on the node while the worker runs, when it is stopped, and after its
// death.
#ifndef CADRE_WORKER_RUNTIME_PROGRESS_PROGRESS_PAGE_H_
#define CADRE_WORKER_RUNTIME_PROGRESS_PROGRESS_PAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/progress_snapshot.h"
#include "cadre/communicator.h"
#include "cadre/result.h"

namespace cadre::progress {

// Thread safe: every word is stored at once. A reader may see a collective of which half is of the
// one before.
class ProgressPage {
 public:
  // The worker's page in `directory`, which all workers of the node share. The file goes when this
  // does, and stays when the process dies.
  static Result<std::unique_ptr<ProgressPage>> Create(const std::string& directory,
                                                      const PageOwner& owner);
  // In the agent's directory; null without an agent.
  static Result<std::unique_ptr<ProgressPage>> CreateNextToAgent(const PageOwner& owner);
  // That of this process, as RANK, WORLD_SIZE and CADRE_GENERATION have it: made at the first call
  // and shared by all who hold it. Null without an agent, or where it cannot be made: training does
  // not depend on it.
  static std::shared_ptr<ProgressPage> OfThisWorker();
  // From now on this process is that rank of that generation, whatever its environment says: the
  // next call of OfThisWorker() makes another page.
  static void MoveThisWorker(const PageOwner& owner);
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
