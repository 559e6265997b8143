// The edge of the store: its requests, changes and answers between plain values and messages.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/core/core_impl.h"
#include "rendezvous/state/policy.h"
#include "rendezvous/state/store_records.h"

namespace cadre {
namespace {

// Whether the request is for what runs now, and if not, why.
absl::Status CheckCurrent(const std::string& name, const JobState* job,
                          const v1::StoreRequest& request) {
  if (job == nullptr) {
    return absl::NotFoundError(absl::StrCat("no job ", OneLine(name, kMaxJobNameBytes)));
  }
  if (HasEnded(job->phase)) return absl::AbortedError(absl::StrCat("job ", name, " has ended"));
  const uint64_t current = job->generation.number;
  if (request.generation() < current) {
    return absl::AbortedError(absl::StrCat("generation ", request.generation(),
                                           " is over; the current one is ", current));
  }
  if (request.generation() > current) {
    return absl::InvalidArgumentError(absl::StrCat("generation ", request.generation(),
                                                   " has not begun; the current one is ", current));
  }
  if (job->phase == v1::STOPPING) {
    return absl::AbortedError(
        absl::StrCat("generation ", current, " is being stopped: ", job->generation.stop_reason));
  }
  if (job->phase != v1::RUNNING) {
    return absl::AbortedError(
        absl::StrCat("generation ", current, " is over; the next one has not formed yet"));
  }
  return absl::OkStatus();
}

}  // namespace

void Core::Impl::OnStoreRequest(const std::string& name, const keyspace::Asker& asker,
                                const v1::StoreRequest& request) {
  JobState* job = FindJob(name);
  absl::Status current = CheckCurrent(name, job, request);
  if (!request.job().empty() && request.job() != name) {
    current = absl::InvalidArgumentError(absl::StrCat("the request is for job ",
                                                      OneLine(request.job(), kMaxJobNameBytes),
                                                      ", but comes from job ", name));
  }
  const std::optional<keyspace::Request> operation = FromProto(request);
  if (current.ok() && !operation.has_value()) {
    current = absl::InvalidArgumentError("the request holds no operation");
  }
  if (!current.ok()) {
    return DeliverAnswers(
        name, {{asker, keyspace::ErrorReply(request.client(), request.request_id(), current.code(),
                                            current.message())}});
  }
  keyspace::Outcome outcome = lives[name].keyspace.Execute(
      now, job->store, job->generation.workers.size(), asker, *operation);
  if (asker.call != 0) calls[CallId{asker.call}] = name;
  if (outcome.change.has_value()) {
    v1::Record record = RecordOf(job->generation.number, *outcome.change);
    record.set_job(name);
    Commit(std::move(record));
  }
  DeliverAnswers(name, std::move(outcome.answers));
  Touch(name, false);
}

void Core::Impl::DeliverAnswers(const std::string& name, std::vector<keyspace::AnswerTo> answers) {
  for (const keyspace::AnswerTo& answer : answers) {
    if (answer.asker.call != 0) {
      const CallId call{answer.asker.call};
      calls.erase(call);
      out->reply.push_back({call, ToProto(answer.reply)});
      continue;
    }
    // A node without a stream asks again once it is back.
    const JobState* job = FindJob(name);
    v1::ServerMessage message = NewMessage(name, job == nullptr ? 0 : job->generation.number);
    *message.mutable_store() = ToProto(answer.reply);
    SendToNode(name, answer.asker.peer, std::move(message));
  }
}

void Core::Impl::OnCallDropped(CallId call) {
  const auto found = calls.find(call);
  if (found == calls.end()) return;
  lives[found->second].keyspace.ForgetCall(call.value);
  Touch(found->second, false);
  calls.erase(found);
}

void Core::Impl::AbortWaiters(const std::string& name, absl::string_view message) {
  DeliverAnswers(name, lives[name].keyspace.End(absl::StatusCode::kAborted, message));
}

}  // namespace cadre
