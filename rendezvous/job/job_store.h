// JobStore: the store of a job's current generation; converts its requests, changes and replies
// between plain values and messages. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_JOB_JOB_STORE_H_
#define CADRE_RENDEZVOUS_JOB_JOB_STORE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/time.h"
#include "proto/store.pb.h"
#include "rendezvous/job/node_connections.h"
#include "rendezvous/keyspace/keyspace.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/context.h"

namespace cadre::job {

class JobStore {
 public:
  JobStore(step::Context* context, const state::Job& job, const NodeConnections& connections)
      : context_(*context), job_(job), connections_(connections) {}

  void Execute(const keyspace::Requester& requester, const v1::StoreRequest& request);
  // Called when the generation is over: all waiting requests are aborted with this message.
  void End(absl::string_view message);
  // Answers requests whose wait has timed out.
  void Expire();
  MonoTime NextDeadline() const { return keyspace_.NextDeadline(); }

  // Called when the call or the node is gone and can receive no answer any more.
  void ForgetCall(CallId call) { keyspace_.ForgetCall(call.value); }
  void ForgetNode(const std::string& node) { keyspace_.ForgetPeer(node); }

  size_t waiters() const { return keyspace_.waiters(); }
  absl::Status CheckInvariants() const { return keyspace_.CheckInvariants(); }

 private:
  void Deliver(const std::vector<keyspace::AddressedReply>& answers);

  step::Context& context_;
  const state::Job& job_;
  const NodeConnections& connections_;
  keyspace::Keyspace keyspace_;
};

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_JOB_STORE_H_
