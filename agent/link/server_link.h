// An agent's connection to the server as the agent sees it: messages up, messages down, and whether
// the server is there. One implementation speaks gRPC (agent/link/grpc_link.h); `cadre run
// --standalone` has one that talks to the server in its own process
// (launcher/attach/embedded_link.h).
//
// What travels on it, with the file that says or hears it: the agent's in agent/core, the server's
// in rendezvous/job.
//
// clang-format off
//   agent                                 server
//   session.cc      Join            ──▶   membership.cc     admits the node
//   orders.cc       Welcome         ◀──   membership.cc
//   orders.cc       Assign          ◀──   generation.cc     Form, once enough nodes are there
//   generation.cc   WorkerStarted   ──▶   worker_events.cc
//   session.cc      Renew           ──▶   job.cc            every third of the lease
//   hangs.cc        NodeEvidence    ──▶   worker_events.cc  a worker makes no progress; or as asked:
//   hangs.cc        Inspect         ◀──   inquiry.cc        the other nodes are asked as well
//   hangs.cc        AskStacks       ◀──   host/core_host.cc   somebody asks where its workers are
//   hangs.cc        NodeStacks      ──▶   host/stack_asks.cc
//   generation.cc   WorkerExited    ──▶   worker_events.cc  the first failure is the root cause
//   orders.cc       Stop            ◀──   generation.cc     OrderStop
//   orders.cc       NodeStopped     ──▶   worker_events.cc  nothing of the generation runs any more
//   orders.cc       Assign          ◀──   generation.cc     Form again, after the last NodeStopped,
//   orders.cc       Finished        ◀──   generation.cc     or End
// clang-format on
#ifndef CADRE_AGENT_LINK_SERVER_LINK_H_
#define CADRE_AGENT_LINK_SERVER_LINK_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

// Called from any thread of the link, one at a time; must not block.
struct LinkCallbacks {
  // The stream is open; nothing has been said on it yet. Its number is not 0, and no other's.
  std::function<void(uint64_t stream)> on_up;
  std::function<void(v1::ServerMessage)> on_message;
  // The stream is gone or could not be opened. The link goes on trying, with backoff and jitter
  // (0.05 s doubling to 1 s, from the start again once a server has taken the node in), unless the
  // status is UNAUTHENTICATED, PERMISSION_DENIED or INVALID_ARGUMENT. NOT_FOUND: the server that
  // was there has ended, and nobody will ever know what it knew.
  std::function<void(absl::Status)> on_down;
};

class ServerLink {
 public:
  virtual ~ServerLink() = default;
  virtual void Start(LinkCallbacks callbacks) = 0;
  // Never blocks; may be called from callbacks. What is meant for another stream than the one that
  // is open is dropped: it would come before the Join that begins this one. The agent core speaks
  // again after on_up.
  virtual void Send(uint64_t stream, v1::NodeMessage message) = 0;
  // After this no callback runs. Sends what is queued first, for 200 ms at most.
  virtual void Stop() = 0;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_LINK_SERVER_LINK_H_
