#include "rendezvous/step/effects.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/state/apply.h"
#include "rendezvous/state/policy.h"

namespace cadre::step {

v1::ServerMessage MessageFor(const std::string& job, uint64_t generation) {
  v1::ServerMessage message;
  message.set_job(job);
  message.set_generation(generation);
  return message;
}

void EffectsBuilder::Commit(v1::Record record) {
  const std::string changed = rows_.has_value() ? accounting::JobChangedBy(record, *state_) : "";
  std::string dropped = state::Apply(record, state_);
  if (!dropped.empty()) dropped_.push_back(std::move(dropped));
  // Now, because the state may drop the job in the same step.
  if (!changed.empty()) {
    std::optional<v1::AccountedJob> row = accounting::RowAfter(record, changed, *state_, *rows_);
    if (row.has_value()) effects_.account.push_back(*std::move(row));
  }
  effects_.append.push_back(std::move(record));
}

void EffectsBuilder::Send(StreamId stream, v1::ServerMessage message) {
  if (message.server_id() == 0) message.set_server_id(server_id_);
  effects_.send.push_back({stream, std::move(message)});
}

void EffectsBuilder::Reply(CallId call, v1::StoreReply reply) {
  effects_.reply.push_back({call, std::move(reply)});
}

void EffectsBuilder::Close(StreamId stream, absl::Status status) {
  effects_.close.push_back({stream, std::move(status)});
}

void EffectsBuilder::Reject(StreamId stream, const std::string& job, absl::StatusCode code,
                            absl::string_view message) {
  const std::string text = Shortened(message, state::kMaxMessageBytes);
  v1::ServerMessage rejected = MessageFor(job, 0);
  rejected.mutable_rejected()->set_code(static_cast<int>(code));
  rejected.mutable_rejected()->set_message(text);
  Send(stream, std::move(rejected));
  Note(job, absl::StrCat("rejected a Join: ", text));
  Close(stream, absl::Status(code, text));
}

void EffectsBuilder::Note(const std::string& job, absl::string_view text) {
  effects_.notes.push_back({job, OneLine(text, state::kMaxMessageBytes)});
}

std::vector<std::string> EffectsBuilder::TakeDroppedJobs() { return std::exchange(dropped_, {}); }

Effects EffectsBuilder::Take() { return std::exchange(effects_, {}); }

}  // namespace cadre::step
