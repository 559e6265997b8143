// Connects the ranks of a world or of a group by a communicator; and Spawn(), which starts them
// first.
#include "cadre/connect.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/keyed_digest.h"
#include "base/status_macros.h"
#include "cadre/spawn.h"
#include "worker_runtime/backend/group.h"
#include "worker_runtime/backend/operation_thread.h"
#include "worker_runtime/backend/solo_communicator.h"
#include "worker_runtime/environment/read_launch.h"
#include "worker_runtime/hierarchical/hierarchical_communicator.h"
#include "worker_runtime/launched/spawn_processes.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/store/group_worker.h"

namespace cadre {
namespace {

// Group names in keys are hashed to this size: the list of a large group's ranks would exceed the
// limit of keys.
constexpr size_t kGroupNameBytes = 16;

// This rank's number within the group.
Result<int> OwnNumber(const WorkerPlace& place, const std::vector<int>& ranks) {
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return InvalidArgumentError(
        absl::StrCat("a rank comes twice in the group of ranks ", absl::StrJoin(ranks, ", ")));
  }
  const auto own = std::find(ranks.begin(), ranks.end(), place.rank);
  if (own == ranks.end() || sorted.front() < 0 || sorted.back() >= place.world_size) {
    return InvalidArgumentError(absl::StrCat(
        "rank ", place.rank, " of ", place.world_size, " connects the group of ranks ",
        absl::StrJoin(ranks, ", "), ": it must be among them, and all below the world's size"));
  }
  return static_cast<int>(own - ranks.begin());
}

// Returns the node of each rank of the group, which the ranks exchange.
Result<std::vector<int>> NodesOf(Worker& group, int own, const std::vector<int>& ranks,
                                 const CommunicatorOptions& options) {
  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  RETURN_IF_ERROR(group.Set(absl::StrCat("node/", own), absl::StrCat(group.place().node_rank)));
  std::vector<int> nodes;
  for (size_t member = 0; member < ranks.size(); ++member) {
    const auto left = std::max<std::chrono::nanoseconds>(
        deadline - std::chrono::steady_clock::now(), std::chrono::milliseconds(1));
    const Result<std::string> node = group.Get(absl::StrCat("node/", member), left);
    if (node.status().code() == StatusCode::kDeadlineExceeded) {
      return DeadlineExceededError(absl::StrCat(
          "connecting communicator \"", options.name, "\" of ranks ", absl::StrJoin(ranks, ", "),
          ": rank ", ranks[member], " of the world did not come"));
    }
    RETURN_IF_ERROR(node.status());
    nodes.emplace_back();
    if (!absl::SimpleAtoi(*node, &nodes.back())) {
      return InternalError(absl::StrCat("'", *node, "' is no node's rank"));
    }
  }
  return nodes;
}

// Throws std::system_error if no thread can be started for its operations.
Result<std::unique_ptr<Communicator>> ConnectBackend(Worker& worker,
                                                     const CommunicatorOptions& options) {
  const char* const variable = std::getenv("CADRE_CPU_BACKEND");
  const absl::string_view backend = variable == nullptr ? "" : variable;
  if (backend != "" && backend != "sockets" && backend != "shared_memory") {
    return InvalidArgumentError(absl::StrCat(
        "CADRE_CPU_BACKEND is '", backend, "'; it may be sockets or shared_memory, or not be set"));
  }
  const WorkerPlace& place = worker.place();
  if (place.world_size == 1) return backend::MakeSoloCommunicator();
  if (backend == "sockets") return sockets::ConnectSockets(worker, options);
  if (backend == "shared_memory") return shared_memory::ConnectSharedMemory(worker, options);
  // With one rank per node there are no transfers within a node.
  if (place.nodes == place.world_size) return sockets::ConnectSockets(worker, options);
  if (place.nodes > 1) return hierarchical::ConnectHierarchical(worker, options);
  if (place.world_size > shared_memory::kMaxSharedMemoryRanks) {
    return sockets::ConnectSockets(worker, options);
  }
  return shared_memory::ConnectSharedMemory(worker, options);
}

}  // namespace

Result<World> Connect(const CommunicatorOptions& options) {
  World world;
  ASSIGN_OR_RETURN(world.worker, Worker::Connect());
  ASSIGN_OR_RETURN(world.communicator, ConnectCommunicator(*world.worker, options));
  return world;
}

Result<std::unique_ptr<Communicator>> ConnectCommunicator(Worker& worker,
                                                          const CommunicatorOptions& options) {
  try {
    return ConnectBackend(worker, options);
  } catch (const std::system_error& error) {
    return backend::NoThreadError(worker.place().rank, error);
  }
}

Result<std::unique_ptr<Communicator>> ConnectGroup(Worker& worker, Span<const int> ranks,
                                                   const CommunicatorOptions& options) {
  const std::vector<int> members(ranks.begin(), ranks.end());
  ASSIGN_OR_RETURN(const int own, OwnNumber(worker.place(), members));
  const std::string name = absl::StrCat(
      "group/", absl::BytesToHexString(
                    KeyedDigest("group", absl::StrJoin(members, " ")).substr(0, kGroupNameBytes)));
  store::GroupWorker outside(&worker, name, worker.place());
  ASSIGN_OR_RETURN(const std::vector<int> nodes, NodesOf(outside, own, members, options));
  const WorkerPlace place = backend::PlaceOfMember(nodes, own, worker.place());
  store::GroupWorker group(&worker, name, place);
  return ConnectCommunicator(group, options);
}

namespace {

using launched::Outcome;
using launched::SpawnChild;

const char* GetEnvironment(const char* name) { return getenv(name); }

// The calls of Spawn() in this process.
struct Calls {
  std::mutex mutex;
  bool running = false;
  // The outcomes of the calls that have returned.
  std::vector<Outcome> outcomes;
  // Set if Spawn() started this process.
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
        "Spawn() was called for ", child.assignment().ranks,
        " ranks, but the process of one of them calls it for ", ranks,
        ": each process runs the program from its start, and must come to the same call"));
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

// Called in a process that was started: nullopt if it must run `body`.
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
          "ranks: a rank cannot call Spawn()");
    }
    if (!calls.child.has_value() && launched::IsSpawned(GetEnvironment)) {
      calls.child = SpawnChild::Make(GetEnvironment);
    }
    if (calls.child.has_value()) {
      const std::optional<Status> skipped = SkipEarlierCall(calls);
      if (skipped.has_value()) return *skipped;
    } else {
      const std::string who = environment::DescribeRankSource(GetEnvironment);
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
