// JobOutbox: where the job puts its decisions: records, messages to its nodes, and notes. Pure; one
// thread.
#ifndef CADRE_RENDEZVOUS_JOB_JOB_OUTBOX_H_
#define CADRE_RENDEZVOUS_JOB_JOB_OUTBOX_H_

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/record.pb.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/job/node_connections.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/context.h"
#include "rendezvous/step/effects.h"
#include "rendezvous/step/stream_ids.h"

namespace cadre::job {

class JobOutbox {
 public:
  JobOutbox(const std::string& name, const state::Job& state, const NodeConnections& connections,
            step::EffectsBuilder* out)
      : name_(name), state_(state), connections_(connections), out_(*out) {}

  void Commit(v1::Record record) {
    record.set_job(name_);
    out_.Commit(std::move(record));
  }
  void Note(absl::string_view text) { out_.Note(name_, text); }

  // Returns a message of the current generation without a body.
  v1::ServerMessage Message() const { return step::MessageFor(name_, state_.generation.number()); }
  // Sends nothing to a node that is not connected; it is told what it missed when it reconnects.
  void SendTo(const std::string& node, v1::ServerMessage message) {
    const std::optional<StreamId> stream = connections_.StreamOf(node);
    if (stream.has_value()) out_.Send(*stream, std::move(message));
  }
  void SendToAll(const v1::ServerMessage& message) {
    for (const auto& [node, connection] : connections_.all()) {
      if (connection.stream.has_value()) out_.Send(*connection.stream, message);
    }
  }
  void Close(StreamId stream, absl::Status status) { out_.Close(stream, std::move(status)); }
  void Reject(StreamId stream, absl::StatusCode code, absl::string_view message) {
    out_.Reject(stream, name_, code, message);
  }

 private:
  const std::string& name_;
  const state::Job& state_;
  const NodeConnections& connections_;
  step::EffectsBuilder& out_;
};

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_JOB_OUTBOX_H_
