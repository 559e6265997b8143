// States in a directory that all nodes share, for when all of them are lost:
//
//   DIR/step_418_5f3a90c1/rank-3-of-8_1048576_89abcdef   of that many bytes with that CRC-32C
//   DIR/step_418_5f3a90c1/.tmp-3                         not finished, or left behind
//
// The directory may be anybody's; those of steps and what is in them are this user's or root's
// (base/own_files.h), or are passed over: states are unpickled.
//
// A step is whole once all of its ranks' are there. The token is of one save alone, so that ranks'
// states of two trainings never make one.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_SPILL_DIRECTORY_H_
#define CADRE_WORKER_RUNTIME_MEMORY_SPILL_DIRECTORY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cadre/result.h"
#include "cadre/status.h"
#include "worker_runtime/memory/files/memory_slots.h"

namespace cadre::memory {

inline constexpr int kSpillsKept = 2;

// A step that is whole.
struct Spilled {
  int64_t step = 0;
  std::string name;
};

// Thread safe.
class SpillDirectory {
 public:
  // Of states of `ranks` ranks, this one's is `rank`'s.
  SpillDirectory(std::string path, int rank, int ranks);

  const std::string& path() const { return path_; }

  // Makes the directory if need be. Says what is wrong where nothing can be written there.
  Status Check() const;

  static std::string Name(int64_t step, const std::string& token);
  // nullopt: no such name.
  static std::optional<int64_t> StepOf(const std::string& name);
  // On disk when it returns.
  Status Write(const std::string& name, const char* state, size_t bytes) const;

  // The newest first.
  std::vector<Spilled> Whole() const;
  // The newest step that is whole there, and of how many ranks it is; nullopt: none is.
  std::optional<std::pair<int64_t, int>> Newest() const;
  // Says which step is whole there of another number of ranks, the newest one; empty: none is.
  std::string OfOtherRanks() const;
  // Why a step's directory there does not count: it is another user's, who could have written
  // anything there; empty: none is.
  std::string OfOtherUsers() const;
  // Into `slots`, to be committed. DATA_LOSS: it is not what was written.
  Status Read(const std::string& name, MemorySlots& slots) const;

  // Keeps the newest whole ones, what is newer than these, what has one of these tokens, and states
  // of another number of ranks.
  void RemoveOld(const std::vector<std::string>& recent) const;
  // Of these tokens' what is not whole and what nobody writes. Those of which something is still
  // written.
  std::vector<std::string> RemoveUnfinished(const std::vector<std::string>& tokens) const;

 private:
  std::optional<std::pair<int64_t, int>> NewestBut(int ranks) const;
  std::string Path(const std::string& name) const;

  const std::string path_;
  const int rank_;
  const int ranks_;
};

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_SPILL_DIRECTORY_H_
