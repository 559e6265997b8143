// Where the machines of the core put what they decide in a step. One thread.
#ifndef CADRE_RENDEZVOUS_STEP_OUTBOX_H_
#define CADRE_RENDEZVOUS_STEP_OUTBOX_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/record.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/store.pb.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/effect.h"
#include "rendezvous/step/ids.h"

namespace cadre::step {

// A message about a generation of a job, to fill in. Of the cluster's: no job, generation 0.
v1::ServerMessage MessageFor(const std::string& job, uint64_t generation);

class Outbox {
 public:
  // Generations in messages are of this life of the server, unless a message says otherwise.
  Outbox(uint64_t server_id, state::State* state) : server_id_(server_id), state_(state) {}

  // Applies the record. The host saves it before anything that is sent goes out.
  void Commit(v1::Record record);
  void Send(StreamId stream, v1::ServerMessage message);
  void Reply(CallId call, v1::StoreReply reply);
  // After all that was sent to it before.
  void Close(StreamId stream, absl::Status status);
  // Refuses what a stream's first message asks for.
  void Reject(StreamId stream, const std::string& job, absl::StatusCode code,
              absl::string_view message);
  // A line for the log.
  void Note(const std::string& job, absl::string_view text);

  // Ended jobs that are not in the state any more, since this was called last.
  std::vector<std::string> TakeForgotten();
  Effects Take();

 private:
  const uint64_t server_id_;
  state::State* const state_;
  Effects effects_;
  std::vector<std::string> forgotten_;
};

}  // namespace cadre::step

#endif  // CADRE_RENDEZVOUS_STEP_OUTBOX_H_
