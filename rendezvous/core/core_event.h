// The events that a Core handles. Plain values; the host builds them from the wire and the clock.
#ifndef CADRE_RENDEZVOUS_CORE_CORE_EVENT_H_
#define CADRE_RENDEZVOUS_CORE_CORE_EVENT_H_

#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "proto/control.pb.h"
#include "proto/failure.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/spec.pb.h"
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
// `at_once`: its workers get no grace.
struct JobCancelled {
  std::string job;
  std::string reason;
  int signal = 0;
  v1::FailureCause cause = v1::CANCELLED;
  bool at_once = false;
};

// A user puts a job back into the queue; `hold`: and holds it there.
struct JobRequeued {
  std::string job;
  std::string reason;
  bool hold = false;
};

// A user sends a job's workers a signal; of a batch job the script, or the workers of its steps.
struct JobSignalled {
  std::string job;
  int signal = 0;
  v1::SignalJobRequest::Target target = v1::SignalJobRequest::STEPS;
};

// A user changes a submitted job. The caller has checked Core::MayUpdate().
struct JobUpdated {
  std::string job;
  v1::JobUpdate update;
};

// A user submits a job to the cluster's queue. The caller has checked Core::MaySubmit().
struct JobSubmitted {
  JobSubmitted(v1::JobSpec spec, std::string user, std::string request_id, std::string within = "",
               v1::ArrayElements array = {})
      : spec(std::make_shared<const v1::JobSpec>(std::move(spec))),
        user(std::move(user)),
        request_id(std::move(request_id)),
        within(std::move(within)),
        array(std::move(array)) {}

  // Shared rather than inline, because every Event would be four times as large.
  std::shared_ptr<const v1::JobSpec> spec;
  std::string user;
  // The id of this submission from the client, by which a repetition is recognized; empty if it
  // gave none.
  std::string request_id;
  // The id of the batch job of which the job is a step; empty: it is none.
  std::string within;
  // The elements of which the job is an array; without indices: it is one job.
  v1::ArrayElements array;
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

using Event =
    std::variant<NodeMessageReceived, StreamClosed, StoreCalled, StoreCallDropped, JobCancelled,
                 JobRequeued, JobSignalled, JobUpdated, JobSubmitted, NodeDrained, CanSave, Tick>;

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_CORE_CORE_EVENT_H_
