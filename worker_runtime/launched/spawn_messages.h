// What a process that calls Spawn() and those that it started say to each other, over a socket
// between the two: one frame (rpc/frames) each way.
#ifndef CADRE_WORKER_RUNTIME_LAUNCHED_SPAWN_MESSAGES_H_
#define CADRE_WORKER_RUNTIME_LAUNCHED_SPAWN_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cadre/status.h"

namespace cadre::launched {

// "FD PID": the socket, and the process that started this one, which tells it from processes that
// this one starts itself.
inline constexpr char kSpawnedVariable[] = "CADRE_SPAWNED";
// Of one frame: a socket takes as much without a reader.
inline constexpr size_t kSpawnFrameBytesMax = 64 << 10;
// Of the text of an outcome, and of one that is handed on to processes of later calls.
inline constexpr size_t kOutcomeBytesMax = 4096;
inline constexpr size_t kEarlierBytesMax = 128;
// Calls of Spawn() by one process.
inline constexpr size_t kSpawnCallsMax = 256;

// What a call of Spawn(), or one rank's part in it, came to.
struct Outcome {
  int32_t code = 0;
  std::string message;

  static Outcome Of(const Status& status, size_t limit = kOutcomeBytesMax) {
    return {static_cast<int32_t>(status.code()), std::string(status.message().substr(0, limit))};
  }
  Status status() const { return Status(static_cast<StatusCode>(code), message); }
};
template <typename Io>
void Fields(Io& io, Outcome& m) {
  io(m.code, m.message);
}

// The caller's to each process. Its answer is the rank's Outcome.
struct Assignment {
  int32_t rank = 0;
  int32_t ranks = 0;
  // Of the store that the caller serves.
  std::string endpoint;
  std::string key;
  // The calls of Spawn() before the one that is meant.
  std::vector<Outcome> earlier;
};
template <typename Io>
void Fields(Io& io, Assignment& m) {
  io(m.rank, m.ranks, m.endpoint, m.key, m.earlier);
}

}  // namespace cadre::launched

#endif  // CADRE_WORKER_RUNTIME_LAUNCHED_SPAWN_MESSAGES_H_
