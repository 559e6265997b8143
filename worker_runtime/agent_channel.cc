#include "worker_runtime/agent_channel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "rpc/channel_arguments.h"
#include "worker_runtime/store_limits.h"

namespace cadre {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);

grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments = ClientChannelArguments();
  // Every worker has its own connection, also where several live in one process.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // The agent is on this machine: ask again soon.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // The repetition here keeps the request's id and shrinks its wait.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // gRPC names a unix peer after its socket's path, which need not be a valid host name.
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  return arguments;
}

// Pauses between attempts: doubling, and never beyond the deadline. False when that has passed.
class Pauses {
 public:
  Pauses(grpc::Channel& channel, MonoTime deadline) : channel_(channel), deadline_(deadline) {}

  bool Next() {
    const MonoTime now = MonoNow();
    if (now >= deadline_) return false;
    const absl::Duration pause = std::min(pause_, deadline_ - now);
    pause_ = std::min(pause_ * 2, kLongestPause);
    // A connection that is being made anew gets on only while somebody waits for it; otherwise gRPC
    // looks after it every 5 s.
    if (channel_.GetState(true) != GRPC_CHANNEL_READY) {
      channel_.WaitForConnected(absl::ToChronoTime(absl::Now() + pause));
      return true;
    }
    absl::SleepFor(pause);
    return true;
  }

 private:
  grpc::Channel& channel_;
  const MonoTime deadline_;
  absl::Duration pause_ = kFirstPause;
};

}  // namespace

AgentChannel::AgentChannel(const std::string& socket, const std::string& token)
    : socket_(socket),
      token_(token),
      channel_(grpc::CreateCustomChannel(absl::StrCat("unix:", socket),
                                         grpc::InsecureChannelCredentials(), Arguments())),
      local_(v1::Local::NewStub(channel_)),
      store_(socket, token) {}

absl::Status AgentChannel::CallOnce(absl::Duration wait, const Call& call) const {
  grpc::ClientContext context;
  if (!token_.empty()) context.AddMetadata(kTokenMetadata, token_);
  context.set_deadline(absl::ToChronoTime(absl::Now() + wait + kCallMargin));
  return Describe(FromGrpcStatus(call(&context)), wait);
}

absl::Status AgentChannel::Describe(const absl::Status& status, absl::Duration wait) const {
  if (absl::IsUnavailable(status)) {
    return absl::UnavailableError(
        absl::StrCat("the agent at ", socket_, " cannot be reached: ", status.message()));
  }
  // The second are gRPC's own words for "no answer at all"; the store says who or what is missing.
  if (absl::IsDeadlineExceeded(status) &&
      (status.message().empty() || status.message() == "Deadline Exceeded")) {
    return absl::DeadlineExceededError(absl::StrCat("the agent at ", socket_,
                                                    " did not answer within ",
                                                    absl::FormatDuration(wait + kCallMargin)));
  }
  return status;
}

absl::Status AgentChannel::Hello(const v1::HelloRequest& request, v1::HelloReply* reply,
                                 absl::Duration patience) {
  Pauses pauses(*channel_, MonoNow() + patience);
  while (true) {
    const absl::Status status = CallOnce(absl::ZeroDuration(), [&](grpc::ClientContext* context) {
      return local_->Hello(context, request, reply);
    });
    if (!absl::IsUnavailable(status) || !pauses.Next()) return status;
  }
}

absl::Status AgentChannel::AwaitEnd(grpc::ClientContext* context, const v1::HelloRequest& request,
                                    v1::GenerationEnd* reply) {
  if (!token_.empty()) context->AddMetadata(kTokenMetadata, token_);
  return FromGrpcStatus(local_->AwaitEnd(context, request, reply));
}

absl::Status AgentChannel::TakePlace(const v1::TakePlaceRequest& request, v1::HelloReply* reply) {
  grpc::ClientContext context;
  if (!token_.empty()) context.AddMetadata(kTokenMetadata, token_);
  return FromGrpcStatus(local_->TakePlace(&context, request, reply));
}

absl::Status AgentChannel::Rejoin(const v1::RejoinRequest& request, v1::HelloReply* reply,
                                  absl::Duration timeout) {
  return CallOnce(timeout, [&](grpc::ClientContext* context) {
    return local_->Rejoin(context, request, reply);
  });
}

absl::Status AgentChannel::Execute(v1::StoreRequest request, v1::StoreReply* reply,
                                   absl::Duration patience) {
  const absl::Duration wait = absl::Milliseconds(request.wait_ms());
  const MonoTime waits_until = MonoNow() + wait;
  Pauses pauses(*channel_, wait > absl::ZeroDuration() ? waits_until : MonoNow() + patience);
  while (true) {
    const absl::Duration left = std::max(waits_until - MonoNow(), absl::ZeroDuration());
    request.set_wait_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(left)));
    // One that does not wait by itself still waits for a server that is away.
    const absl::Duration limit = wait > absl::ZeroDuration() ? left : patience;
    absl::Status status = Describe(store_.Execute(request, limit + kCallMargin, reply), limit);
    if (status.ok() && reply->code() != 0) {
      status = absl::Status(static_cast<absl::StatusCode>(reply->code()), reply->message());
    }
    if (!absl::IsUnavailable(status) || !pauses.Next()) return status;
  }
}

}  // namespace cadre
