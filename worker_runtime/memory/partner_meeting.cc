#include "worker_runtime/memory/partner_meeting.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/sockets/meeting.h"

namespace cadre::memory {
namespace {

constexpr absl::Duration kSlice = absl::Seconds(1);

Result<std::string> Await(Worker& worker, const std::string& key, const Waiting& waiting) {
  while (true) {
    RETURN_IF_ERROR(waiting.check());
    const absl::Duration left = waiting.deadline - MonoNow();
    const absl::Duration slice = std::clamp(left, absl::ZeroDuration(), kSlice);
    Result<std::string> value = worker.Get(key, absl::ToChronoNanoseconds(slice));
    const bool is_late = value.status().code() == StatusCode::kDeadlineExceeded ||
                         value.status().code() == StatusCode::kNotFound;
    if (!is_late || left <= kSlice) return value;
  }
}

std::string SizeKey(int node) { return absl::StrCat("memory/ranks of node/", node); }

Result<int> SizeOfNode(Worker& worker, int node, const Waiting& waiting) {
  ASSIGN_OR_RETURN(const std::string text, Await(worker, SizeKey(node), waiting));
  int size = 0;
  if (!absl::SimpleAtoi(text, &size) || size < 1) {
    return InternalError(absl::StrCat("node ", node, " has '", text, "' ranks"));
  }
  return size;
}

}  // namespace

Result<Neighbours> FindNeighbours(Worker& worker, const Waiting& waiting) {
  const WorkerPlace& place = worker.place();
  if (place.local_rank == 0) {
    RETURN_IF_ERROR(worker.Set(SizeKey(place.node_rank), absl::StrCat(place.local_world_size)));
  }
  const int next = (place.node_rank + 1) % place.nodes;
  const int previous = (place.node_rank + place.nodes - 1) % place.nodes;
  ASSIGN_OR_RETURN(const int next_size, SizeOfNode(worker, next, waiting));
  ASSIGN_OR_RETURN(const int previous_size, SizeOfNode(worker, previous, waiting));
  return NeighboursOf(place, next_size, previous_size);
}

Result<wire::Connection> MeetPartner(Worker& worker, int sender, int keeper, int64_t opening,
                                     const Waiting& waiting) {
  const bool is_sender = worker.rank() == sender;
  const sockets::PairMeeting pair = {
      absl::StrCat("memory/partner/", sender, "/", opening), is_sender ? 1 : 0, waiting.deadline,
      waiting.check, [&](const std::string& key) { return Await(worker, key, waiting); }};
  Result<wire::Connection> connection = sockets::MeetPair(worker, pair);
  if (connection.ok()) return connection;
  return Status(connection.status().code(), absl::StrCat("rank ", is_sender ? keeper : sender,
                                                         " of the partner node did not connect: ",
                                                         connection.status().message()));
}

}  // namespace cadre::memory
