#include "launcher/commands/control_client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "launcher/commands/meeting.h"
#include "launcher/endpoint/endpoint.h"
#include "proto/channel_arguments.h"
#include "proto/control.grpc.pb.h"

namespace cadre {
namespace {

constexpr std::chrono::seconds kCallTimeout(10);

}  // namespace

struct ControlClient::State {
  std::string endpoint;
  std::string token;
  std::unique_ptr<v1::Control::Stub> stub;

  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(grpc::Status (v1::Control::Stub::*method)(grpc::ClientContext*,
                                                                       const Request&, Reply*),
                             const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
    context.AddMetadata(kTokenMetadata, token);
    Reply reply;
    const grpc::Status status = ((*stub).*method)(&context, request, &reply);
    if (status.ok()) return reply;
    const absl::Status failed = FromGrpcStatus(status);
    return absl::Status(failed.code(), absl::StrCat("server ", endpoint, ": ", failed.message()));
  }
};

ControlClient::ControlClient(std::unique_ptr<State> state) : state_(std::move(state)) {}
ControlClient::~ControlClient() = default;

absl::StatusOr<std::unique_ptr<ControlClient>> ControlClient::Connect(const Settings& settings) {
  QuietGrpcLog();
  const std::string text =
      settings.GetOr("server", absl::StrCat("127.0.0.1:", kDefaultRendezvousPort));
  ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(text, kDefaultRendezvousPort));
  const absl::StatusOr<ResolvedEndpoint> at = Resolve(endpoint);
  if (!at.ok()) return at.status();
  auto state = std::make_unique<State>();
  state->endpoint = HostPort(endpoint.host, endpoint.port);
  ASSIGN_OR_RETURN(state->token, FindToken(settings.GetOr("token-file", ""), endpoint.host,
                                           endpoint.port, at->loopback));
  TransportSecurity security;
  security.tls_dir = settings.GetOr("tls-dir", "");
  ASSIGN_OR_RETURN(const auto credentials, MakeChannelCredentials(security));
  state->stub = v1::Control::NewStub(
      grpc::CreateCustomChannel(at->here ? HostPort(at->address, at->port) : state->endpoint,
                                credentials, ClientChannelArguments()));
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
                                                    const std::string& reason) {
  v1::CancelJobRequest request;
  request.set_name(job);
  request.set_reason(reason);
  return state_->Call(&v1::Control::Stub::CancelJob, request);
}

std::vector<Flag> ControlFlags() {
  return {{"server", "HOST[:PORT]", "The server to ask [127.0.0.1:29400]."},
          {"token-file", "FILE", "The server's token; needed off loopback."},
          {"tls-dir", "DIR", "Mutual TLS with ca.pem, cert.pem and key.pem in DIR."}};
}

int ControlExit(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnauthenticated:
      return kExitUnavailable;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kInternal:
      return kExitInternal;
    default:
      return 1;
  }
}

}  // namespace cadre
