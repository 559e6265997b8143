// A directory of checkpoints that is whole after a crash at any moment:
//
//   DIR/step_418_g3/{data,manifest}   one checkpoint, of step 418, made in generation 3
//   DIR/LATEST                        the name of the newest one, written last
//   DIR/.tmp_g3_...                   not finished, or left behind; the next save removes it
//
// Framework-free: a checkpoint is one file that the program writes and reads, with what the program
// puts beside it.
#ifndef CADRE_CHECKPOINT_DIRECTORY_H_
#define CADRE_CHECKPOINT_DIRECTORY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre {

struct Checkpoint {
  int64_t step = 0;
  uint64_t generation = 0;
  std::string path;  // of the data
};

struct NewestCheckpoint {
  // Absent: there is none.
  std::optional<Checkpoint> checkpoint;
  // One line for people when newer checkpoints were passed over because they are damaged.
  std::string warning;
};

// One process saves at a time; any number may read.
class CheckpointDirectory {
 public:
  // Writes the checkpoint to `path`, which does not exist yet, in a folder that is the checkpoint's
  // own. Other files there become visible with it; syncing them is the writer's part.
  using Writer = std::function<Status(const std::string& path)>;
  // Asked right before the checkpoint becomes visible: not OK means that nothing may change any
  // more.
  using Fence = std::function<Status()>;

  // Keeps the newest `keep` checkpoints, at least 2: the one before the newest is what a damaged
  // one falls back to. With an empty name every save and every search is INVALID_ARGUMENT.
  explicit CheckpointDirectory(std::string directory, int keep = 2);

  const std::string& directory() const { return directory_; }

  // Makes the directory if need be. When it fails, what was there before is as it was. A step that
  // is saved again is replaced.
  Status Save(int64_t step, uint64_t generation, const Writer& writer, const Fence& fence) const;

  // The newest one whose data is what was written, found by reading it.
  Result<NewestCheckpoint> FindNewest() const;

  // All there are, whole or not, in the order in which FindNewest() looks at them: LATEST's, those
  // before it, and then those after it. Says in `warning` when LATEST itself is damaged.
  Result<std::vector<Checkpoint>> Candidates(std::string* warning) const;
  // The first of `candidates` whose data is what was written; it is taken off them with those
  // before it, and what is wrong with these is added to `warning`. nullopt: there are none, and
  // nothing is wrong. DATA_LOSS saying what is: no whole one is left.
  Result<std::optional<Checkpoint>> NextWhole(std::vector<Checkpoint>* candidates,
                                              std::string* warning) const;

  // DATA_LOSS saying what is wrong with it; NOT_FOUND. Reads the data only with `read_data`.
  Result<Checkpoint> Check(const std::string& name, bool read_data) const;

  // "step_418_g3".
  static std::string Name(int64_t step, uint64_t generation);

 private:
  std::string Path(std::string_view name) const;
  std::string TemporaryPath(uint64_t generation, std::string_view name) const;
  Status Prepare(uint64_t generation) const;
  Status Write(const std::string& temporary, int64_t step, const Writer& writer) const;
  Status Commit(const std::string& temporary, const std::string& name, uint64_t generation,
                const Fence& fence) const;
  void RemoveOld(const Checkpoint& newest) const;

  const std::string directory_;
  const int keep_;
};

}  // namespace cadre

#endif  // CADRE_CHECKPOINT_DIRECTORY_H_
