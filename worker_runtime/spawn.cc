#include "cadre/spawn.h"

#include <stdlib.h>

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker_runtime/environment/read_launch.h"
#include "worker_runtime/launched/spawn_child.h"
#include "worker_runtime/launched/spawn_messages.h"
#include "worker_runtime/launched/spawn_parent.h"

namespace cadre {
namespace {

using launched::Outcome;
using launched::SpawnChild;

const char* GetEnvironment(const char* name) { return getenv(name); }

// Of this process.
struct Calls {
  std::mutex mutex;
  bool running = false;
  // What those that have returned came to.
  std::vector<Outcome> outcomes;
  // Where Spawn() started this process.
  std::optional<Result<SpawnChild>> child;
};

Calls& AllCalls() {
  static Calls& calls = *new Calls;
  return calls;
}

// Ends the process.
[[noreturn]] void RunRank(const SpawnChild& child, int ranks,
                          const std::function<Status(World&)>& body, const SpawnOptions& options) {
  Status status;
  if (ranks != child.assignment().ranks) {
    status = InvalidArgumentError(absl::StrCat(
        "Spawn() was called for ", child.assignment().ranks, " ranks, and comes to ", ranks,
        " in the process of one: what stands before it must lead there in every process"));
  } else {
    World world;
    world.worker = child.MakeWorker();
    Result<std::unique_ptr<Communicator>> communicator =
        ConnectCommunicator(*world.worker, options.communicator);
    status = communicator.status();
    if (communicator.ok()) {
      world.communicator = *std::move(communicator);
      status = body(world);
    }
    world.communicator.reset();
  }
  child.Report(status);
  std::exit(status.ok() ? EXIT_SUCCESS : EXIT_FAILURE);
}

// Of a process that was started: nullopt where `body` is to be run by it.
std::optional<Status> SkipEarlierCall(Calls& calls) {
  if (!calls.child->ok()) return calls.child->status();
  const std::vector<Outcome>& earlier = (*calls.child)->assignment().earlier;
  if (calls.outcomes.size() >= earlier.size()) return std::nullopt;
  calls.outcomes.push_back(earlier[calls.outcomes.size()]);
  return calls.outcomes.back().status();
}

}  // namespace

Status Spawn(int ranks, const std::function<Status(World& world)>& body,
             const SpawnOptions& options) {
  if (ranks < 1 || ranks > kMaxSpawnedRanks) {
    return InvalidArgumentError(
        absl::StrCat("Spawn() starts 1 to ", kMaxSpawnedRanks, " ranks, not ", ranks));
  }
  if (body == nullptr) return InvalidArgumentError("Spawn() needs a function to run");
  Calls& calls = AllCalls();
  std::vector<Outcome> earlier;
  {
    const std::lock_guard<std::mutex> lock(calls.mutex);
    if (calls.running) {
      return FailedPreconditionError(
          "Spawn() is called while another call of it runs in this process, or by one of its "
          "ranks: a rank starts no ranks");
    }
    if (!calls.child.has_value() && launched::IsSpawned(GetEnvironment)) {
      calls.child = SpawnChild::Make(GetEnvironment);
    }
    if (calls.child.has_value()) {
      const std::optional<Status> skipped = SkipEarlierCall(calls);
      if (skipped.has_value()) return *skipped;
    } else {
      const std::string who = environment::WhoGaveARank(GetEnvironment);
      if (!who.empty()) {
        return FailedPreconditionError(absl::StrCat(
            who,
            " gave this process a rank already: call Connect() (cadre/connect.h) instead of "
            "Spawn(), or start the program without a launcher"));
      }
    }
    if (calls.outcomes.size() >= launched::kSpawnCallsMax) {
      return ResourceExhaustedError(
          absl::StrCat("a process calls Spawn() ", launched::kSpawnCallsMax, " times at most"));
    }
    calls.running = true;
    earlier = calls.outcomes;
  }
  if (calls.child.has_value()) RunRank(**calls.child, ranks, body, options);
  const Status status = launched::SpawnAll(ranks, earlier, options.grace);
  const std::lock_guard<std::mutex> lock(calls.mutex);
  calls.running = false;
  calls.outcomes.push_back(Outcome::Of(status, launched::kEarlierBytesMax));
  return status;
}

}  // namespace cadre
