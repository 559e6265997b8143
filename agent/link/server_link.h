// An agent's connection to the server, as used by the agent: messages in both directions, and
// whether the server is connected. One implementation uses gRPC (agent/link/grpc_link.h); `cadre
// run --standalone` has one that talks to the server in its own process
// (launcher/attach/launcher_links.h).
//
// The main messages, with the file that sends or handles each: the agent's in agent/core, the
// server's in rendezvous/job unless another folder is named.
//
// clang-format off
//   agent                                     server
//   server_session.cc   Join            ──▶   membership.cc             admits the node
//   agent_core.cc       Welcome         ◀──   membership.cc
//   agent_core.cc       Assign          ◀──   generation.cc             Form, once enough nodes are there
//   node_generation.cc  WorkerStarted   ──▶   worker_reports.cc
//   server_session.cc   Renew           ──▶   job.cc                    every third of the lease
//   agent_core.cc       NodeEvidence    ──▶   hang_diagnosis.cc         a worker hangs, or on Inspect
//   agent_core.cc       Inspect         ◀──   hang_diagnosis.cc         hang diagnosis asks other nodes too
//   agent_core.cc       AskStacks       ◀──   host/agent_requests.cc    a user asks for stack dumps
//   agent_core.cc       NodeStacks      ──▶   host/agent_requests.cc
//   agent_core.cc       WorkerExited    ──▶   worker_reports.cc         the first failure is the root cause
//   agent_core.cc       Stop            ◀──   generation.cc             OrderStop
//   agent_core.cc       NodeStopped     ──▶   worker_reports.cc         no process of the generation is left
//   agent_core.cc       Assign          ◀──   generation.cc             Form again, after the last NodeStopped,
//   agent_core.cc       Finished        ◀──   generation.cc             or End
// clang-format on
#ifndef CADRE_AGENT_LINK_SERVER_LINK_H_
#define CADRE_AGENT_LINK_SERVER_LINK_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

// Called on any thread of the link, one at a time; must not block.
struct LinkCallbacks {
  // The stream is open, and nothing has been sent on it yet. Its number is unique and not 0.
  std::function<void(uint64_t stream)> on_up;
  std::function<void(v1::ServerMessage)> on_message;
  // The stream is gone or could not be opened. The link retries with backoff and jitter (0.05 s
  // doubling to 1 s, reset once a server has welcomed the node), unless the status is
  // UNAUTHENTICATED, PERMISSION_DENIED or INVALID_ARGUMENT. NOT_FOUND: the server has ended, and
  // the state that it kept in memory is lost.
  std::function<void(absl::Status)> on_down;
};

class ServerLink {
 public:
  virtual ~ServerLink() = default;
  virtual void Start(LinkCallbacks callbacks) = 0;
  // Never blocks; may be called from callbacks. A message for a stream other than the open one is
  // dropped, since it would precede the Join that begins the open one. The agent core repeats what
  // is still needed after on_up.
  virtual void Send(uint64_t stream, v1::NodeMessage message) = 0;
  // No callback runs after this. Sends queued messages first, for 200 ms at most.
  virtual void Stop() = 0;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_LINK_SERVER_LINK_H_
