// Connects every two ranks of a communicator, once for each purpose.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_MESH_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_MESH_H_

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/scoped_fd.h"
#include "base/time.h"
#include "cadre/result.h"
#include "worker_runtime/sockets/handshake.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::sockets {

// By rank; this rank's own place has none.
using Mesh = std::map<Purpose, std::vector<wire::Connection>>;

// Connections that have not proved themselves, beside those that are expected: the oldest of those
// that have said nothing make room for new ones, then the oldest of all.
inline constexpr size_t kMaxStrangers = 64;
// And each has so long for it.
inline constexpr absl::Duration kHandshakePatience = absl::Seconds(10);

struct MeshRequest {
  int rank = 0;
  int size = 0;
  // The key is known to these ranks alone.
  Terms terms;
  std::vector<Purpose> purposes;
  // Of all ranks, each of which listens already.
  std::vector<std::string> endpoints;
  MonoTime deadline;
  // Asked every second while some rank has not connected: an error ends the wait.
  std::function<Status()> check;
};

// All ranks call it; each connects to those below it, which accept with `listener`. Strangers who
// connect are refused; a rank whose place they took calls again.
//   UNAVAILABLE        a rank cannot be reached; says which, where and why
//   RESOURCE_EXHAUSTED this process may open no more descriptors
//   PERMISSION_DENIED  who answers at a rank's endpoint does not know the key
//   FAILED_PRECONDITION  one of two ranks encrypts, the other does not; names both
//   DEADLINE_EXCEEDED  says which ranks are missing
Result<Mesh> ConnectMesh(const MeshRequest& request, const ScopedFd& listener);

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_MESH_H_
