// How the ranks of a communicator find each other: through the store, or through the communicator
// that they are split from.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_MEETING_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_MEETING_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/time.h"
#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/span.h"
#include "cadre/worker.h"
#include "worker_runtime/sockets/mesh.h"
#include "worker_runtime/sockets/peer_links.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::sockets {

constexpr size_t kMaxCommunicatorName = 100;

struct Met {
  Mesh mesh;
  // Known to the ranks that met, and nobody else: for those that are split from them.
  std::string key;
};

// All ranks of the worker's world call it the same number of times with the same name. Errors as
// ConnectMesh() and the store's; INVALID_ARGUMENT: the name.
Result<Met> MeetInStore(Worker& worker, const std::string& name, Span<const Purpose> purposes,
                        std::chrono::nanoseconds timeout);

// Only connections for what ranks say of their calls.
Result<std::unique_ptr<PeerLinks>> ConnectPeerLinks(Worker& worker, const std::string& name,
                                                    std::chrono::nanoseconds timeout);

struct PairMeeting {
  // Of this pair and meeting alone.
  std::string name;
  // 0 and 1.
  int rank = 0;
  MonoTime deadline;
  // As MeshRequest's.
  std::function<Status()> check;
  // A key of the store once it is there, or why not.
  std::function<Result<std::string>(const std::string& key)> await;
};
// One connection between two ranks of the world. Errors count ranks within the pair.
Result<wire::Connection> MeetPair(Worker& worker, const PairMeeting& pair);

struct GroupMeeting {
  // Ranks of the parent, by rank in the group; empty: this one is in none.
  std::vector<int> members;
  // Known to the parent's ranks, and of this split alone.
  std::string key;
  std::string address;  // this node's for the others
  std::chrono::nanoseconds timeout{};
  // As MeshRequest's.
  std::function<Status()> check;
};
// All ranks of `parent` call it, those in no group, or alone in theirs, too: these get no mesh.
// Errors count ranks within the group.
Result<Met> MeetInGroup(Communicator& parent, const GroupMeeting& group,
                        Span<const Purpose> purposes);

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_MEETING_H_
