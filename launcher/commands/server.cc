// cadre server: serves jobs until it is stopped.
#include "rendezvous/service/server.h"

#include <signal.h>
#include <stdio.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
#include "launcher/attach/etcd_flags.h"
#include "launcher/attach/http_flag.h"
#include "launcher/attach/server_state.h"
#include "launcher/commands/commands.h"
#include "launcher/display/output_writer.h"
#include "launcher/environment/endpoint.h"
#include "launcher/environment/signals.h"
#include "launcher/flags/settings.h"
#include "launcher/spec/scalars.h"
#include "proto/accounting.pb.h"
#include "rendezvous/accounting/accounting.h"
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
      {"host", "ADDRESS", "Address to listen on [127.0.0.1]."},
      {"port", "PORT", "Port to listen on; 0 for a free one [29400]."},
      {"token-file", "FILE", "Token that clients must have; required off loopback."},
      {"state-dir", "DIR",
       "Directory that keeps the state across restarts, or 'none' "
       "[~/.local/state/cadre/server-PORT]."},
      {"etcd", "URL[,...]",
       "Keep the state in this etcd, shared with other servers, of which one leads."},
      {"etcd-prefix", "PREFIX", "Prefix of the keys in etcd [/cadre/server/]."},
      {"etcd-tls-dir", "DIR", "Mutual TLS with etcd: ca.pem, cert.pem and key.pem in DIR."},
      {"tls-dir", "DIR", "Mutual TLS with ca.pem, cert.pem and key.pem in DIR."},
      {"insecure", "", "Serve clear text as well, also off loopback."},
      {"http", "HOST[:PORT]", "Serve the dashboard and metrics there [not served; port 29480]."},
      {"log-dir", "DIR",
       "The jobs' log directory, if this machine has it, so that the dashboard shows output."},
      {"accounting", "FILE",
       "Keep ended jobs in this file, or 'none' [accounting.sqlite in the state directory; with "
       "--etcd none]."},
      {"keep-accounting", "DURATION", "How long ended jobs are kept there [8760h]."}};
}

absl::StatusOr<std::string> StateDir(const Settings& settings, int port) {
  if (const std::optional<Setting> given = settings.Get("state-dir")) {
    if (!given->value.empty()) return given->value;
    return absl::InvalidArgumentError(
        absl::StrCat(given->origin, ": expected a directory, or 'none', got ''"));
  }
  // A random port does not identify a state.
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

// The parsed flags.
struct ServerSetup {
  service::ServerOptions listen;
  // As the user wrote it.
  std::string host;
  std::string state_dir;
  std::optional<log::EtcdOptions> etcd;
  std::optional<web::DashboardOptions> http;
  // Its path is empty if no accounting is kept.
  accounting::AccountingOptions accounting;
  // --insecure was given: network traffic may be in clear text.
  bool insecure = false;
};

// `state_dir`: where the state is; empty with etcd.
absl::StatusOr<accounting::AccountingOptions> ReadAccounting(const Settings& settings,
                                                             const std::string& state_dir) {
  accounting::AccountingOptions options;
  const bool has_dir = !state_dir.empty() && state_dir != kNoStateDir;
  options.path = settings.GetOr(
      "accounting", has_dir ? absl::StrCat(state_dir, "/accounting.sqlite") : kNoStateDir);
  if (options.path == kNoStateDir) options.path.clear();
  const std::string keep = settings.GetOr("keep-accounting", "");
  if (keep.empty()) return options;
  const absl::StatusOr<absl::Duration> duration = ParseDuration(keep);
  if (!duration.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--keep-accounting: ", duration.status().message()));
  }
  options.keep = *duration;
  return options;
}

absl::StatusOr<ServerSetup> Read(const Settings& settings) {
  const Interruptible wait;
  ServerSetup setup;
  const std::string port_text = settings.GetOr("port", absl::StrCat(kDefaultRendezvousPort));
  const absl::StatusOr<uint32_t> port = ParseCount(port_text);
  if (!port.ok() || *port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--port: expected a port from 0 to 65535, got '", port_text, "'"));
  }
  setup.listen.port = static_cast<int>(*port);
  setup.host = HostIn(settings.GetOr("host", "127.0.0.1"));
  const absl::StatusOr<ResolvedEndpoint> at = Resolve({setup.host, setup.listen.port});
  if (!at.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--host: ", at.status().message(),
                     absl::StrContains(setup.host, ':') ? "; give the port with --port" : ""));
  }
  setup.listen.host = at->address;
  const std::string token_file = settings.GetOr("token-file", "");
  if (*port == 0 && token_file.empty()) {
    return absl::InvalidArgumentError(
        "--port 0 needs --token-file, because the token that your processes share is stored by "
        "port");
  }
  ASSIGN_OR_RETURN(const FoundToken token,
                   FindToken(token_file, setup.host, setup.listen.port, at->loopback));
  ASSIGN_OR_RETURN(const bool insecure, settings.Switch("insecure"));
  ASSIGN_OR_RETURN(const rpc::TransportSecurity security,
                   SecurityOf(settings.GetOr("tls-dir", ""), insecure, token, at->loopback));
  setup.listen.security = ForServer(security, token);
  setup.listen.token = token.token;
  setup.listen.token_file = token.file;
  setup.insecure = insecure && !at->loopback;
  const std::string http = settings.GetOr("http", "");
  if (!http.empty()) {
    ASSIGN_OR_RETURN(setup.http, ReadHttp(http, token_file.empty() ? "" : token.token,
                                          setup.listen.security.tls_dir));
    setup.http->log_dir = settings.GetOr("log-dir", "");
  }
  ASSIGN_OR_RETURN(setup.etcd, EtcdFrom(settings, kDefaultEtcdPrefix));
  if (!setup.etcd.has_value()) {
    ASSIGN_OR_RETURN(setup.state_dir, StateDir(settings, setup.listen.port));
  }
  ASSIGN_OR_RETURN(setup.accounting, ReadAccounting(settings, setup.state_dir));
  return setup;
}

