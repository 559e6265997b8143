#include "launcher/commands/run_node.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/adoption.h"
#include "agent/daemon.h"
#include "agent/run_files.h"
#include "agent/supervisor/client.h"
#include "agent/workers/python/program_versions.h"
#include "base/duration.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/user_directory.h"
#include "launcher/attach/attach.h"
#include "launcher/attach/etcd.h"
#include "launcher/attach/http.h"
#include "launcher/attach/local_control.h"
#include "launcher/attach/loopback_token.h"
#include "launcher/attach/security.h"
#include "launcher/attach/state_directory.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/past_runs.h"
#include "launcher/commands/run_history.h"
#include "launcher/display/output_writer.h"
#include "launcher/display/run_display.h"
#include "launcher/environment/launch_board.h"
#include "launcher/environment/slots.h"

namespace cadre::launcher {
namespace {

// How long the end waits for a terminal that does not read; and for a pipe, where the user has
// ended the job.
constexpr absl::Duration kFlushTimeout = absl::Seconds(2);
// And for other nodes to take the verdict.
constexpr absl::Duration kDrainTimeout = absl::Seconds(2);

uint64_t RandomIncarnation() {
  uint64_t value = 0;
  // The kernel gives eight bytes at once; 0 would mean "none".
  while (getrandom(&value, sizeof(value), 0) != sizeof(value) || value == 0) {
  }
  return value;
}

bool AsksForAdoption(const RunOptions& options) {
  return options.adopt_timeout > absl::ZeroDuration();
}

std::string NodeName(const RunOptions& options, const Attachment& attachment) {
  if (!options.node_name.empty()) return options.node_name;
  // One that is started again has another process id.
  if (AsksForAdoption(options)) return HostName();
  // Several launchers of one machine meet over loopback; their process ids tell them apart.
  if (!options.endpoints.empty() && attachment.loopback) {
    return absl::StrCat(HostName(), "-",
                        options.node_rank >= 0 ? static_cast<int64_t>(options.node_rank)
                                               : static_cast<int64_t>(getpid()));
  }
  return HostName();
}

agent::OutputOptions Output(const RunOptions& options, uint32_t slots) {
  agent::OutputOptions output = options.output;
  output.log_dir = options.job.logs().dir();
  for (uint32_t i = 0; i < slots; ++i) {
    const uint32_t only_file = options.redirects.Of(i) & ~options.tee.Of(i);
    output.standard_output.push_back({true, (only_file & 1) == 0});
    output.standard_error.push_back({true, (only_file & 2) == 0});
  }
  output.terminal_ranks.insert(options.job.logs().tee().begin(), options.job.logs().tee().end());
  return output;
}

// How a launcher that is started again knows this one; all but the name of its node is as the user
// gave it.
v1::AgentRun RunOf(const RunOptions& options, uint32_t slots) {
  v1::AgentRun run;
  run.set_job(options.job.name());
  run.set_node(options.node_name.empty() ? HostName() : options.node_name);
  std::error_code error;
  run.set_working_dir(std::filesystem::absolute(".", error).lexically_normal().string());
  for (const Endpoint& endpoint : options.endpoints) {
    absl::StrAppend(run.mutable_rendezvous(), HostPort(endpoint.host, endpoint.port), ",");
  }
  *run.mutable_command() = options.job.command();
  run.set_slots(slots);
  return run;
}

// Of what the job's program runs under on this node.
std::optional<v1::ProgramVersions> VersionsHere(const v1::JobSpec& job) {
  return agent::ProgramVersionsOf({job.command().begin(), job.command().end()}, job.working_dir(),
                                  [&job](const std::string& name) {
                                    const auto own = job.env().find(name);
                                    if (own != job.env().end()) return own->second;
                                    // As Python finds it.
                                    if (name == "HOME") return UserHome();
                                    const char* const value = getenv(name.c_str());
                                    return std::string(value == nullptr ? "" : value);
                                  });
}

agent::DaemonOptions Daemon(const RunOptions& options, const Attachment& attachment,
                            uint32_t slots) {
  agent::DaemonOptions daemon;
  daemon.core.job = options.job.name();
  daemon.core.incarnation = RandomIncarnation();
  daemon.core.server = attachment.endpoint;
  daemon.core.serves = attachment.core != nullptr;
  daemon.core.connect_timeout = FromProto(options.job.rendezvous().join_timeout());
  daemon.core.orphan_timeout = options.orphan_timeout;
  daemon.core.strict_fencing = options.strict_fencing;
  v1::Join& join = daemon.core.join;
  join.set_node(NodeName(options, attachment));
  // Two agents of one host are told apart by the node's name in every line.
  join.set_host(options.node_name.empty() ? HostName() : options.node_name);
  join.set_address(options.local_addr.empty() ? attachment.address : options.local_addr);
  join.set_slots(slots);
  // A submitted job's spec comes back with the Welcome.
  if (options.part == 0) *join.mutable_spec() = options.job;
  if (auto versions = VersionsHere(options.job)) *join.mutable_versions() = *std::move(versions);
  join.set_wanted_node_rank(options.node_rank);
  for (const std::string& node : options.expected_nodes) join.add_expected_nodes(node);
  join.set_master_addr(options.master_addr);
  join.set_master_port(options.master_port);
  join.set_strict_fencing(options.strict_fencing);
  join.set_part(options.part);
  if (AsksForAdoption(options)) {
    *join.mutable_adopt_timeout() = ToProto(options.adopt_timeout);
    daemon.adopt_timeout = options.adopt_timeout;
    daemon.run = RunOf(options, slots);
  }
  daemon.output = Output(options, slots);
  daemon.workers = options.workers;
  return daemon;
}

RunDisplayOptions Look(const RunOptions& options) {
  RunDisplayOptions look = DetectTerminal(options.no_progress);
  look.json = options.json;
  look.timeline = options.timeline;
  look.log_dir = options.job.logs().dir();
  look.nodes = options.job.nodes();
  return look;
}

// What this launcher serves. Null: another one serves.
web::Serving ServingOf(const Attachment& attachment) {
  if (attachment.server != nullptr) {
    return [server = attachment.server.get()] { return server->Serving(); };
  }
  if (attachment.core == nullptr) return nullptr;
  // Not the reader's to delete.
  return [core = std::shared_ptr<host::CoreThread>(std::shared_ptr<void>(),
                                                   attachment.core.get())] { return core; };
}

// The dashboard of what this launcher serves, if it is asked for. Null: it is not, or there is
// nothing to show.
absl::StatusOr<std::unique_ptr<web::Dashboard>> StartDashboard(const RunOptions& options,
                                                               const Attachment& attachment,
                                                               RunDisplay& display) {
  if (options.http.empty()) return nullptr;
  if (attachment.server == nullptr && attachment.core == nullptr) {
    display.Line("--http: another launcher serves, so there is nothing to show here");
    return nullptr;
  }
  ASSIGN_OR_RETURN(web::DashboardOptions http,
                   ReadHttp(options.http, attachment.token, options.tls_dir));
  http.log_dir = options.job.logs().dir();
  if (attachment.server != nullptr) {
    http.token_now = [server = attachment.server.get()] { return server->token(); };
  }
  ASSIGN_OR_RETURN(std::unique_ptr<web::Dashboard> dashboard,
                   web::Dashboard::Start(http, ServingOf(attachment)));
  display.Line(absl::StrCat("dashboard at ", HttpAddress(http, *dashboard)));
  return dashboard;
}

// The user's commands on this machine find the job, now and when it is over.
std::unique_ptr<LocalControl> AnswerCommands(const RunOptions& options,
                                             const Attachment& attachment) {
  const std::string log_dir = options.job.logs().dir();
  if (options.part == 0 && !log_dir.empty()) RememberLogDirectory(log_dir);
  const LocalControl::Serving serving = ServingOf(attachment);
  return serving ? LocalControl::Start(log_dir, options.job.name(), serving) : nullptr;
}

// What is served here is written down as long as the job goes on. Null: another one serves, or
// nothing is kept.
std::unique_ptr<RunHistory> KeepHistory(const RunOptions& options, const Attachment& attachment) {
  const std::string log_dir = options.job.logs().dir();
  const RunHistory::Serving serving = ServingOf(attachment);
  if (!serving || log_dir.empty()) return nullptr;
  return std::make_unique<RunHistory>(log_dir, options.job.name(), serving);
}

// The process that started this launcher and wrote the token to its standard input keeps that open:
// when it ends, so does the job, as by SIGTERM.
void EndWithStandardInput() {
  std::thread([] {
    char byte;
    ssize_t got = 0;
    while ((got = read(STDIN_FILENO, &byte, 1)) > 0 || (got < 0 && errno == EINTR)) {
    }
    kill(getpid(), SIGTERM);
  }).detach();
}

// The nodes of a launch, which wait for this one to serve, that it cannot.
void TellTheOthers(const RunOptions& options, const absl::Status& why) {
  const absl::StatusOr<LaunchBoard> board = LaunchBoard::Open(options.launch);
  if (board.ok()) board->Fails(why.message());
}

// Somebody sits there, and can end it.
bool OnTerminals() { return isatty(STDIN_FILENO) && isatty(STDERR_FILENO); }

// The agent, which took signals from a descriptor, is over.
void AwaitInterrupt() {
  sigset_t ending;
  sigemptyset(&ending);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ending, signal);
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  int signal = 0;
  while (sigwait(&ending, &signal) == EINTR) continue;
}

// What workers wrote reaches a reader that is slow, as it would without a launcher.
void WriteTheRest(const absl::StatusOr<agent::Exit>& exit, OutputWriter& writer) {
  const bool cancelled = exit.ok() && exit->verdict.outcome() == v1::CANCELLED_PHASE;
  if (cancelled) {
    writer.Flush(kFlushTimeout);
    return;
  }
  // All are blocked, but a SIGHUP that is ignored.
  sigset_t ending;
  sigemptyset(&ending);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&ending, signal);
  writer.FlushPatiently(kFlushTimeout, [&ending] {
    const timespec at_once = {};
    return sigtimedwait(&ending, nullptr, &at_once) > 0;
  });
}

