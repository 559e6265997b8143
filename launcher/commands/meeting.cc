#include "launcher/commands/meeting.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/grpc_link/grpc_link.h"
#include "base/status_macros.h"
#include "base/token.h"
#include "launcher/commands/state.h"
#include "launcher/embedded_link.h"
#include "launcher/endpoint/endpoint.h"
#include "proto/channel_arguments.h"
#include "rendezvous/service/listen_check.h"

namespace cadre {
namespace {

absl::StatusOr<std::unique_ptr<CoreThread>> StartCore(const RunOptions& options) {
  CoreConfig config = NewCoreConfig();
  // This server ends with its launcher, and so would every other job that it took in.
  config.only_job = options.job.name();
  absl::StatusOr<OpenedLog> state = OpenState(options.state_dir, config);
  // ALREADY_EXISTS would mean that somebody serves at the endpoint, and that one can be joined.
  if (absl::IsAlreadyExists(state.status())) {
    return absl::InvalidArgumentError(state.status().message());
  }
  RETURN_IF_ERROR(state.status());
  return std::make_unique<CoreThread>(config, nullptr, *std::move(state));
}

// Serves at the endpoint; ALREADY_EXISTS when somebody does.
absl::Status Serve(const RunOptions& options, const ResolvedEndpoint& at, const std::string& token,
                   Meeting& meeting) {
  // Whoever has the port serves: it is looked at before the state is, which may be in use with it.
  RETURN_IF_ERROR(CheckListen(options.bind_host.empty() ? at.address : options.bind_host, at.port));
  ASSIGN_OR_RETURN(std::unique_ptr<CoreThread> core, StartCore(options));
  ServerOptions server;
  server.host = options.bind_host.empty() ? at.address : options.bind_host;
  server.port = at.port;
  server.token = token;
  server.security.tls_dir = options.tls_dir;
  ASSIGN_OR_RETURN(meeting.server, Server::Start(server, *core));
  meeting.core = std::move(core);
  meeting.link = MakeEmbeddedLink(*meeting.core);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> FindToken(const std::string& token_file, const std::string& host,
                                      int port, bool loopback) {
  if (!token_file.empty()) {
    absl::StatusOr<std::string> token = ReadTokenFile(token_file);
    if (token.ok()) return token;
    return absl::InvalidArgumentError(absl::StrCat("--token-file: ", token.status().message()));
  }
  if (loopback) return LoopbackToken(port);
  return absl::InvalidArgumentError(absl::StrCat(
      host,
      " is not on this machine's loopback, so a token is needed: make one with 'cadre token "
      "new FILE', give every node a copy, and add --token-file FILE"));
}

absl::StatusOr<Meeting> ArrangeMeeting(const RunOptions& options) {
  Meeting meeting;
  meeting.address = "127.0.0.1";
  if (!options.endpoint.has_value()) {
    ASSIGN_OR_RETURN(meeting.core, StartCore(options));
    meeting.link = MakeEmbeddedLink(*meeting.core);
    return meeting;
  }
  QuietGrpcLog();
  const Endpoint& endpoint = *options.endpoint;
  meeting.endpoint = HostPort(endpoint.host, endpoint.port);
  const absl::StatusOr<ResolvedEndpoint> at = Resolve(endpoint);
  meeting.loopback = at.ok() && at->loopback;
  ASSIGN_OR_RETURN(const std::string token,
                   FindToken(options.token_file, endpoint.host, endpoint.port, meeting.loopback));
  if (at.ok() && !at->loopback) meeting.address = AddressTowards(at->address, at->port);
  if (at.ok() && at->here) {
    const absl::Status served = Serve(options, *at, token, meeting);
    if (served.ok()) return meeting;
    if (!absl::IsAlreadyExists(served)) return served;
  }
  GrpcLinkOptions link;
  // An address of this machine is named as the server was told it; any other name is looked up
  // again with every attempt, because it may move.
  link.endpoint = at.ok() && at->here ? HostPort(at->address, at->port) : meeting.endpoint;
  link.token = token;
  link.security.tls_dir = options.tls_dir;
  meeting.link = MakeGrpcLink(std::move(link));
  return meeting;
}

}  // namespace cadre
