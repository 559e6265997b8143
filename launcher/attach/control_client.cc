#include "launcher/attach/control_client.h"

#include <grpcpp/grpcpp.h>
#include <stdio.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/link/link_status.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "base/tokens/renewed_token.h"
#include "launcher/environment/endpoint.h"
#include "launcher/environment/signals.h"
#include "proto/control.grpc.pb.h"
#include "rpc/channels.h"
#include "rpc/message_limits.h"
#include "rpc/status_details.h"
#include "rpc/tls/credentials.h"
#include "rpc/tls/transport_security.h"

namespace cadre::launcher {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(10);
// With several servers, a silent one must leave time for the others.
constexpr absl::Duration kCallTimeoutOfSeveral = absl::Seconds(3);
// Nodes may need thirteen seconds of it for native stacks (rendezvous/host/agent_requests.h).
constexpr absl::Duration kStacksCallTimeout = absl::Seconds(16);
// How long, and at what interval, a submission whose answer was lost is repeated.
constexpr absl::Duration kSubmitTimeout = absl::Seconds(10);
// Jobs go on for as long without a server.
constexpr absl::Duration kStepSubmitTimeout = absl::Seconds(60);
constexpr absl::Duration kSubmitRetryInterval = absl::Milliseconds(250);
// An overloaded server closes connections that have waited for half a second, and serves the newest
// (rendezvous/service/acceptor.h).
constexpr int kReconnects = 5;

bool WasClosedAtOnce(const absl::Status& failed) {
  const rpc::ConnectError why = rpc::ConnectErrorOf(failed.message());
  return rpc::NeverConnected(failed.message()) &&
         (why == rpc::ConnectError::kReset || why == rpc::ConnectError::kClosedSilently);
}

// The error of a call that no Cadre server has answered.
absl::Status NoAnswerError(const std::string& endpoint, const absl::Status& status,
                           absl::Duration limit) {
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(absl::StrCat(
        "the server at ", endpoint, " does not answer within ", absl::FormatDuration(limit)));
  }
  const bool refused = rpc::ConnectErrorOf(status.message()) == rpc::ConnectError::kRefused;
  return absl::UnavailableError(absl::StrCat(
      agent::DescribeEnd(endpoint, status, false).message(),
      refused
          ? "; is 'cadre server' running there? Name another server with --server. A job of 'cadre "
            "run --standalone' has no server: run 'cadre status', 'why' or 'logs' on its machine"
          : ""));
}

}  // namespace

struct ControlClient::State {
  struct Peer {
    std::string endpoint;
    std::string address;
    // Null: not connected.
    std::unique_ptr<v1::Control::Stub> stub;
  };

  explicit State(const ServerAddresses& servers)
      : security(servers.security), token(servers.token.token, servers.token.file) {
    for (size_t i = 0; i < servers.names.size(); ++i) {
      this->servers.push_back({servers.names[i], servers.addresses[i], nullptr});
    }
  }

  // Connects to all servers to which there is no connection with this token.
  absl::Status Connect(const std::string& now) {
    for (Peer& server : servers) {
      if (now != connected_with) server.stub.reset();
      if (server.stub != nullptr) continue;
      const auto credentials = rpc::MakeChannelCredentials(security, now);
      if (!credentials.ok()) {
        // After the first time the files are being replaced.
        return connected_with.empty() ? credentials.status()
                                      : absl::UnavailableError(credentials.status().message());
      }
      grpc::ChannelArguments arguments = rpc::ClientChannelArguments({}, rpc::kListBytesMax);
      // Connections that were made with the old files must not be reused.
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      server.stub =
          v1::Control::NewStub(grpc::CreateCustomChannel(server.address, *credentials, arguments));
    }
    connected_with = now;
    return absl::OkStatus();
  }

  // Calls the servers in turn until one answers: of several only the leader does.
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(grpc::Status (v1::Control::Stub::*method)(grpc::ClientContext*,
                                                                       const Request&, Reply*),
                             const Request& request,
                             absl::Duration min_timeout = absl::ZeroDuration()) {
    const absl::Duration limit =
        std::max(min_timeout, servers.size() == 1 ? kCallTimeout : kCallTimeoutOfSeveral);
    std::string text;
    absl::StatusCode code = absl::StatusCode::kUnavailable;
    unanswered = false;
    const std::string now = token.Current();
    RETURN_IF_ERROR(Connect(now));
    for (Peer& server : servers) {
      bool by_server = false;
      absl::StatusOr<Reply> answer = Ask(server, method, request, limit, &by_server);
      for (int i = 0; i < kReconnects && WasClosedAtOnce(answer.status()); ++i) {
        server.stub.reset();
        RETURN_IF_ERROR(Connect(now));
        answer = Ask(server, method, request, limit, &by_server);
      }
      if (answer.ok()) return answer;
      absl::Status failed = answer.status();
      const bool transient = absl::IsUnavailable(failed) || absl::IsDeadlineExceeded(failed);
      if (by_server || !transient) {
        failed = absl::Status(failed.code(),
                              absl::StrCat("server ", server.endpoint, ": ", failed.message()));
      } else {
        server.stub.reset();
        unanswered = unanswered || !rpc::NeverConnected(failed.message());
        failed = NoAnswerError(server.endpoint, failed, limit);
      }
      absl::StrAppend(&text, text.empty() ? "" : "; ", failed.message());
      code = failed.code();
      if (!transient) break;
    }
    return absl::Status(code, text);
  }

