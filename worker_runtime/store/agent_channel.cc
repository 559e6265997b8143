#include "worker_runtime/store/agent_channel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/store/connect_socket.h"
#include "worker_runtime/store/store_worker.h"

namespace cadre::store {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);

// Pauses between attempts: doubling, and never beyond the deadline. False when that has passed.
class Pauses {
 public:
  explicit Pauses(MonoTime deadline) : deadline_(deadline) {}

  bool Next() {
    const MonoTime now = MonoNow();
    if (now >= deadline_) return false;
    const absl::Duration pause = std::min(pause_, deadline_ - now);
    pause_ = std::min(pause_ * 2, kLongestPause);
    absl::SleepFor(pause);
    return true;
  }

 private:
  const MonoTime deadline_;
  absl::Duration pause_ = kFirstPause;
};

Result<rpc::Place> PlaceIn(Result<rpc::WorkerReply> reply) {
  RETURN_IF_ERROR(reply.status());
  RETURN_IF_ERROR(reply->status());
  if (auto* place = std::get_if<rpc::Place>(&reply->what)) return std::move(*place);
  return InternalError("the agent's answer holds no place");
}

}  // namespace

AgentChannel::AgentChannel(const std::string& socket, const std::string& token)
    : socket_(socket),
      calls_([socket] { return ConnectToUnixSocket(socket); }, token),
      end_([socket] { return ConnectToUnixSocket(socket); }, token) {}

Result<rpc::WorkerReply> AgentChannel::CallOnce(const rpc::WorkerCall& call, absl::Duration wait) {
  Result<rpc::WorkerReply> reply = calls_.Call(call, wait + kCallMargin);
  if (!reply.ok()) return Describe(reply.status(), wait);
  return reply;
}

Status AgentChannel::Describe(const Status& status, absl::Duration wait) const {
  if (status.code() == StatusCode::kUnavailable) {
    return UnavailableError(
        absl::StrCat("the agent at ", socket_, " cannot be reached: ", status.message()));
  }
  // The store's own text says who or what is missing.
  if (status.code() == StatusCode::kDeadlineExceeded && status.message().empty()) {
    return DeadlineExceededError(absl::StrCat("the agent at ", socket_, " did not answer within ",
                                              absl::FormatDuration(wait + kCallMargin)));
  }
  return status;
}

Status AgentChannel::OtherVersion(const Status& status) const {
  return FailedPreconditionError(absl::StrCat(
      "the agent at ", socket_, " speaks another version of the worker protocol: this program was ",
      "built with libcadre ", kVersion, ", which speaks version ", rpc::kWorkerProtocol,
      "; use the same version of Cadre for both (the agent: ", status.message(), ")"));
}

Result<rpc::Place> AgentChannel::SayHello(uint64_t id, const rpc::Caller& from,
                                          absl::Duration patience) {
  Pauses pauses(MonoNow() + patience);
  rpc::Hello hello = {from};
  Status unread;
  while (true) {
    Result<rpc::Place> place = PlaceIn(CallOnce({id, hello}, absl::ZeroDuration()));
    const StatusCode code = place.status().code();
    if (code == StatusCode::kInvalidArgument && unread.ok()) {
      // An agent of 0.2 cannot read it, and has closed the connection.
      unread = place.status();
      hello.protocol = rpc::kWorkerProtocolBefore;
      continue;
    }
    // The agent says so, or one of the two cannot read what the other says.
    if (code == StatusCode::kFailedPrecondition || code == StatusCode::kInvalidArgument ||
        code == StatusCode::kInternal) {
      return OtherVersion(unread.ok() ? place.status() : unread);
    }
    if (code != StatusCode::kUnavailable || !pauses.Next()) return place;
  }
}

Status AgentChannel::AwaitEnd(uint64_t id, const rpc::Caller& from) {
  ASSIGN_OR_RETURN(const rpc::WorkerReply reply,
                   end_.Call({id, rpc::AwaitEnd{from}}, absl::InfiniteDuration()));
  return reply.status();
}

Result<rpc::Place> AgentChannel::Rejoin(uint64_t id, const rpc::Rejoin& call,
                                        absl::Duration timeout) {
  return PlaceIn(CallOnce({id, call}, timeout));
}

Result<rpc::WorkerReply> AgentChannel::Execute(rpc::WorkerCall call, absl::Duration patience) {
  uint32_t& wait_ms = std::get<rpc::Store>(call.what).wait_ms;
  const absl::Duration wait = absl::Milliseconds(wait_ms);
  const MonoTime waits_until = MonoNow() + wait;
  Pauses pauses(wait > absl::ZeroDuration() ? waits_until : MonoNow() + patience);
  while (true) {
    const absl::Duration left = std::max(waits_until - MonoNow(), absl::ZeroDuration());
    wait_ms = static_cast<uint32_t>(absl::ToInt64Milliseconds(left));
    // One that does not wait by itself still waits for a server that is away.
    Result<rpc::WorkerReply> reply = CallOnce(call, wait > absl::ZeroDuration() ? left : patience);
    const Status status = reply.ok() ? Status(reply->status()) : reply.status();
    if (status.code() != StatusCode::kUnavailable || !pauses.Next()) return reply;
  }
}

}  // namespace cadre::store
