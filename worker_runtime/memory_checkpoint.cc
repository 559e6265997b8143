#include "cadre/memory_checkpoint.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/memory/node_memory.h"
#include "worker_runtime/memory/rank_memory.h"

namespace cadre {
namespace {

Result<std::string> DirectoryOf(const MemoryCheckpointOptions& options) {
  std::string path = options.directory;
  if (path.empty()) {
    const char* const given = std::getenv("CADRE_CHECKPOINT_MEMORY");
    if (given == nullptr || *given == '\0') {
      return FailedPreconditionError(
          "there is no directory in memory for this worker's checkpoints: it was not started by "
          "'cadre run', "
          "and no folder is given");
    }
    path = given;
  }
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) return ErrnoToStatus(errno, path);
  if (!S_ISDIR(found.st_mode) || found.st_uid != geteuid() || (found.st_mode & 022) != 0) {
    return FailedPreconditionError(
        absl::StrCat(path, " must be a folder of this user that no other user may write to"));
  }
  return path;
}

}  // namespace

Result<std::unique_ptr<MemoryCheckpoint>> MemoryCheckpoint::Open(
    Worker& worker, const MemoryCheckpointOptions& options) {
  MemoryCheckpointOptions found = options;
  ASSIGN_OR_RETURN(found.directory, DirectoryOf(options));
  std::unique_ptr<MemoryCheckpoint> memory;
  if (options.replicated) {
    memory = std::make_unique<memory::ReplicatedMemory>(worker, found);
  } else {
    memory = std::make_unique<memory::RankMemory>(worker, found);
  }
  return memory;
}

}  // namespace cadre