  // Calls this server. `by_server`: the error comes from the server itself.
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Ask(Peer& server,
                            grpc::Status (v1::Control::Stub::*method)(grpc::ClientContext*,
                                                                      const Request&, Reply*),
                            const Request& request, absl::Duration limit, bool* by_server) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + limit));
    context.AddMetadata(rpc::kTokenMetadata, connected_with);
    Reply reply;
    const grpc::Status status = ((*server.stub).*method)(&context, request, &reply);
    if (status.ok()) return reply;
    *by_server = context.GetServerTrailingMetadata().count(rpc::kServerMetadata) > 0;
    const absl::Status failed = rpc::FromGrpcStatus(status);
    if (!absl::IsUnimplemented(failed)) return failed;
    return absl::UnimplementedError(
        "it runs an earlier version of Cadre than this command and does not know this request: "
        "upgrade the server");
  }

  const rpc::TransportSecurity security;
  RenewedToken token;
  std::string connected_with;
  std::vector<Peer> servers;
  // The last call may have had an effect, but its answer was lost.
  bool unanswered = false;
};

ControlClient::ControlClient(std::unique_ptr<State> state) : state_(std::move(state)) {}
ControlClient::~ControlClient() = default;

namespace {

// A task of a step has its user's token in a variable of its own, because CADRE_TOKEN_FILE is the
// token of its agent there.
std::string TokenFileOf(const Settings& settings) {
  const std::optional<Setting> given = settings.Get("token-file");
  const bool by_flag = given.has_value() && absl::StartsWith(given->origin, "--");
  const auto own = settings.environment().find("CADRE_USER_TOKEN_FILE");
  if (!by_flag && own != settings.environment().end() && !own->second.empty()) return own->second;
  return given.has_value() ? given->value : "";
}

}  // namespace

absl::StatusOr<ServerAddresses> FindServers(const Settings& settings) {
  const Interruptible wait;
  const std::string text =
      settings.GetOr("server", absl::StrCat("127.0.0.1:", kDefaultRendezvousPort));
  ASSIGN_OR_RETURN(const std::vector<Endpoint> endpoints,
                   ParseEndpoints(text, kDefaultRendezvousPort));
  ServerAddresses servers;
  bool loopback = true;
  for (const Endpoint& endpoint : endpoints) {
    const absl::StatusOr<ResolvedEndpoint> at = Resolve(endpoint);
    if (!at.ok() && endpoints.size() == 1) return at.status();
    loopback = loopback && at.ok() && at->loopback;
    const std::string name = HostPort(endpoint.host, endpoint.port);
    servers.names.push_back(name);
    servers.addresses.push_back(at.ok() && at->here ? HostPort(at->address, at->port) : name);
  }
  ASSIGN_OR_RETURN(servers.token, FindToken(TokenFileOf(settings), endpoints[0].host,
                                            endpoints[0].port, loopback));
  ASSIGN_OR_RETURN(const bool insecure, settings.Switch("insecure"));
  ASSIGN_OR_RETURN(servers.security,
                   SecurityOf(settings.GetOr("tls-dir", ""), insecure, servers.token, loopback));
  servers.insecure = insecure && !loopback;
  return servers;
}

absl::StatusOr<std::unique_ptr<ControlClient>> ControlClient::Connect(const Settings& settings) {
  rpc::QuietGrpcLog();
  ASSIGN_OR_RETURN(const ServerAddresses servers, FindServers(settings));
  if (servers.insecure) fprintf(stderr, "cadre: %s\n", kInsecureNotice);
  auto state = std::make_unique<State>(servers);
  RETURN_IF_ERROR(state->Connect(state->token.Current()));
  return std::unique_ptr<ControlClient>(new ControlClient(std::move(state)));
}

absl::StatusOr<std::vector<v1::JobStatus>> ControlClient::List() {
  ASSIGN_OR_RETURN(const v1::ListJobsReply reply,
                   state_->Call(&v1::Control::Stub::ListJobs, v1::ListJobsRequest()));
  return std::vector<v1::JobStatus>(reply.jobs().begin(), reply.jobs().end());
}

absl::StatusOr<v1::JobStatus> ControlClient::Get(const std::string& job) {
  v1::GetJobRequest request;
  request.set_name(job);
  return state_->Call(&v1::Control::Stub::GetJob, request);
}

