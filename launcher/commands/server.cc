// cadre server: serves jobs until it is told to end.
#include "rendezvous/service/server.h"

#include <signal.h>
#include <stdio.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/meeting.h"
#include "launcher/commands/state.h"
#include "launcher/display/escape.h"
#include "launcher/display/output_writer.h"
#include "launcher/endpoint/endpoint.h"
#include "launcher/flags/settings.h"
#include "launcher/spec/scalars.h"
#include "proto/channel_arguments.h"
#include "rendezvous/service/core_thread.h"
#include "rendezvous/service/listen_check.h"

namespace cadre {
namespace {

constexpr absl::Duration kDrainTimeout = absl::Seconds(2);

std::vector<Flag> Flags() {
  return {{"host", "ADDRESS", "Where to listen [127.0.0.1]."},
          {"port", "PORT", "Likewise; 0 for one that is free [29400]."},
          {"token-file", "FILE", "What callers must carry; needed off loopback."},
          {"state-dir", "DIR",
           "Where the state outlives the server; 'none' for nowhere "
           "[~/.local/state/cadre/server-PORT]."},
          {"tls-dir", "DIR", "Mutual TLS with ca.pem, cert.pem and key.pem in DIR."}};
}

absl::StatusOr<std::string> StateDir(const Settings& settings, int port) {
  const std::string given = settings.GetOr("state-dir", "");
  if (!given.empty()) return given;
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

int Run(const Parsed& parsed) {
  const Settings settings(parsed, ReadEnvironment(), Flags());
  const std::string port_text = settings.GetOr("port", absl::StrCat(kDefaultRendezvousPort));
  const absl::StatusOr<uint32_t> port = ParseCount(port_text);
  if (!port.ok() || *port > 65535) {
    return Fail(kExitUsage,
                absl::StrCat("--port: expected a port from 0 to 65535, got '", port_text, "'"));
  }
  ServerOptions options;
  const std::string host = settings.GetOr("host", "127.0.0.1");
  const absl::StatusOr<ResolvedEndpoint> at = Resolve({host, static_cast<int>(*port)});
  if (!at.ok()) return Fail(kExitUsage, absl::StrCat("--host: ", at.status().message()));
  const std::string token_file = settings.GetOr("token-file", "");
  if (*port == 0 && token_file.empty()) {
    return Fail(kExitUsage, "--port 0 needs --token-file: the shared token is kept by port");
  }
  const absl::StatusOr<std::string> token =
      FindToken(token_file, host, static_cast<int>(*port), at->loopback);
  if (!token.ok()) return Fail(kExitUsage, token.status().message());
  const absl::StatusOr<std::string> state_dir = StateDir(settings, static_cast<int>(*port));
  if (!state_dir.ok()) return Fail(kExitUsage, state_dir.status().message());
  options.host = at->address;
  options.port = static_cast<int>(*port);
  options.token = *token;
  options.security.tls_dir = settings.GetOr("tls-dir", "");

  QuietGrpcLog();
  OutputWriter writer;
  const auto log = [&writer](const std::string& line) {
    writer.Write(2, absl::StrCat(absl::FormatTime("%Y-%m-%d %H:%M:%E3S ", absl::Now(),
                                                  absl::LocalTimeZone()),
                                 EscapeControl(line), "\n"));
  };
  // A port in use is the clearer message where the state is in use with it.
  const absl::Status free = CheckListen(options.host, options.port);
  if (!free.ok()) {
    return Fail(absl::IsInvalidArgument(free) ? kExitUsage : kExitUnavailable, free.message());
  }
  const CoreConfig config = NewCoreConfig();
  absl::StatusOr<OpenedLog> state = OpenState(*state_dir, config);
  if (!state.ok()) {
    const bool usage = absl::IsInvalidArgument(state.status());
    return Fail(usage ? kExitUsage : kExitUnavailable, state.status().message());
  }
  const size_t replayed = state->records.size();
  CoreThread core(config, log, *std::move(state));
  const absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options, core);
  if (!server.ok()) {
    const bool usage = absl::IsInvalidArgument(server.status());
    return Fail(usage ? kExitUsage : kExitUnavailable, server.status().message());
  }
  log(absl::StrCat("serving at ", HostPort(host, (*server)->port()),
                   *state_dir == kNoStateDir
                       ? ", keeping no state"
                       : absl::StrCat(", state in ", *state_dir, " (", replayed, " records)")));
  const int signal = WaitForSignal();
  log(absl::StrCat("received signal ", signal, ", ending"));
  (*server)->Shutdown(signal == SIGQUIT ? absl::ZeroDuration() : kDrainTimeout);
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

}  // namespace cadre
