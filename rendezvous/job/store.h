// The store of a job's current generation: its requests, changes and answers between plain values
// and messages. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_JOB_STORE_H_
#define CADRE_RENDEZVOUS_JOB_STORE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/time.h"
#include "proto/store.pb.h"
#include "rendezvous/job/connections.h"
#include "rendezvous/keyspace/keyspace.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/context.h"

namespace cadre::job {

class Store {
 public:
  Store(step::Context* context, const state::Job& job, const Connections& connections)
      : context_(*context), job_(job), connections_(connections) {}

  void Execute(const keyspace::Asker& asker, const v1::StoreRequest& request);
  // The generation is over: whoever waits is told so.
  void End(absl::string_view message);
  // Tells those whose time has run out.
  void Expire();
  MonoTime NextDeadline() const { return keyspace_.NextDeadline(); }

  // Nobody is there any more to receive an answer.
  void ForgetCall(CallId call) { keyspace_.ForgetCall(call.value); }
  void ForgetNode(const std::string& node) { keyspace_.ForgetPeer(node); }

  size_t waiters() const { return keyspace_.waiters(); }
  absl::Status CheckInvariants() const { return keyspace_.CheckInvariants(); }

 private:
  void Deliver(const std::vector<keyspace::AnswerTo>& answers);

  step::Context& context_;
  const state::Job& job_;
  const Connections& connections_;
  keyspace::Keyspace keyspace_;
};

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_STORE_H_
