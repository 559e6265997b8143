// A directory of checkpoints that stays consistent after a crash at any moment:
//
//   DIR/step_418_g3/{data,manifest}   one checkpoint, of step 418, made in generation 3
//   DIR/LATEST                        the name of the newest one, written last
//   DIR/.tmp_g3_...                   not finished, or left behind; the next save removes it
//
// Framework-free: a checkpoint is one file that the program writes and reads, plus any files that
// the program adds beside it.
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
  // Absent if there is no checkpoint.
  std::optional<Checkpoint> checkpoint;
  // One human-readable line if newer checkpoints were skipped because they are damaged.
  std::string warning;
};

// One process saves at a time; any number may read.
class CheckpointDirectory {
 public:
  // Writes the checkpoint to `path`, which does not exist yet, in a folder that belongs to this
  // checkpoint. Other files written to that folder become visible with it; the writer must sync
  // them.
  using Writer = std::function<Status(const std::string& path)>;
  // Called right before the checkpoint becomes visible; an error means that nothing may be changed
  // any more.
  using Fence = std::function<Status()>;

  // Keeps the newest `keep` checkpoints, at least 2, since a damaged newest one falls back to the
  // one before. With an empty name every save and every search fails with INVALID_ARGUMENT.
  explicit CheckpointDirectory(std::string directory, int keep = 2);

  const std::string& directory() const { return directory_; }

  // Creates the directory if it is missing. On failure, existing checkpoints are unchanged. Saving
  // a step again replaces it.
  Status Save(int64_t step, uint64_t generation, const Writer& writer, const Fence& fence) const;

  // Returns the newest checkpoint whose data is intact, found by reading it.
  Result<NewestCheckpoint> FindNewest() const;

  // All checkpoints, damaged ones included, in the order in which FindNewest() tries them: the one
  // named by LATEST, older ones, and then newer ones. Sets `warning` if LATEST itself is damaged.
  Result<std::vector<Checkpoint>> Candidates(std::string* warning) const;
  // Returns the first of `candidates` whose data is intact. Removes it and those before it from
  // `candidates`, and adds what is wrong with the latter to `warning`. nullopt: there are none, and
  // nothing is wrong. DATA_LOSS, describing the damage: no intact one is left.
  Result<std::optional<Checkpoint>> NextWhole(std::vector<Checkpoint>* candidates,
                                              std::string* warning) const;

  // Fails with DATA_LOSS, describing the damage, or NOT_FOUND. Reads the data only if `read_data`
  // is set.
  Result<Checkpoint> Check(const std::string& name, bool read_data) const;

  // For example "step_418_g3".
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
