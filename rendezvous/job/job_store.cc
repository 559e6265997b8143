#include "rendezvous/job/job_store.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/state/policy.h"
#include "rendezvous/state/records.h"
#include "rendezvous/state/state_limits.h"

namespace cadre::job {
namespace {

// Returns OK if the request is for the running generation, else why not.
absl::Status CheckCurrent(const std::string& name, const state::Job& job,
                          const v1::StoreRequest& request) {
  if (!request.job().empty() && request.job() != name) {
    return absl::InvalidArgumentError(absl::StrCat("the request is for job ",
                                                   OneLine(request.job(), state::kMaxJobNameBytes),
                                                   ", but comes from job ", name));
  }
  if (state::HasEnded(job.phase()))
    return absl::AbortedError(absl::StrCat("job ", name, " has ended"));
  const uint64_t current = job.generation.number();
  if (request.generation() < current) {
    return absl::AbortedError(absl::StrCat("generation ", request.generation(),
                                           " is over; the current one is ", current));
  }
  if (request.generation() > current) {
    return absl::InvalidArgumentError(absl::StrCat("generation ", request.generation(),
                                                   " has not begun; the current one is ", current));
  }
  if (job.phase() == v1::STOPPING) {
    return absl::AbortedError(absl::StrCat(
        "generation ", current, " is being stopped: ", job.generation.saved.stop().reason()));
  }
  if (job.phase() != v1::RUNNING) {
    return absl::AbortedError(
        absl::StrCat("generation ", current, " is over; the next one has not formed yet"));
  }
  return absl::OkStatus();
}

// Returns why the store may not grow; empty: there is room.
std::string WhyFull(const state::State& state, const state::Job& job) {
  if (state.by_user.BytesOf(job.owner()).stores >= state::kMaxStoreBytesOfUser) {
    return absl::StrCat(
        "the stores of all jobs of ",
        job.owner().empty() ? "the administrators" : absl::StrCat("user ", job.owner()), " hold ",
        state::kMaxStoreBytesOfUser >> 20, " MiB, which is the limit (stores of a user)");
  }
  if (state.by_user.all_bytes().stores >= state::kMaxStoreBytesOfAll) {
    return absl::StrCat("the stores of all users' jobs hold ", state::kMaxStoreBytesOfAll >> 20,
                        " MiB, which is the limit (stores of all)");
  }
  return "";
}

}  // namespace

void JobStore::Execute(const keyspace::Requester& requester, const v1::StoreRequest& request) {
  const std::string& name = job_.name();
  absl::Status current = CheckCurrent(name, job_, request);
  std::optional<keyspace::Request> operation = state::FromProto(request);
  if (current.ok() && !operation.has_value()) {
    current = absl::InvalidArgumentError("the request holds no operation");
  }
  if (!current.ok()) {
    return Deliver({{requester, keyspace::ErrorReply(request.client(), request.request_id(),
                                                     current.code(), current.message())}});
  }
  keyspace::Outcome outcome =
      keyspace_.Execute(context_.clock.now(), job_.store, job_.generation.world_size(), requester,
                        *std::move(operation), WhyFull(context_.state, job_));
  if (outcome.change.has_value()) {
    v1::Record record = state::RecordOf(job_.generation.number(), *std::move(outcome.change));
    record.set_job(name);
    context_.out.Commit(std::move(record));
  }
  Deliver(std::move(outcome.answers));
}

void JobStore::End(absl::string_view message) {
  Deliver(keyspace_.End(absl::StatusCode::kAborted, message));
}

void JobStore::Expire() { Deliver(keyspace_.Expire(context_.clock.now())); }

void JobStore::Deliver(const std::vector<keyspace::AddressedReply>& answers) {
  for (const keyspace::AddressedReply& answer : answers) {
    if (answer.requester.call != 0) {
      context_.out.Reply(CallId{answer.requester.call}, state::ToProto(answer.reply));
      continue;
    }
    // A node without a stream repeats the request once it has reconnected.
    const std::optional<StreamId> stream = connections_.StreamOf(answer.requester.peer);
    if (!stream.has_value()) continue;
    v1::ServerMessage message = step::MessageFor(job_.name(), job_.generation.number());
    *message.mutable_store() = state::ToProto(answer.reply);
    context_.out.Send(*stream, std::move(message));
  }
}

}  // namespace cadre::job