// Destroyed in reverse order: dashboard and server first, then the core, and the accounting, which
// takes the jobs that end until then, last.
struct RunningServer {
  std::shared_ptr<accounting::Accounting> accounting;
  std::unique_ptr<host::CoreThread> core;
  std::unique_ptr<service::Server> server;
  std::unique_ptr<service::Replica> replica;
  std::unique_ptr<web::Dashboard> dashboard;
  // Where the state is, for the log.
  std::string state;
};

// Starts the accounting, if one is kept. Returns the options of the server, which answers from it.
service::ServerOptions StartAccounting(const ServerSetup& setup, const host::LogFunction& log,
                                       RunningServer* running) {
  service::ServerOptions listen = setup.listen;
  if (setup.accounting.path.empty()) return listen;
  accounting::AccountingOptions options = setup.accounting;
  options.log = log;
  running->accounting = std::make_shared<accounting::Accounting>(std::move(options));
  listen.accounting = running->accounting;
  return listen;
}

host::AccountFunction AccountIn(const std::shared_ptr<accounting::Accounting>& accounting) {
  if (accounting == nullptr) return nullptr;
  return [accounting](std::vector<v1::AccountedJob> ended, bool at_start) {
    if (at_start) return accounting->AddAtStart(std::move(ended));
    accounting->Add(std::move(ended));
  };
}

absl::Status StartSingleServer(const ServerSetup& setup, const host::LogFunction& log,
                               RunningServer* running) {
  const CoreConfig config = host::NewCoreConfig();
  ASSIGN_OR_RETURN(log::OpenedLog state, OpenState(setup.state_dir, config));
  running->state = setup.state_dir == kNoStateDir
                       ? ", keeping no state"
                       : absl::StrCat(", state in ", setup.state_dir, " (",
                                      Count(state.records.size(), "record"), ")");
  // The directory is there, and this server's alone, now that the state is open.
  const service::ServerOptions listen = StartAccounting(setup, log, running);
  running->core = std::make_unique<host::CoreThread>(config, log, std::move(state),
                                                     AccountIn(running->accounting));
  ASSIGN_OR_RETURN(running->server, service::Server::Start(listen, *running->core));
  return absl::OkStatus();
}

absl::Status StartReplica(const ServerSetup& setup, const host::LogFunction& log,
                          RunningServer* running) {
  running->state = absl::StrCat(", state in etcd under ", setup.etcd->prefix);
  ASSIGN_OR_RETURN(running->server, service::Server::Start(StartAccounting(setup, log, running),
                                                           std::shared_ptr<host::CoreThread>()));
  service::ReplicaOptions replica;
  replica.etcd = *setup.etcd;
  const bool anywhere = setup.listen.host == "0.0.0.0" || setup.listen.host == "::";
  replica.address = service::HostPort(anywhere ? HostName() : setup.host, running->server->port());
  replica.core = host::NewCoreConfig();
  replica.log = log;
  replica.account = AccountIn(running->accounting);
  replica.wrap = WrapLog;
  ASSIGN_OR_RETURN(running->replica, service::Replica::Start(replica, *running->server));
  return absl::OkStatus();
}

absl::Status StartDashboard(web::DashboardOptions options, const host::LogFunction& log,
                            RunningServer* running) {
  options.token_now = [server = running->server.get()] { return server->token(); };
  ASSIGN_OR_RETURN(running->dashboard,
                   web::Dashboard::Start(
                       options, [server = running->server.get()] { return server->Serving(); }));
  log(absl::StrCat("dashboard at ", HttpAddress(options, *running->dashboard)));
  return absl::OkStatus();
}

int Run(const Parsed& parsed) {
  const absl::StatusOr<Settings> settings = MachineSettings(parsed, Flags(), "server", Flags());
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  absl::StatusOr<ServerSetup> setup = Read(*settings);
  if (!setup.ok()) return Fail(kExitUsage, setup.status().message());
  rpc::QuietGrpcLog();
  OutputWriter writer;
  const auto log = [&writer](const std::string& line) {
    writer.Write(2, absl::StrCat(absl::FormatTime("%Y-%m-%d %H:%M:%E3S ", absl::Now(),
                                                  absl::LocalTimeZone()),
                                 EscapeControl(line), "\n"));
  };
  setup->listen.log = log;
  if (setup->insecure) log(kServesClearNotice);
  // Checked first, because "port in use" is the clearer message if the state is in use too.
  absl::Status started = service::CheckListen(setup->listen.host, setup->listen.port);
  RunningServer running;
  if (started.ok()) {
    started = setup->etcd.has_value() ? StartReplica(*setup, log, &running)
                                      : StartSingleServer(*setup, log, &running);
  }
  if (started.ok() && setup->http.has_value()) {
    started = StartDashboard(*setup->http, log, &running);
  }
  if (!started.ok()) {
    return Fail(absl::IsInvalidArgument(started) ? kExitUsage : kExitUnavailable,
                started.message());
  }
  log(absl::StrCat("serving at ", service::HostPort(setup->host, running.server->port()),
                   running.state));
  const int signal = WaitForSignal();
  log(absl::StrCat("received signal ", signal, ", ending"));
  if (running.dashboard != nullptr) running.dashboard->Finish(kHttpFinishTimeout);
  running.replica.reset();
  running.server->Shutdown(signal == SIGQUIT ? absl::ZeroDuration() : kDrainTimeout);
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
