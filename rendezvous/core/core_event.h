// The events that a Core handles. Plain values; the host builds them from the wire and the clock.
#ifndef CADRE_RENDEZVOUS_CORE_CORE_EVENT_H_
#define CADRE_RENDEZVOUS_CORE_CORE_EVENT_H_

#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "proto/rendezvous.pb.h"
#include "proto/store.pb.h"
#include "rendezvous/step/stream_ids.h"

namespace cadre {

// A node sent a message on its stream. The first message of a stream must be a Join (AgentJoined on
// an agent's stream).
struct NodeMessageReceived {
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

// The client has gone and does not wait for the answer any more.
struct StoreCallDropped {
  CallId call;
};

// A user cancels a job. With PREEMPTED a scheduler ended it, and it is to be continued later.
struct JobCancelled {
  std::string job;
  std::string reason;
  int signal = 0;
  v1::FailureCause cause = v1::CANCELLED;
};

// A user submits a job to the cluster's queue. The caller has checked Core::MaySubmit().
struct JobSubmitted {
  JobSubmitted(v1::JobSpec spec, std::string user, std::string request_id, std::string within = "")
      : spec(std::make_shared<const v1::JobSpec>(std::move(spec))),
        user(std::move(user)),
        request_id(std::move(request_id)),
        within(std::move(within)) {}

  // Shared rather than inline, because every Event would be four times as large.
  std::shared_ptr<const v1::JobSpec> spec;
  std::string user;
  // The id of this submission from the client, by which a repetition is recognized; empty if it
  // gave none.
  std::string request_id;
  // The id of the batch job of which the job is a step; empty: it is none.
  std::string within;
};

// A user drains a node of the cluster, so that it gets no new work, or ends that.
struct NodeDrained {
  std::string node;
  bool drained = true;
  std::string reason;
};

// The host cannot commit records from now on, so nothing that the core sends goes out; or it can
// again, and has sent everything that it held back.
struct CanSave {
  bool can = true;
};

// Only time has passed.
struct Tick {};

using Event = std::variant<NodeMessageReceived, StreamClosed, StoreCalled, StoreCallDropped,
                           JobCancelled, JobSubmitted, NodeDrained, CanSave, Tick>;

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_CORE_CORE_EVENT_H_
