#include "cadre/connect.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/keyed_digest.h"
#include "base/status_macros.h"
#include "worker_runtime/backend/member_place.h"
#include "worker_runtime/backend/operation_thread.h"
#include "worker_runtime/backend/solo_communicator.h"
#include "worker_runtime/hierarchical/hierarchical_communicator.h"
#include "worker_runtime/shared_memory/limits.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/store/group_worker.h"

namespace cadre {
namespace {

// Keys have a limit, which the ranks of a large group would pass.
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

// The node of each rank of the group, as they tell each other.
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

// std::system_error where no thread can be started for its operations.
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
  // With one rank on each node there is nothing to do within a node.
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

}  // namespace cadre
