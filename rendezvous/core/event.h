// All that can happen to the core. Plain values; the host builds them from the wire and the clock.
#ifndef CADRE_RENDEZVOUS_CORE_EVENT_H_
#define CADRE_RENDEZVOUS_CORE_EVENT_H_

#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "proto/rendezvous.pb.h"
#include "proto/store.pb.h"
#include "rendezvous/step/ids.h"

namespace cadre {

// A node said something on its stream. Its stream may be new to the core only with a Join.
struct NodeSaid {
  StreamId stream;
  v1::NodeMessage message;
};

// The stream ended, for whatever reason.
struct StreamClosed {
  StreamId stream;
};

// A store operation that came outside any stream.
struct StoreCalled {
  CallId call;
  v1::StoreRequest request;
};

// The caller has gone; nobody waits for the answer any more.
struct StoreCallDropped {
  CallId call;
};

// A user ends a job; PREEMPTED: a scheduler does, and it is to go on later.
struct JobCancelled {
  std::string job;
  std::string reason;
  int signal = 0;
  v1::FailureCause cause = v1::CANCELLED;
};

// A user puts a job into the cluster's queue. Core::MaySubmit has been asked.
struct JobSubmitted {
  JobSubmitted(v1::JobSpec spec, std::string user, std::string request_id)
      : spec(std::make_shared<const v1::JobSpec>(std::move(spec))),
        user(std::move(user)),
        request_id(std::move(request_id)) {}

  // Not inside: every event would be four times as large.
  std::shared_ptr<const v1::JobSpec> spec;
  std::string user;
  // The caller's name for this submission; empty: none.
  std::string request_id;
};

// A user wants a node of the cluster to take no new work, or to take it again.
struct NodeDrained {
  std::string node;
  bool drained = true;
  std::string reason;
};

// From now on the host cannot commit records, so that nothing the core says goes out; or it can
// again, and has said all that it held.
struct CanSave {
  bool can = true;
};

// Nothing but time has passed.
struct Tick {};

using Event = std::variant<NodeSaid, StreamClosed, StoreCalled, StoreCallDropped, JobCancelled,
                           JobSubmitted, NodeDrained, CanSave, Tick>;

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_CORE_EVENT_H_
