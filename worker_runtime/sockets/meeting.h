// How the ranks of a communicator find each other, through the store or through the communicator
// from which they are split, and connect every two of them, with one connection for each purpose.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_MEETING_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_MEETING_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/scoped_fd.h"
#include "base/time.h"
#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/span.h"
#include "cadre/worker.h"
#include "worker_runtime/sockets/call_watch.h"
#include "worker_runtime/sockets/handshake.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::sockets {

// Indexed by rank; this rank's own entry is empty.
using Mesh = std::map<Purpose, std::vector<wire::Connection>>;

// The limit of unauthenticated connections beyond those of the missing ranks. Beyond it a new one
// replaces the oldest that has sent nothing, or else the oldest of all.
inline constexpr size_t kMaxPendingConnections = 64;
// An unauthenticated connection is closed after this time.
inline constexpr absl::Duration kHandshakeTimeout = absl::Seconds(10);

struct MeshRequest {
  int rank = 0;
  int size = 0;
  // The key is known to these ranks only.
  HandshakeParameters parameters;
  std::vector<Purpose> purposes;
  // The endpoints of all ranks, each of which is already listening.
  std::vector<std::string> endpoints;
  MonoTime deadline;
  // Called every second while a rank is not connected; an error ends the wait.
  std::function<Status()> check;
};

// All ranks call this. Each connects to all lower ranks, which accept with `listener`.
// Unauthenticated connections are refused; a rank that lost its place to one connects again.
//   UNAVAILABLE        a rank cannot be reached; the text says which, where and why
//   RESOURCE_EXHAUSTED this process may open no more descriptors
//   PERMISSION_DENIED  the process at a rank's endpoint does not know the key
//   FAILED_PRECONDITION  one of two ranks encrypts, the other does not; names both
//   DEADLINE_EXCEEDED  the text names the missing ranks
Result<Mesh> ConnectMesh(const MeshRequest& request, const ScopedFd& listener);

constexpr size_t kMaxCommunicatorName = 100;

struct ConnectedRanks {
  Mesh mesh;
  // A secret of exactly the ranks that met, from which communicators split from them derive theirs.
  std::string key;
};

// All ranks of the worker's world must call this equally often with the same name. Errors are those
// of ConnectMesh() and the store; INVALID_ARGUMENT: the name's length.
Result<ConnectedRanks> MeetInStore(Worker& worker, const std::string& name,
                                   Span<const Purpose> purposes, std::chrono::nanoseconds timeout);

// Connects only the control connections, on which ranks report their calls.
Result<std::unique_ptr<PeerLinks>> ConnectPeerLinks(Worker& worker, const std::string& name,
                                                    std::chrono::nanoseconds timeout);

struct PairMeeting {
  // Unique to this pair and meeting.
  std::string name;
  // This process's rank in the pair: 0 or 1.
  int rank = 0;
  MonoTime deadline;
  // See MeshRequest::check.
  std::function<Status()> check;
  // Returns the value of a store key once it exists, or an error.
  std::function<Result<std::string>(const std::string& key)> await;
};
// Connects two ranks of the world. Errors name ranks by their number within the pair.
Result<wire::Connection> MeetPair(Worker& worker, const PairMeeting& pair);

struct GroupMeeting {
  // The parent's ranks in this rank's group, by rank in the group; empty if it is in no group.
  std::vector<int> members;
  // Known only to the parent's ranks, and unique to this split.
  std::string key;
  std::string address;  // this node's address for the others
  std::chrono::nanoseconds timeout{};
  // See MeshRequest::check.
  std::function<Status()> check;
};
// All ranks of `parent` must call this, also those in no group or alone in theirs, which get no
// mesh. Errors name ranks by their number within the group.
Result<ConnectedRanks> MeetInGroup(Communicator& parent, const GroupMeeting& group,
                                   Span<const Purpose> purposes);

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_MEETING_H_
