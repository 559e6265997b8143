// The part of Spawn() (include/cadre/spawn.h) of the process that calls it.
#ifndef CADRE_WORKER_RUNTIME_LAUNCHED_SPAWN_PARENT_H_
#define CADRE_WORKER_RUNTIME_LAUNCHED_SPAWN_PARENT_H_

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cadre/status.h"
#include "worker_runtime/launched/spawn_messages.h"

namespace cadre::launched {

// How one rank ended.
struct RankEnd {
  int rank = 0;
  pid_t pid = 0;
  std::string how;  // "exited with status 3"
  // What it said that its part came to; nullopt: nothing.
  std::optional<Outcome> outcome;
};

// OK, or what the one came to that brought the others down: of those that ended at the same time
// one that said nothing comes first, then one whose error is its own.
Status CauseAmong(const std::vector<RankEnd>& ends);

// Starts the ranks and waits for all of them. `earlier`: what the calls before came to.
Status SpawnAll(int ranks, const std::vector<Outcome>& earlier, std::chrono::nanoseconds grace);

}  // namespace cadre::launched

#endif  // CADRE_WORKER_RUNTIME_LAUNCHED_SPAWN_PARENT_H_
