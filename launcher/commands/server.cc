// cadre server: serves jobs until it is told to end.
#include "rendezvous/service/server.h"

#include <signal.h>
#include <stdio.h>

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/attach/attach.h"
#include "launcher/attach/etcd.h"
#include "launcher/attach/http.h"
#include "launcher/attach/state_directory.h"
#include "launcher/commands/commands.h"
#include "launcher/display/output_writer.h"
#include "launcher/environment/endpoint.h"
#include "launcher/environment/interruptible.h"
#include "launcher/flags/settings.h"
#include "launcher/spec/scalars.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/service/listening.h"
#include "rendezvous/service/replica.h"
#include "rendezvous/web/dashboard/dashboard.h"
#include "rpc/channels.h"

namespace cadre::launcher {
namespace {

constexpr absl::Duration kDrainTimeout = absl::Seconds(2);

std::vector<Flag> Flags() {
  return {
      {"host", "ADDRESS", "Where to listen [127.0.0.1]."},
      {"port", "PORT", "Likewise; 0 for one that is free [29400]."},
      {"token-file", "FILE", "What callers must carry; needed off loopback."},
      {"state-dir", "DIR",
       "Where the state outlives the server; 'none' for nowhere "
       "[~/.local/state/cadre/server-PORT]."},
      {"etcd", "URL[,...]",
       "Keep the state in this etcd, shared with other servers, of which one leads."},
      {"etcd-prefix", "PREFIX", "What its keys begin with [/cadre/server/]."},
      {"etcd-tls-dir", "DIR", "Mutual TLS with etcd: ca.pem, cert.pem and key.pem in DIR."},
      {"tls-dir", "DIR", "Mutual TLS with ca.pem, cert.pem and key.pem in DIR."},
      {"insecure", "", "Serve clear text as well, also off loopback."},
      {"http", "HOST[:PORT]", "Dashboard and metrics there [nowhere; port 29480]."},
      {"log-dir", "DIR", "The jobs' log directory, where this machine has it, to show output."}};
}

absl::StatusOr<std::string> StateDir(const Settings& settings, int port) {
  if (const std::optional<Setting> given = settings.Get("state-dir")) {
    if (!given->value.empty()) return given->value;
    return absl::InvalidArgumentError(
        absl::StrCat(given->origin, ": expected a directory, or none for nowhere, got ''"));
  }
  // A port that is another one each time says nothing about whose state it is.
  if (port == 0) return std::string(kNoStateDir);
  return DefaultStateDir(port);
}

int WaitForSignal() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&signals, signal);
  int received = 0;
  while (sigwait(&signals, &received) != 0) {
  }
  return received;
}

// The flags, read.
struct Asked {
  service::ServerOptions listen;
  // As the user wrote it.
  std::string host;
  std::string state_dir;
  std::optional<log::EtcdOptions> etcd;
  std::optional<web::DashboardOptions> http;
  // What crosses the network may be in clear, because --insecure said so.
  bool insecure = false;
};

absl::StatusOr<Asked> Read(const Settings& settings) {
  const Interruptible wait;
  Asked asked;
  const std::string port_text = settings.GetOr("port", absl::StrCat(kDefaultRendezvousPort));
  const absl::StatusOr<uint32_t> port = ParseCount(port_text);
  if (!port.ok() || *port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--port: expected a port from 0 to 65535, got '", port_text, "'"));
  }
  asked.listen.port = static_cast<int>(*port);
  asked.host = HostIn(settings.GetOr("host", "127.0.0.1"));
  const absl::StatusOr<ResolvedEndpoint> at = Resolve({asked.host, asked.listen.port});
  if (!at.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--host: ", at.status().message(),
                     absl::StrContains(asked.host, ':') ? "; a port goes into --port" : ""));
  }
  asked.listen.host = at->address;
  const std::string token_file = settings.GetOr("token-file", "");
  if (*port == 0 && token_file.empty()) {
    return absl::InvalidArgumentError(
        "--port 0 needs --token-file: the shared token is kept by port");
  }
  ASSIGN_OR_RETURN(const FoundToken token,
                   FindToken(token_file, asked.host, asked.listen.port, at->loopback));
  ASSIGN_OR_RETURN(const bool insecure, settings.Switch("insecure"));
  ASSIGN_OR_RETURN(const rpc::TransportSecurity security,
                   SecurityOf(settings.GetOr("tls-dir", ""), insecure, token, at->loopback));
  asked.listen.security = ForServer(security, token);
  asked.listen.token = token.token;
  asked.listen.token_file = token.file;
  asked.insecure = insecure && !at->loopback;
  const std::string http = settings.GetOr("http", "");
  if (!http.empty()) {
    ASSIGN_OR_RETURN(asked.http, ReadHttp(http, token_file.empty() ? "" : token.token,
                                          asked.listen.security.tls_dir));
    asked.http->log_dir = settings.GetOr("log-dir", "");
  }
  ASSIGN_OR_RETURN(asked.etcd, EtcdFrom(settings, kDefaultEtcdPrefix));
  if (asked.etcd.has_value()) return asked;
  ASSIGN_OR_RETURN(asked.state_dir, StateDir(settings, asked.listen.port));
  return asked;
}

