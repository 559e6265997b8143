// The protocol of a worker and its node's agent, over the unix socket that CADRE_AGENT names. Ranks
// that another launcher started speak the store's part of it with rank 0, over TCP, where a proof
// takes the token's place (worker_runtime/store/gate.h).
//
// The worker's first frame is the token, which is in CADRE_TOKEN_FILE; each further frame is a
// WorkerCall. The other side answers each with one WorkerReply, in any order, matched by the id,
// which is unique among the calls of one connection and not 0. A reply to call 0 says why the
// connection ends: UNAUTHENTICATED (the token), INVALID_ARGUMENT (what was sent is no call),
// RESOURCE_EXHAUSTED (too many connections), UNAVAILABLE (the agent leaves). A worker may have
// several connections, and connects anew when one broke.
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
// A worker can rejoin as long as its AwaitEnd waits: the connection's end takes that back. A store
// call is idempotent on (generation, client, id): a repeated one, on this connection or another,
// gets the first one's answer, also while the first still waits. Progress is no call: it goes
// through a page of shared memory, and as lines on CADRE_PROGRESS_FD.
#ifndef CADRE_RPC_WORKER_PROTOCOL_H_
#define CADRE_RPC_WORKER_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rendezvous/keyspace/request.h"

namespace cadre::rpc {

// Changes with whatever is said otherwise than before. What never changes: the token's frame, how a
// Hello's frame begins (HelloProtocol), and replies to call 0.
inline constexpr uint32_t kWorkerProtocol = 2;
// Of Cadre 0.2: its Hello does not say a version; all else is the same. A library that meets such
// an agent speaks it, too, and an agent answers such a library.
inline constexpr uint32_t kWorkerProtocolBefore = 1;

// One frame, in either direction.
inline constexpr size_t kWorkerFrameBytesMax = 1 << 20;

// The caller: CADRE_GENERATION and RANK as the process found them.
struct Caller {
  uint64_t generation = 0;
  int32_t rank = 0;
  int32_t pid = 0;
};

// Asks for the caller's place.
struct Hello {
  Caller from;
  uint32_t protocol = kWorkerProtocol;
};
struct AwaitEnd {
  Caller from;
};
// Gives the generation up. `reason` counts, in one line, where nobody has ended the generation.
struct Rejoin {
  Caller from;
  std::string reason;
};
struct Store {
  std::string job;
  uint64_t generation = 0;
  // One life of the caller, random.
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
// Of Hello and Rejoin.
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
  // Of this node, as others reach it.
  std::string address;
  // The job recovers in place: AwaitEnd and Rejoin are served.
  bool in_place = false;
};
// Of AwaitEnd.
struct GenerationEnd {
  std::string reason;
};
// Of Store, as in keyspace::Reply; also with an error.
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

// Where a Hello's frame says its version: 8 bytes of id, a byte for the kind of call, 4 bytes of
// version.
inline constexpr size_t kHelloVersionAt = 8 + 1;
inline constexpr size_t kHelloVersionBytes = 4;
// One of kWorkerProtocolBefore is so long, and no other is.
inline constexpr size_t kHelloBytesBefore = kHelloVersionAt + 8 + 4 + 4;

// The version of the protocol that a Hello's frame speaks, and the call's id, also where the rest
// of it cannot be read. False: it is no Hello.
inline bool HelloProtocol(absl::string_view content, uint64_t* id, uint32_t* protocol) {
  constexpr size_t kIdBytes = 8, kBytes = kHelloVersionAt + kHelloVersionBytes;
  if (content.size() < kBytes || content[kIdBytes] != 1) return false;
  *id = 0;
  *protocol = 0;
  for (size_t i = kBytes; i-- > kIdBytes + 1;) {
    *protocol = *protocol << 8 | static_cast<unsigned char>(content[i]);
  }
  for (size_t i = kIdBytes; i-- > 0;) *id = *id << 8 | static_cast<unsigned char>(content[i]);
  if (content.size() == kHelloBytesBefore) *protocol = kWorkerProtocolBefore;
  return true;
}

// A Hello's frame of kWorkerProtocolBefore as one that says so, which can be parsed.
inline std::string SayProtocolBefore(absl::string_view content) {
  std::string said(content);
  said.insert(kHelloVersionAt, std::string(kHelloVersionBytes, '\0'));
  said[kHelloVersionAt] = static_cast<char>(kWorkerProtocolBefore);
  return said;
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
  // What is read always says it (SayProtocolBefore).
  if (m.protocol != kWorkerProtocolBefore) io(m.protocol);
  io(m.from);
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
