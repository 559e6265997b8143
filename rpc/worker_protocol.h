// The protocol between a worker and its node's agent, over the unix socket that CADRE_AGENT names.
// Ranks that another launcher started use its store calls with rank 0, over TCP, where a proof
// replaces the token (worker_runtime/store/store_server.h).
//
// The worker's first frame is the token, which is in CADRE_TOKEN_FILE; each further frame is a
// WorkerCall. The agent answers each with one WorkerReply, in any order, matched by the id, which
// is unique among the calls of one connection and not 0. A reply to call 0 tells why the connection
// ends: UNAUTHENTICATED (wrong token), INVALID_ARGUMENT (the frame was no call), RESOURCE_EXHAUSTED
// (too many connections), UNAVAILABLE (the agent shuts down). A worker may have several
// connections, and reconnects when one breaks.
//
//   call       when                        answered                  errors besides those above
//   Hello      any time; idempotent        at once                   ABORTED (an older generation),
//                                                                    NOT_FOUND (no such rank here),
//                                                                    FAILED_PRECONDITION (another
//                                                                    version of the protocol)
//   AwaitEnd   the job recovers in place   when the generation ends  as Hello; FAILED_PRECONDITION
//                                                                    (it does not); ABORTED (called
//                                                                    again; or not kept: exit)
//   Rejoin     after AwaitEnd, within the  with a place in the next  as AwaitEnd
//              stop grace of the end       generation
//   Store      any time                    at once, or within        as in proto/store.proto
//                                          wait_ms
//
// A worker can rejoin as long as its AwaitEnd waits: the end of the connection cancels that. A
// store call is idempotent on (generation, client, id): a repeated call, on this connection or
// another, gets the first one's answer, also while the first still waits. Progress is not a call:
// it is reported through a page of shared memory, and as lines on CADRE_PROGRESS_FD.
#ifndef CADRE_RPC_WORKER_PROTOCOL_H_
#define CADRE_RPC_WORKER_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rendezvous/keyspace/store_request.h"

namespace cadre::rpc {

// Changes with every incompatible change of the protocol. What never changes: the token's frame,
// the beginning of a Hello's frame (HelloProtocol), and replies to call 0.
inline constexpr uint32_t kWorkerProtocol = 2;

// The limit of one frame, in either direction.
inline constexpr size_t kWorkerFrameBytesMax = 1 << 20;

// Identifies the calling worker: CADRE_GENERATION and RANK as the process found them.
struct Caller {
  uint64_t generation = 0;
  int32_t rank = 0;
  int32_t pid = 0;
};

// Requests the caller's place in the generation.
struct Hello {
  Caller from;
  uint32_t protocol = kWorkerProtocol;
};
struct AwaitEnd {
  Caller from;
};
// Gives the generation up. If nothing has ended the generation yet, this does, with `reason` (one
// line).
struct Rejoin {
  Caller from;
  std::string reason;
};
struct Store {
  std::string job;
  uint64_t generation = 0;
  // Identifies one life of the calling process; random.
  uint64_t client = 0;
  int32_t rank = 0;
  uint32_t wait_ms = 0;
  keyspace::Operation operation;
};

struct WorkerCall {
  uint64_t id = 0;
  std::variant<Hello, AwaitEnd, Rejoin, Store> what;
};

struct Nothing {};
// The answer to Hello and Rejoin.
struct Place {
  std::string job;
  uint64_t generation = 0;
  uint32_t rank = 0;
  uint32_t local_rank = 0;
  uint32_t node_rank = 0;
  uint32_t world_size = 0;
  uint32_t local_world_size = 0;
  uint32_t nodes = 0;
  // Restarts of the whole job so far.
  uint32_t restart_count = 0;
  // The address at which others reach this node.
  std::string address;
  // The job recovers in place: AwaitEnd and Rejoin are served.
  bool in_place = false;
};
// The answer to AwaitEnd.
struct GenerationEnd {
  std::string reason;
};
// The answer to Store, as in keyspace::Reply; may come with an error.
struct StoreResult {
  std::string value;
  int64_t number = 0;
};

struct WorkerReply {
  uint64_t id = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string message;
  std::variant<Nothing, Place, GenerationEnd, StoreResult> what;

  absl::Status status() const { return absl::Status(code, message); }
};

// Where a Hello's frame has its version: after 8 bytes of id and a byte for the kind of call, in 4
// bytes.
inline constexpr size_t kHelloVersionAt = 8 + 1;
inline constexpr size_t kHelloVersionBytes = 4;

// Reads the protocol version of a Hello's frame and the call's id, also if the rest of it cannot be
// parsed. False: it is no Hello.
inline bool HelloProtocol(absl::string_view content, uint64_t* id, uint32_t* protocol) {
  constexpr size_t kIdBytes = 8, kBytes = kHelloVersionAt + kHelloVersionBytes;
  if (content.size() < kBytes || content[kIdBytes] != 1) return false;
  *id = 0;
  *protocol = 0;
  for (size_t i = kBytes; i-- > kIdBytes + 1;) {
    *protocol = *protocol << 8 | static_cast<unsigned char>(content[i]);
  }
  for (size_t i = kIdBytes; i-- > 0;) *id = *id << 8 | static_cast<unsigned char>(content[i]);
  return true;
}

inline WorkerReply ErrorReply(uint64_t id, const absl::Status& status) {
  return {id, status.code(), std::string(status.message()), Nothing{}};
}

template <typename Io>
void Fields(Io& io, Caller& m) {
  io(m.generation, m.rank, m.pid);
}
template <typename Io>
void Fields(Io& io, Hello& m) {
  io(m.protocol, m.from);
}
template <typename Io>
void Fields(Io& io, AwaitEnd& m) {
  io(m.from);
}
template <typename Io>
void Fields(Io& io, Rejoin& m) {
  io(m.from, m.reason);
}
template <typename Io>
void Fields(Io& io, Store& m) {
  io(m.job, m.generation, m.client, m.rank, m.wait_ms, m.operation);
}
template <typename Io>
void Fields(Io& io, WorkerCall& m) {
  io(m.id, m.what);
}
template <typename Io>
void Fields(Io& io, Nothing&) {
  io();
}
template <typename Io>
void Fields(Io& io, Place& m) {
  io(m.job, m.generation, m.rank, m.local_rank, m.node_rank, m.world_size, m.local_world_size,
     m.nodes, m.restart_count, m.address, m.in_place);
}
template <typename Io>
void Fields(Io& io, GenerationEnd& m) {
  io(m.reason);
}
template <typename Io>
void Fields(Io& io, StoreResult& m) {
  io(m.value, m.number);
}
template <typename Io>
void Fields(Io& io, WorkerReply& m) {
  io(m.id, m.code, m.message, m.what);
}

}  // namespace cadre::rpc

#endif  // CADRE_RPC_WORKER_PROTOCOL_H_