[[noreturn]] void EndProcess(int status) {
  EndLoopbackTokens();
  _exit(status);
}

void Announce(const RunOptions& options, const Attachment& attachment, uint32_t slots,
              const std::vector<std::string>& notices, RunDisplay& display) {
  for (const std::string& notice : notices) display.Line(notice);
  // A submitted job's user hears of that from the commands.
  if (attachment.insecure && options.part == 0) display.Line(kInsecureNotice);
  for (const uint32_t local_rank : options.output.terminal_local_ranks) {
    if (local_rank < slots) continue;
    display.Line(absl::StrCat("--local-ranks-filter: no local rank ", local_rank,
                              " here; this node runs ", Count(slots, "worker")));
  }
  if (!attachment.serves.empty()) {
    const bool only_here = !attachment.only_here.empty();
    display.Line(absl::StrCat("serving the rendezvous at ", attachment.serves,
                              only_here ? ", on this machine only: " : "", attachment.only_here,
                              attachment.replica != nullptr ? ", in reserve until it leads" : ""));
  }
}

// How the job ended, as its server said, for whoever looks for that: launchers that come late, and
// what started this one, which may have more launchers to wait for than took part.
void LeaveEnd(const RunOptions& options, const Attachment& attachment, const v1::Verdict& verdict,
              RunDisplay& display) {
  const bool serves = attachment.core != nullptr || attachment.replica != nullptr;
  if (!serves || verdict.outcome() == v1::JOB_PHASE_UNSPECIFIED) return;
  absl::Status left;
  if (attachment.board.has_value()) left = attachment.board->Ended(verdict);
  if (!options.state_dir.empty() && options.state_dir != kNoStateDir) {
    left.Update(agent::WriteVerdictFile(options.state_dir + "/verdict.json", verdict));
  }
  if (!left.ok()) {
    display.Line(
        absl::StrCat("launchers that come late will not hear how the job ended: ", left.message()));
  }
}

}  // namespace