absl::StatusOr<v1::JobStatus> ControlClient::Cancel(const std::string& job,
                                                    const std::string& reason, bool at_once) {
  v1::CancelJobRequest request;
  request.set_name(job);
  request.set_reason(reason);
  request.set_at_once(at_once);
  return state_->Call(&v1::Control::Stub::CancelJob, request);
}

absl::StatusOr<v1::JobStatus> ControlClient::Requeue(const std::string& job,
                                                     const std::string& reason, bool hold) {
  v1::RequeueJobRequest request;
  request.set_name(job);
  request.set_reason(reason);
  request.set_hold(hold);
  return state_->Call(&v1::Control::Stub::RequeueJob, request);
}

absl::StatusOr<v1::JobStatus> ControlClient::Signal(const std::string& job, int signal,
                                                    v1::SignalJobRequest::Target target) {
  v1::SignalJobRequest request;
  request.set_name(job);
  request.set_signal(signal);
  request.set_target(target);
  return state_->Call(&v1::Control::Stub::SignalJob, request);
}

absl::StatusOr<v1::JobStatus> ControlClient::Update(const std::string& job,
                                                    const v1::JobUpdate& update) {
  v1::UpdateJobRequest request;
  request.set_name(job);
  *request.mutable_update() = update;
  return state_->Call(&v1::Control::Stub::UpdateJob, request);
}

absl::StatusOr<v1::JobStatus> ControlClient::Submit(const v1::JobSpec& spec,
                                                    const std::string& user,
                                                    const std::string& within,
                                                    const v1::ArrayElements& array) {
  v1::SubmitJobRequest request;
  if (array.indices_size() > 0) *request.mutable_array() = array;
  *request.mutable_spec() = spec;
  request.set_user(user);
  request.set_within(within);
  request.set_request_id(RandomToken());
  const MonoTime end = MonoNow() + (within.empty() ? kSubmitTimeout : kStepSubmitTimeout);
  bool unanswered = false;
  for (;;) {
    absl::StatusOr<v1::JobStatus> job = state_->Call(&v1::Control::Stub::SubmitJob, request);
    unanswered = unanswered || state_->unanswered;
    const bool transient =
        absl::IsUnavailable(job.status()) || absl::IsDeadlineExceeded(job.status());
    // A batch job goes on while its server is started again, and so do the steps that it begins.
    if (!transient || (!unanswered && within.empty())) return job;
    if (MonoNow() > end) {
      if (!unanswered) return job;
      return absl::Status(
          job.status().code(),
          absl::StrCat("job ", spec.name(), " may have been accepted: ", job.status().message(),
                       ". Once the server answers, 'cadre status ", spec.name(),
                       "' shows whether it was"));
    }
    absl::SleepFor(kSubmitRetryInterval);
  }
}

absl::StatusOr<v1::ListNodesReply> ControlClient::Nodes() {
  return state_->Call(&v1::Control::Stub::ListNodes, v1::ListNodesRequest());
}

absl::StatusOr<v1::ListNodesReply> ControlClient::Drain(const std::string& node, bool drained,
                                                        const std::string& reason) {
  v1::DrainNodeRequest request;
  request.set_node(node);
  request.set_drained(drained);
  request.set_reason(reason);
  return state_->Call(&v1::Control::Stub::DrainNode, request);
}

absl::StatusOr<v1::ReadLogReply> ControlClient::ReadLog(const v1::ReadLogRequest& request) {
  return state_->Call(&v1::Control::Stub::ReadLog, request);
}

absl::StatusOr<v1::GetStacksReply> ControlClient::GetStacks(const v1::GetStacksRequest& request) {
  return state_->Call(&v1::Control::Stub::GetStacks, request, kStacksCallTimeout);
}

absl::StatusOr<v1::HistoryReply> ControlClient::History(const v1::HistoryRequest& request) {
  return state_->Call(&v1::Control::Stub::ListHistory, request);
}

absl::StatusOr<v1::UsageReply> ControlClient::Usage(const v1::UsageRequest& request) {
  return state_->Call(&v1::Control::Stub::GetUsage, request);
}

std::vector<Flag> ControlFlags() {
  return {{"server", "HOST[:PORT][,...]",
           "The server to ask [127.0.0.1:29400]. Several are tried in turn.", kServerGroup},
          {"token-file", "FILE", "The server's token; needed off loopback.", kServerGroup},
          {"tls-dir", "DIR", "Mutual TLS with ca.pem, cert.pem and key.pem in DIR.", kServerGroup},
          {"insecure", "", "Clear text, also off loopback.", kServerGroup}};
}

int ControlExit(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return kExitUnavailable;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kInternal:
      return kExitInternal;
    default:
      return 1;
  }
}

}  // namespace cadre::launcher
