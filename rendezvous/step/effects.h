// Effects: what one step of the core has decided, for its host to carry out. The order in which the
// host must do that is part of the contract; see core.h. EffectsBuilder collects them within the
// step, for all of the core's state machines. One thread.
#ifndef CADRE_RENDEZVOUS_STEP_EFFECTS_H_
#define CADRE_RENDEZVOUS_STEP_EFFECTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/accounting.pb.h"
#include "proto/record.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/store.pb.h"
#include "rendezvous/accounting/rows.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/stream_ids.h"

namespace cadre {

struct SendToStream {
  StreamId stream;
  v1::ServerMessage message;
};

struct ReplyToCall {
  CallId call;
  v1::StoreReply reply;
};

// The stream is closed after everything that was sent to it before.
struct CloseStream {
  StreamId stream;
  absl::Status status;
};

// A line for the log: a decision and its reason.
struct Note {
  std::string job;
  std::string text;
};

struct Effects {
  std::vector<v1::Record> append;
  std::vector<SendToStream> send;
  std::vector<ReplyToCall> reply;
  std::vector<CloseStream> close;
  std::vector<Note> notes;
  // Jobs that have ended, or whose last allocation has, if CoreConfig asks for them.
  std::vector<v1::AccountedJob> account;
};

}  // namespace cadre

namespace cadre::step {

// Returns a message with job and generation set, and no body yet. Messages to cluster agents have
// no job and generation 0.
v1::ServerMessage MessageFor(const std::string& job, uint64_t generation);

class EffectsBuilder {
 public:
  // Messages get `server_id`, to whose state their generation number belongs, unless they name
  // another. Jobs that end are accounted if there is an origin for their rows.
  EffectsBuilder(uint64_t server_id, state::State* state,
                 std::optional<accounting::RowOrigin> rows = std::nullopt)
      : server_id_(server_id), state_(state), rows_(rows) {}

  // Applies the record at once. The host saves it before it delivers anything that is sent.
  void Commit(v1::Record record);
  void Send(StreamId stream, v1::ServerMessage message);
  void Reply(CallId call, v1::StoreReply reply);
  // The stream is closed after everything that was sent to it before.
  void Close(StreamId stream, absl::Status status);
  // Answers a stream's first message with Rejected and closes the stream.
  void Reject(StreamId stream, const std::string& job, absl::StatusCode code,
              absl::string_view message);
  // Adds a line to the log.
  void Note(const std::string& job, absl::string_view text);

  // Returns the ended jobs that were dropped from the state since the last call.
  std::vector<std::string> TakeDroppedJobs();
  Effects Take();

 private:
  const uint64_t server_id_;
  state::State* const state_;
  const std::optional<accounting::RowOrigin> rows_;
  Effects effects_;
  std::vector<std::string> dropped_;
};

}  // namespace cadre::step

#endif  // CADRE_RENDEZVOUS_STEP_EFFECTS_H_