int RunNode(const RunOptions& options, const std::optional<log::EtcdOptions>& etcd, uint32_t slots,
            const std::function<void(int)>& ended) {
  std::vector<std::string> notices = options.notices;
  agent::FoundWorkers found;
  if (AsksForAdoption(options)) found = agent::FindAdoption(RunOf(options, slots), &notices);
  // Before gRPC, whose threads must never be in a process that forks.
  absl::StatusOr<std::unique_ptr<supervisor::Client>> supervisor =
      found.adoption ? std::move(found.adoption->supervisor) : supervisor::Client::Start();
  if (!supervisor.ok()) {
    // A wrong CADRE_SUPERVISOR is said as a wrong flag is.
    const bool lacks = absl::IsResourceExhausted(supervisor.status());
    return Fail(lacks ? kExitUnavailable : kExitUsage, supervisor.status().message());
  }
  absl::StatusOr<Attachment> attachment =
      Attach(options, etcd, [](const std::string& line) { Fail(0, line); });
  if (!attachment.ok()) {
    const bool usage = absl::IsInvalidArgument(attachment.status());
    if (!options.launch.empty() && options.serves == true) {
      TellTheOthers(options, attachment.status());
    }
    // Without a goodbye to the supervisor: workers that it has kept so far wait for the next one.
    const int status = Fail(usage ? kExitUsage : kExitUnavailable, attachment.status().message());
    ended(status);
    EndProcess(status);
  }
  if (options.token_file == "-") EndWithStandardInput();
  OutputWriter writer;
  RunDisplay display(Look(options), writer);
  Announce(options, *attachment, slots, notices, display);
  std::unique_ptr<LocalControl> control = AnswerCommands(options, *attachment);
  const auto dashboard = StartDashboard(options, *attachment, display);
  if (!dashboard.ok()) {
    const bool usage = absl::IsInvalidArgument(dashboard.status());
    const int status = Fail(usage ? kExitUsage : kExitUnavailable, dashboard.status().message());
    ended(status);
    EndProcess(status);
  }
  std::unique_ptr<RunHistory> history = KeepHistory(options, *attachment);
  agent::DaemonOptions daemon = Daemon(options, *attachment, slots);
  daemon.adoption = std::move(found.adoption);
  daemon.unfit = std::move(found.unfit);
  const absl::StatusOr<agent::Exit> exit =
      agent::RunAgent(daemon, *std::move(supervisor), *attachment->link, display);
  history.reset();
  if (exit.ok()) LeaveEnd(options, *attachment, exit->verdict, display);
  if (exit.ok() && attachment->board.has_value()) {
    attachment->board->NoteTakenPart(options.node_name);
  }
  if (*dashboard != nullptr) {
    if (OnTerminals()) {
      display.Line("the dashboard stays until Ctrl-C");
      writer.Flush(kFlushTimeout);
      AwaitInterrupt();
    }
    (*dashboard)->Finish(kHttpFinishTimeout);
  }
  control.reset();
  if (attachment->server != nullptr) attachment->server->Shutdown(kDrainTimeout);
  // The next server need not wait for this one's lease to end.
  attachment->replica.reset();
  WriteTheRest(exit, writer);
  for (const std::string& loss : writer.Losses()) Fail(0, loss);
  if (!attachment->serves.empty()) {
    if (!attachment->launch_token_file.empty()) unlink(attachment->launch_token_file.c_str());
    if (attachment->board.has_value()) attachment->board->Remove();
  }
  const int status = exit.ok() ? exit->status : Fail(kExitInternal, exit.status().message());
  ended(status);
  // Workers, sockets and files are cleared away; tearing down what is left only takes time.
  fflush(stdout);
  EndProcess(status);
}

}  // namespace cadre::launcher