// In the order of construction: who serves ends first, the core last.
struct Served {
  std::unique_ptr<host::CoreThread> core;
  std::unique_ptr<service::Server> server;
  std::unique_ptr<service::Replica> replica;
  std::unique_ptr<web::Dashboard> dashboard;
  // Where the state is, for the log.
  std::string state;
};

absl::Status StartAlone(const Asked& asked, const host::LogFunction& log, Served* serving) {
  const CoreConfig config = host::NewCoreConfig();
  ASSIGN_OR_RETURN(log::OpenedLog state, OpenState(asked.state_dir, config));
  serving->state = asked.state_dir == kNoStateDir
                       ? ", keeping no state"
                       : absl::StrCat(", state in ", asked.state_dir, " (",
                                      Count(state.records.size(), "record"), ")");
  serving->core = std::make_unique<host::CoreThread>(config, log, std::move(state));
  ASSIGN_OR_RETURN(serving->server, service::Server::Start(asked.listen, *serving->core));
  return absl::OkStatus();
}

absl::Status StartReplica(const Asked& asked, const host::LogFunction& log, Served* serving) {
  serving->state = absl::StrCat(", state in etcd under ", asked.etcd->prefix);
  ASSIGN_OR_RETURN(serving->server,
                   service::Server::Start(asked.listen, std::shared_ptr<host::CoreThread>()));
  service::ReplicaOptions replica;
  replica.etcd = *asked.etcd;
  const bool anywhere = asked.listen.host == "0.0.0.0" || asked.listen.host == "::";
  replica.address = service::HostPort(anywhere ? HostName() : asked.host, serving->server->port());
  replica.core = host::NewCoreConfig();
  replica.log = log;
  replica.wrap = Wrapped;
  ASSIGN_OR_RETURN(serving->replica, service::Replica::Start(replica, *serving->server));
  return absl::OkStatus();
}

absl::Status StartDashboard(web::DashboardOptions options, const host::LogFunction& log,
                            Served* serving) {
  options.token_now = [server = serving->server.get()] { return server->token(); };
  ASSIGN_OR_RETURN(serving->dashboard,
                   web::Dashboard::Start(
                       options, [server = serving->server.get()] { return server->Serving(); }));
  log(absl::StrCat("dashboard at ", HttpAddress(options, *serving->dashboard)));
  return absl::OkStatus();
}

int Run(const Parsed& parsed) {
  const absl::StatusOr<Settings> settings = MachineSettings(parsed, Flags(), "server", Flags());
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  absl::StatusOr<Asked> asked = Read(*settings);
  if (!asked.ok()) return Fail(kExitUsage, asked.status().message());
  rpc::QuietGrpcLog();
  OutputWriter writer;
  const auto log = [&writer](const std::string& line) {
    writer.Write(2, absl::StrCat(absl::FormatTime("%Y-%m-%d %H:%M:%E3S ", absl::Now(),
                                                  absl::LocalTimeZone()),
                                 EscapeControl(line), "\n"));
  };
  asked->listen.log = log;
  if (asked->insecure) log(kServesClearNotice);
  // A port in use is the clearer message where the state is in use with it.
  absl::Status started = service::CheckListen(asked->listen.host, asked->listen.port);
  Served serving;
  if (started.ok()) {
    started = asked->etcd.has_value() ? StartReplica(*asked, log, &serving)
                                      : StartAlone(*asked, log, &serving);
  }
  if (started.ok() && asked->http.has_value()) {
    started = StartDashboard(*asked->http, log, &serving);
  }
  if (!started.ok()) {
    return Fail(absl::IsInvalidArgument(started) ? kExitUsage : kExitUnavailable,
                started.message());
  }
  log(absl::StrCat("serving at ", service::HostPort(asked->host, serving.server->port()),
                   serving.state));
  const int signal = WaitForSignal();
  log(absl::StrCat("received signal ", signal, ", ending"));
  if (serving.dashboard != nullptr) serving.dashboard->Finish(kHttpFinishTimeout);
  serving.replica.reset();
  serving.server->Shutdown(signal == SIGQUIT ? absl::ZeroDuration() : kDrainTimeout);
  writer.Flush(absl::Seconds(2));
  return 0;
}

}  // namespace

Command ServerCommand() {
  Command command;
  command.name = "server";
  command.summary = "Serve the rendezvous of jobs until SIGINT or SIGTERM.";
  command.flags = Flags();
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
