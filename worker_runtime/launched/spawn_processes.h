// Spawn() (cadre/spawn.h): what the calling process does, and what the processes do that it starts.
// Each of these is a fresh start of the calling program.
#ifndef CADRE_WORKER_RUNTIME_LAUNCHED_SPAWN_PROCESSES_H_
#define CADRE_WORKER_RUNTIME_LAUNCHED_SPAWN_PROCESSES_H_

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/scoped_fd.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/worker.h"
#include "worker_runtime/environment/worker_environment.h"

namespace cadre::launched {

// The caller and each process that it starts exchange one frame (rpc/frames) each way, over a
// socket between the two.

// "FD PID": the socket, and the parent's process id, by which this process ignores a variable that
// it inherited from a grandparent.
inline constexpr char kSpawnedVariable[] = "CADRE_SPAWNED";
// The most bytes of a frame: a socket buffers as much without a reader.
inline constexpr size_t kSpawnFrameBytesMax = 64 << 10;
// The most bytes of an outcome's text, and of one that is passed to processes of later calls.
inline constexpr size_t kOutcomeBytesMax = 4096;
inline constexpr size_t kEarlierBytesMax = 128;
// The most calls of Spawn() by one process.
inline constexpr size_t kSpawnCallsMax = 256;

// The outcome of a call of Spawn(), or of one rank in it.
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

// Sent by the caller to each process, which answers with the rank's Outcome.
struct Assignment {
  int32_t rank = 0;
  int32_t ranks = 0;
  // The store that the caller serves.
  std::string endpoint;
  std::string key;
  // The outcomes of the calls of Spawn() before the current one.
  std::vector<Outcome> earlier;
};
template <typename Io>
void Fields(Io& io, Assignment& m) {
  io(m.rank, m.ranks, m.endpoint, m.key, m.earlier);
}

// Another process of this program, with the same arguments and environment: a fresh start, so that
// this process's threads, CUDA state and locks are not inherited. An object is used by one thread.
class OwnProcess {
 public:
  // The child finds the other end of socket() by the variable kSpawnedVariable. It is killed when
  // the calling thread ends. RESOURCE_EXHAUSTED: no more processes or descriptors; UNAVAILABLE:
  // /proc does not exist.
  static Result<std::unique_ptr<OwnProcess>> Start();
  // Kills the child if it is still running, and waits until it has ended.
  ~OwnProcess();
  OwnProcess(const OwnProcess&) = delete;
  OwnProcess& operator=(const OwnProcess&) = delete;

  pid_t pid() const { return pid_; }
  int socket() const { return socket_.get(); }
  // Readable when it has ended.
  int pidfd() const { return pidfd_.get(); }
  void Signal(int signal);
  // Describes how the child ended: "exited with status 3", "was ended by signal 9 (SIGKILL)";
  // nullopt: it is still running.
  std::optional<std::string> End();

 private:
  OwnProcess(pid_t pid, ScopedFd pidfd, ScopedFd socket);

  const pid_t pid_;
  const ScopedFd pidfd_;
  const ScopedFd socket_;
  std::optional<std::string> end_;
};

// In the calling process.

// How one rank ended.
struct RankEnd {
  int rank = 0;
  pid_t pid = 0;
  std::string how;  // "exited with status 3"
  // The outcome that it reported; nullopt: none.
  std::optional<Outcome> outcome;
};

// Returns OK, or the error of the rank that caused the others to fail: among those that ended at
// the same time, first one that reported nothing, then one whose error is its own.
Status CauseAmong(const std::vector<RankEnd>& ends);

// Starts the ranks and waits for all of them. `earlier` has the outcomes of the calls before.
Status SpawnAll(int ranks, const std::vector<Outcome>& earlier, std::chrono::nanoseconds grace);

// In the processes that it starts.

// Whether Spawn() started this process.
bool IsSpawned(const environment::GetVariable& get);

class SpawnChild {
 public:
  // Reads the assignment, waiting at most 10 s; may be called once in a process.
  // FAILED_PRECONDITION: not IsSpawned(). UNAVAILABLE: the caller of Spawn() is gone, or sends
  // nothing.
  static Result<SpawnChild> Make(const environment::GetVariable& get);

  const Assignment& assignment() const { return assignment_; }
  // The worker's store is served by the caller of Spawn(); it connects with its first call. All
  // ranks are on this machine.
  std::unique_ptr<Worker> MakeWorker() const;
  // Reports the outcome of this rank to the caller of Spawn().
  void Report(const Status& status) const;

 private:
  SpawnChild(ScopedFd socket, Assignment assignment);

  ScopedFd socket_;
  Assignment assignment_;
};

}  // namespace cadre::launched

#endif  // CADRE_WORKER_RUNTIME_LAUNCHED_SPAWN_PROCESSES_H_
