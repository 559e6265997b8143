// cadre run: one node's part of a job.
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/adoption.h"
#include "agent/daemon.h"
#include "agent/run_files.h"
#include "agent/supervisor/client.h"
#include "agent/workers/python/python_program.h"
#include "base/duration.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/user_directory.h"
#include "launcher/attach/attach.h"
#include "launcher/attach/etcd_flags.h"
#include "launcher/attach/http_flag.h"
#include "launcher/attach/local_control.h"
#include "launcher/attach/security.h"
#include "launcher/attach/server_state.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/past_runs.h"
#include "launcher/commands/run_checks.h"
#include "launcher/commands/run_hosts.h"
#include "launcher/display/output_writer.h"
#include "launcher/display/run_display.h"
#include "launcher/environment/first_task.h"
#include "launcher/environment/identity.h"
#include "launcher/environment/launch_board.h"
#include "launcher/environment/program.h"
#include "launcher/environment/signals.h"
#include "launcher/environment/slots.h"
#include "launcher/flags/run_flags.h"
#include "launcher/flags/run_options.h"
#include "launcher/spec/job_spec.h"
#include "launcher/spec/scalars.h"
#include "proto/rendezvous.pb.h"

namespace cadre::launcher {
namespace {

// --- this launcher's share: the node's agent and, where it serves, the server. ---

// How long the launcher waits at its end for a terminal that does not read; and for a pipe if the
// user has cancelled the job.
constexpr absl::Duration kFlushTimeout = absl::Seconds(2);

// How long the launcher waits at its end for other nodes to receive the verdict.
constexpr absl::Duration kDrainTimeout = absl::Seconds(2);

uint64_t RandomIncarnation() {
  uint64_t value = 0;
  // The kernel returns eight bytes at once; 0 would mean "none".
  while (getrandom(&value, sizeof(value), 0) != sizeof(value) || value == 0) {
  }
  return value;
}

bool AsksForAdoption(const RunOptions& options) {
  return options.adopt_timeout > absl::ZeroDuration();
}

std::string NodeName(const RunOptions& options, const Attachment& attachment) {
  if (!options.node_name.empty()) return options.node_name;
  // The name must not depend on the process id, which changes when the launcher is restarted.
  if (AsksForAdoption(options)) return HostName();
  // Several launchers of one machine meet over loopback; their process ids distinguish them.
  if (!options.endpoints.empty() && attachment.loopback) {
    return absl::StrCat(HostName(), "-",
                        options.node_rank >= 0 ? static_cast<int64_t>(options.node_rank)
                                               : static_cast<int64_t>(getpid()));
  }
  return HostName();
}

agent::OutputOptions MakeOutputOptions(const RunOptions& options, uint32_t slots) {
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

// What identifies this launcher to a restarted one; everything except the node's name is as the
// user gave it.
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

// The versions of the software under which the job's program runs on this node.
std::optional<v1::ProgramVersions> VersionsHere(const v1::JobSpec& job) {
  return agent::ProgramVersionsOf({job.command().begin(), job.command().end()}, job.working_dir(),
                                  [&job](const std::string& name) {
                                    const auto own = job.env().find(name);
                                    if (own != job.env().end()) return own->second;
                                    // As Python determines it.
                                    if (name == "HOME") return UserHome();
                                    const char* const value = getenv(name.c_str());
                                    return std::string(value == nullptr ? "" : value);
                                  });
}

agent::DaemonOptions MakeDaemonOptions(const RunOptions& options, const Attachment& attachment,
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
  // Two agents of one host differ by the node's name in every line.
  join.set_host(options.node_name.empty() ? HostName() : options.node_name);
  join.set_address(options.local_addr.empty() ? attachment.address : options.local_addr);
  join.set_slots(slots);
  // The spec of a submitted job comes with the Welcome.
  if (options.allocation == 0) *join.mutable_spec() = options.job;
  if (options.allocation != 0 && (options.job.has_batch() || options.job.has_slurm_step())) {
    daemon.own_spec = options.job;
  }
  if (auto versions = VersionsHere(options.job)) *join.mutable_versions() = *std::move(versions);
  join.set_wanted_node_rank(options.node_rank);
  for (const std::string& node : options.expected_nodes) join.add_expected_nodes(node);
  join.set_master_addr(options.master_addr);
  join.set_master_port(options.master_port);
  join.set_strict_fencing(options.strict_fencing);
  join.set_part(options.allocation);
  if (AsksForAdoption(options)) {
    *join.mutable_adopt_timeout() = ToProto(options.adopt_timeout);
    daemon.adopt_timeout = options.adopt_timeout;
    daemon.run = RunOf(options, slots);
  }
  daemon.output = MakeOutputOptions(options, slots);
  daemon.workers = options.workers;
  return daemon;
}

RunDisplayOptions MakeDisplayOptions(const RunOptions& options) {
  RunDisplayOptions look = DetectTerminal(options.no_progress);
  look.json = options.json;
  look.timeline = options.timeline;
  look.log_dir = options.job.logs().dir();
  look.nodes = options.job.nodes();
  return look;
}

// The core that this launcher serves. Null: another launcher serves.
web::Serving ServingOf(const Attachment& attachment) {
  if (attachment.server != nullptr) {
    return [server = attachment.server.get()] { return server->Serving(); };
  }
  if (attachment.core == nullptr) return nullptr;
  // The attachment owns the core.
  return [core = std::shared_ptr<host::CoreThread>(std::shared_ptr<void>(),
                                                   attachment.core.get())] { return core; };
}

// The dashboard of this launcher's server, if the user asked for it. Null: the user did not, or
// another launcher serves.
absl::StatusOr<std::unique_ptr<web::Dashboard>> StartDashboard(const RunOptions& options,
                                                               const Attachment& attachment,
                                                               RunDisplay& display) {
  if (options.http.empty()) return nullptr;
  if (attachment.server == nullptr && attachment.core == nullptr) {
    display.Line("--http: another launcher serves the rendezvous, so this one shows no dashboard");
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

// Lets the user's commands on this machine find the job, now and when it is over.
std::unique_ptr<LocalControl> StartLocalControl(const RunOptions& options,
                                                const Attachment& attachment) {
  const std::string log_dir = options.job.logs().dir();
  if (options.allocation == 0 && !log_dir.empty()) RememberLogDirectory(log_dir);
  const LocalControl::Serving serving = ServingOf(attachment);
  return serving ? LocalControl::Start(log_dir, options.job.name(), serving) : nullptr;
}

// Records the job's history while it runs, if this launcher serves it. Null: another launcher
// serves it, or nothing is recorded.
std::unique_ptr<RunHistory> StartHistory(const RunOptions& options, const Attachment& attachment) {
  const std::string log_dir = options.job.logs().dir();
  const RunHistory::Serving serving = ServingOf(attachment);
  if (!serving || log_dir.empty()) return nullptr;
  return std::make_unique<RunHistory>(log_dir, options.job.name(), serving);
}

// The process that started this launcher and wrote the token to its standard input keeps that open:
// when it ends, so does the job, as with SIGTERM.
void EndWithStandardInput() {
  std::thread([] {
    char byte;
    ssize_t got = 0;
    while ((got = read(STDIN_FILENO, &byte, 1)) > 0 || (got < 0 && errno == EINTR)) {
    }
    kill(getpid(), SIGTERM);
  }).detach();
}

// Tells the launch's nodes, which wait for this one to serve, that it cannot.
void ReportFailureToNodes(const RunOptions& options, const absl::Status& why) {
  const absl::StatusOr<LaunchBoard> board = LaunchBoard::Open(options.launch);
  if (board.ok()) board->PublishFailure(why.message());
}

// A user is present, and can end the dashboard.
bool HasTerminals() { return isatty(STDIN_FILENO) && isatty(STDERR_FILENO); }

// The agent, which read signals from a descriptor, has ended.
void AwaitInterrupt() {
  sigset_t ending;
  sigemptyset(&ending);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ending, signal);
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  int signal = 0;
  while (sigwait(&ending, &signal) == EINTR) continue;
}

// All output of workers is written even if the reader is slow, as it would be without a launcher.
void FlushOutput(const absl::StatusOr<agent::Exit>& exit, OutputWriter& writer) {
  const bool cancelled = exit.ok() && exit->verdict.outcome() == v1::CANCELLED_PHASE;
  if (cancelled) {
    writer.Flush(kFlushTimeout);
    return;
  }
  // These signals are blocked, except for a SIGHUP that is ignored.
  sigset_t ending;
  sigemptyset(&ending);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&ending, signal);
  writer.FlushUntilInterrupted(kFlushTimeout, [&ending] {
    const timespec at_once = {};
    return sigtimedwait(&ending, nullptr, &at_once) > 0;
  });
}

[[noreturn]] void EndProcess(int status) {
  EndLoopbackTokens();
  _exit(status);
}

// Ends the process because of an error that keeps the node's part from starting.
[[noreturn]] void EndUnstarted(const absl::Status& why, const std::function<void(int)>& ended) {
  const int status =
      Fail(absl::IsInvalidArgument(why) ? kExitUsage : kExitUnavailable, why.message());
  ended(status);
  EndProcess(status);
}

// On a terminal the dashboard runs until the user ends it, so that the end of the job can be seen.
void FinishDashboard(web::Dashboard& dashboard, RunDisplay& display, OutputWriter& writer) {
  if (HasTerminals()) {
    display.Line("the dashboard stays up until Ctrl-C");
    writer.Flush(kFlushTimeout);
    AwaitInterrupt();
  }
  dashboard.Finish(kHttpFinishTimeout);
}

void StopServing(Attachment& attachment) {
  if (attachment.server != nullptr) attachment.server->Shutdown(kDrainTimeout);
  // Then the next leader need not wait for this server's lease to expire.
  attachment.replica.reset();
}

// The launcher that served removes the files through which its launch's nodes found it.
void RemoveLaunchFiles(const Attachment& attachment) {
  if (attachment.serves.empty()) return;
  if (!attachment.launch_token_file.empty()) unlink(attachment.launch_token_file.c_str());
  if (attachment.board.has_value()) attachment.board->Remove();
}

void Announce(const RunOptions& options, const Attachment& attachment, uint32_t slots,
              const std::vector<std::string>& notices, RunDisplay& display) {
  for (const std::string& notice : notices) display.Line(notice);
  // The user of a submitted job gets this notice from the commands.
  if (attachment.insecure && options.allocation == 0) display.Line(kInsecureNotice);
  for (const uint32_t local_rank : options.output.terminal_local_ranks) {
    if (local_rank < slots) continue;
    display.Line(absl::StrCat("--local-ranks-filter: no local rank ", local_rank,
                              " here; this node runs ", Count(slots, "worker")));
  }
  if (!attachment.serves.empty()) {
    const bool why_only_local = !attachment.why_only_local.empty();
    display.Line(absl::StrCat(
        "serving the rendezvous at ", attachment.serves,
        why_only_local ? ", on this machine only: " : "", attachment.why_only_local,
        attachment.replica != nullptr ? ", as a standby until it becomes the leader" : ""));
  }
}

// Records how the job ended for launchers that come late, and for the process that started this
// launcher, which may wait for more launchers than took part.
void PublishVerdict(const RunOptions& options, const Attachment& attachment,
                    const v1::Verdict& verdict, RunDisplay& display) {
  const bool serves = attachment.core != nullptr || attachment.replica != nullptr;
  if (!serves || verdict.outcome() == v1::JOB_PHASE_UNSPECIFIED) return;
  absl::Status left;
  if (attachment.board.has_value()) left = attachment.board->RecordEnd(verdict);
  if (!options.state_dir.empty() && options.state_dir != kNoStateDir) {
    left.Update(agent::WriteVerdictFile(options.state_dir + "/verdict.json", verdict));
  }
  if (!left.ok()) {
    display.Line(absl::StrCat("cannot record how the job ended for launchers that start late: ",
                              left.message()));
  }
}

// Runs this node's part of the job to its end. The options are complete and checked, so errors come
// from the machine or the server. `ended` receives the exit status. Returns only if nothing was
// started; otherwise the process exits here.
int RunNode(const RunOptions& options, const std::optional<log::EtcdOptions>& etcd, uint32_t slots,
            const std::function<void(int)>& ended) {
  std::vector<std::string> notices = options.notices;
  agent::FoundWorkers found;
  if (AsksForAdoption(options)) found = agent::FindAdoption(RunOf(options, slots), &notices);
  // Before gRPC, because a process that forks must not have gRPC's threads.
  absl::StatusOr<std::unique_ptr<supervisor::Client>> supervisor =
      found.adoption ? std::move(found.adoption->supervisor) : supervisor::Client::Start();
  if (!supervisor.ok()) {
    // A wrong CADRE_SUPERVISOR is a usage error, like a wrong flag.
    const bool lacks = absl::IsResourceExhausted(supervisor.status());
    return Fail(lacks ? kExitUnavailable : kExitUsage, supervisor.status().message());
  }
  absl::StatusOr<Attachment> attachment =
      Attach(options, etcd, [](const std::string& line) { Notice(line); });
  if (!attachment.ok()) {
    if (!options.launch.empty() && options.serves == true) {
      ReportFailureToNodes(options, attachment.status());
    }
    // The supervisor is not told to stop: workers that it has kept so far wait for the next
    // launcher.
    EndUnstarted(attachment.status(), ended);
  }
  if (options.token_file == "-") EndWithStandardInput();
  OutputWriter writer;
  RunDisplay display(MakeDisplayOptions(options), writer);
  Announce(options, *attachment, slots, notices, display);
  std::unique_ptr<LocalControl> control = StartLocalControl(options, *attachment);
  const auto dashboard = StartDashboard(options, *attachment, display);
  if (!dashboard.ok()) EndUnstarted(dashboard.status(), ended);
  std::unique_ptr<RunHistory> history = StartHistory(options, *attachment);
  agent::DaemonOptions daemon = MakeDaemonOptions(options, *attachment, slots);
  daemon.adoption = std::move(found.adoption);
  daemon.unfit = std::move(found.unfit);
  const absl::StatusOr<agent::Exit> exit =
      agent::RunAgent(daemon, *std::move(supervisor), *attachment->link, display);
  history.reset();
  if (exit.ok()) PublishVerdict(options, *attachment, exit->verdict, display);
  if (exit.ok() && attachment->board.has_value()) {
    attachment->board->NoteTakenPart(options.node_name);
  }
  if (*dashboard != nullptr) FinishDashboard(**dashboard, display, writer);
  control.reset();
  StopServing(*attachment);
  FlushOutput(exit, writer);
  for (const std::string& loss : writer.Losses()) Notice(loss);
  RemoveLaunchFiles(*attachment);
  const int status = exit.ok() ? exit->status : Fail(kExitInternal, exit.status().message());
  ended(status);
  // Workers, sockets and files are cleaned up; destroying the rest would only take time.
  fflush(stdout);
  EndProcess(status);
}

// --- the command ---

constexpr const char* kClusterVariables[] = {"CADRE_CLUSTER_PART", "CADRE_CLUSTER_NODE",
                                             "CADRE_CLUSTER_NODES"};

absl::StatusOr<std::optional<v1::JobSpec>> SpecOf(const Settings& settings,
                                                  const std::optional<Identity>& identity) {
  const std::string path = settings.GetOr("spec", "");
  if (path.empty()) return std::optional<v1::JobSpec>();
  if (identity.has_value() && identity->allocation != 0) {
    // The spec as it was submitted; of a batch job and a step, as the agent completed it.
    v1::JobSpec spec;
    std::ifstream file(path, std::ios::binary);
    if (file && spec.ParseFromIstream(&file)) return std::optional<v1::JobSpec>(std::move(spec));
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a job spec that 'cadre agent' wrote"));
  }
  absl::StatusOr<v1::JobSpec> read = ReadSpecFile(path);
  if (!read.ok()) return read.status();
  return std::optional<v1::JobSpec>(*std::move(read));
}

// The agent reads the blocked signals from a descriptor; all others have their default effect.
void BlockSignals(std::set<int> signals) {
  // A scheduler's warning that it will take the node back.
  signals.insert(SIGUSR1);
  BlockOnly(signals);
}

// How long to wait for the other nodes. `job` has what the spec and --set say.
absl::StatusOr<absl::Duration> JoinTimeout(const Settings& settings, v1::JobSpec job) {
  const std::optional<Setting> flag = settings.Get("join-timeout");
  if (flag.has_value() &&
      !SetsProperty(settings, "rendezvous.join_timeout", /*command_line_only=*/true)) {
    return ParseDuration(flag->value);
  }
  FillSpecDefaults(job);
  return FromProto(job.rendezvous().join_timeout());
}

// Finds out on how many nodes an mpirun started launchers, and which of them this is: mpirun's
// variables do not tell, so the nodes count themselves on the board. If the number and the endpoint
// are given, those are used.
absl::Status MeetOtherNodes(const Settings& settings, const std::optional<v1::JobSpec>& spec,
                            Identity& identity) {
  ASSIGN_OR_RETURN(const bool standalone, settings.Switch("standalone"));
  if (identity.tasks == 0 || identity.nodes > 0 || standalone) return absl::OkStatus();
  v1::JobSpec job = spec.value_or(v1::JobSpec());
  RETURN_IF_ERROR(ApplySets(settings, job));
  const bool nodes = settings.Get("nnodes").has_value() || job.nodes().min() > 0;
  const bool told = nodes && settings.Get("rdzv-endpoint").has_value();
  if (told) return absl::OkStatus();
  if (identity.launch.empty() && identity.pmi >= 0) {
    const absl::StatusOr<std::string> launch = AskPmiForJob(identity.pmi);
    if (launch.ok()) identity.launch = MpiLaunchName(*launch);
  }
  // Without a name they cannot find each other; what is missing then is reported where it is
  // needed.
  if (identity.launch.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const absl::Duration timeout, JoinTimeout(settings, job));
  ASSIGN_OR_RETURN(const LaunchBoard board, LaunchBoard::Open(identity.launch));
  if (identity.node_name.empty()) identity.node_name = HostName();
  ASSIGN_OR_RETURN(const std::vector<LaunchBoard::Node> all,
                   board.GatherNodes({identity.task, identity.local_tasks, identity.node_name},
                                     identity.tasks, timeout));
  identity.nodes = static_cast<uint32_t>(all.size());
  // A host that is listed twice for mpirun starts two launchers, which count as two nodes.
  std::map<std::string, int> times;
  for (const LaunchBoard::Node& node : all) ++times[node.name];
  for (const LaunchBoard::Node& node : all) {
    std::string name = node.name;
    if (times[name] > 1) absl::StrAppend(&name, "-", node.task);
    if (node.task == identity.task) {
      identity.node_rank = static_cast<int>(identity.node_names.size());
      identity.node_name = name;
    }
    identity.node_names.push_back(std::move(name));
  }
  identity.serves = identity.node_rank == 0;
  identity.endpoint_host = all[0].name;
  identity.endpoint_port = PortFor(identity.launch);
  return absl::OkStatus();
}

// Prints why this node takes no part. If it was to serve, the others of its launch get the reason
// too, if they share the home directory: the user's own token does not mean that they do not.
int Refuse(const std::optional<Identity>& identity, int status, absl::string_view why) {
  if (identity.has_value() && identity->serves == true && identity->nodes > 1 &&
      !identity->launch.empty()) {
    const absl::StatusOr<LaunchBoard> board = LaunchBoard::Open(identity->launch);
    if (board.ok()) board->PublishFailure(why);
  }
  return Fail(status, why);
}

// Runs this node's part of the job, in the one launcher that does it.
int RunThisNode(const Settings& settings, std::optional<Identity> identity,
                const std::function<void(int)>& ended) {
  const absl::Status descriptors = CheckDescriptors();
  if (!descriptors.ok()) {
    return Refuse(identity, kExitUnavailable, descriptors.message());
  }
  absl::StatusOr<std::optional<v1::JobSpec>> spec = SpecOf(settings, identity);
  if (!spec.ok()) return Refuse(identity, kExitBadSpec, spec.status().message());
  if (identity.has_value()) {
    const absl::Status met = MeetOtherNodes(settings, *spec, *identity);
    const int status = absl::IsDeadlineExceeded(met) ? kExitUnavailable : kExitUsage;
    if (!met.ok()) return Fail(status, met.message());
  }
  const auto refuse = [&](int status, const absl::Status& why) {
    return Refuse(identity, status, why.message());
  };
  absl::StatusOr<RunOptions> options =
      ResolveRun(settings, *std::move(spec), identity, IsForPythonHere);
  if (!options.ok()) return refuse(kExitUsage, options.status());
  // A submitted spec may be valid while this node lacks what another one has.
  const int lacking = options->allocation != 0 ? kExitUnavailable : kExitUsage;
  const absl::StatusOr<uint32_t> slots = CountSlots(
      options->job, options->workers.gpus_per_worker_own || options->workers.virtual_local_rank,
      ThisMachine());
  if (!slots.ok()) return refuse(lacking, slots.status());
  const absl::Status bound = CheckBinding(options->job, *slots, ThisMachine());
  if (!bound.ok()) return refuse(lacking, bound);
  const absl::Status here = CheckNode(*options);
  if (!here.ok()) return refuse(lacking, here);
  const absl::StatusOr<std::optional<log::EtcdOptions>> etcd =
      EtcdFrom(settings, absl::StrCat("/cadre/run/", options->job.name(), "/"));
  if (!etcd.ok()) return refuse(kExitUsage, etcd.status());
  BlockSignals(options->signals);
  return RunNode(*options, *etcd, *slots, ended);
}

// Runs every host's part, none of it in this launcher.
int RunHostfile(const Parsed& parsed, const Settings& settings) {
  const absl::StatusOr<std::vector<HostfileHost>> hosts =
      ReadHostfile(settings.GetOr("hostfile", ""));
  if (!hosts.ok()) return Fail(kExitUsage, hosts.status().message());
  Identity identity;
  identity.source = "the host file";
  identity.launch = "hostfile";
  identity.nodes = static_cast<uint32_t>(hosts->size());
  identity.endpoint_host = (*hosts)[0].name;
  const absl::StatusOr<bool> standalone = settings.Switch("standalone");
  if (!standalone.ok()) return Fail(kExitUsage, standalone.status().message());
  if (*standalone) {
    return Fail(
        kExitUsage,
        "--standalone runs the job on this node alone; leave out --standalone or --hostfile");
  }
  if (const auto endpoint = settings.Get("rdzv-endpoint")) {
    return Fail(
        kExitUsage,
        absl::StrCat(
            endpoint->origin,
            ": with --hostfile this launcher serves the rendezvous itself; leave one of them out"));
  }
  absl::StatusOr<std::optional<v1::JobSpec>> spec = SpecOf(settings, identity);
  if (!spec.ok()) return Fail(kExitBadSpec, spec.status().message());
  const absl::StatusOr<RunOptions> options = ResolveRun(settings, *std::move(spec), identity);
  if (!options.ok()) return Fail(kExitUsage, options.status().message());
  const std::string old_flags = OldFlagsNotice(settings);
  if (!old_flags.empty()) Notice(old_flags);
  BlockSignals(options->signals);
  OutputWriter writer;
  RunDisplayOptions look = DetectTerminal(options->no_progress);
  look.nodes = options->job.nodes();
  RunDisplay display(look, writer);
  const auto say = [&](const std::string& line) {
    if (look.live) return display.Line(line);
    Notice(line);
  };
  const absl::StatusOr<int> status =
      RunOnHosts(parsed, settings, *options, *hosts, look.live ? &display : nullptr, say);
  writer.Flush(kFlushTimeout);
  if (status.ok()) return *status;
  const bool usage = absl::IsInvalidArgument(status.status());
  return Fail(usage ? kExitUsage : kExitUnavailable, status.status().message());
}

// srun and mpirun bind each process to some of the cores, but the launcher that runs the workers
// needs those of the others too. The kernel keeps it within what the job may use.
void UseAllCores() {
  cpu_set_t all;
  memset(&all, 0xff, sizeof(all));
  sched_setaffinity(0, sizeof(all), &all);
}

int Run(const Parsed& parsed) {
  if (const auto shell = parsed.Get("print-completion")) return PrintCompletion(*shell);
  std::map<std::string, std::string> environment = ReadEnvironment();
  const absl::StatusOr<std::optional<Identity>> identity = DetectIdentity(environment);
  if (!identity.ok()) return Fail(kExitUsage, identity.status().message());
  // A launcher that one of its workers starts must not count as the launcher of an allocation.
  for (const char* name : kClusterVariables) unsetenv(name);
  const Settings settings(parsed, std::move(environment), RunFlags());
  if (settings.Get("hostfile").has_value()) return RunHostfile(parsed, settings);
  const absl::StatusOr<bool> standalone = settings.Switch("standalone");
  if (!standalone.ok()) return Fail(kExitUsage, standalone.status().message());
  const bool together = identity->has_value() && (*identity)->local_tasks > 1 && !*standalone;
  if (!together) return RunThisNode(settings, *identity, [](int) {});
  // If a launch has no name, the pid of the common parent of this node's tasks is used.
  const std::string launch =
      (*identity)->launch.empty() ? absl::StrCat("parent-", getppid()) : (*identity)->launch;
  const std::string name = absl::StrCat(launch, ".", (*identity)->node_name);
  if ((*identity)->local_task > 0) {
    const absl::StatusOr<int> status = FollowFirstTask(name);
    return status.ok() ? *status : Fail(kExitUnavailable, status.status().message());
  }
  absl::StatusOr<std::unique_ptr<FirstTask>> first = FirstTask::Open(name);
  if (!first.ok()) return Fail(kExitUnavailable, first.status().message());
  UseAllCores();
  const uint32_t others = (*identity)->local_tasks - 1;
  const auto ended = [&](int status) { (*first)->End(status, others); };
  const int status = RunThisNode(settings, *identity, ended);
  ended(status);
  return status;
}

}  // namespace

Command RunCommand() {
  Command command;
  command.name = "run";
  command.summary = "Run a program on this node as its part of a job.";
  command.positionals = "[--] PROGRAM [ARGUMENT...]";
  command.takes_program = true;
  command.spec_flag = "spec";
  command.flags = RunFlags();
  command.run = Run;
  command.description =
      "Run it on every node, like torchrun; 'cadre run job.yaml' reads the job from a file.\n"
      "What has no flag is written there, or as --set PATH=VALUE. Times are 90s, 10m, 1h30m.\n"
      "Every flag is also read from CADRE_<NAME>, and torchrun's from PET_<NAME>.\n"
      "Exit status: 0 when all workers succeeded; the root cause's own, or 128 + signal;\n"
      "64 usage; 65 bad spec; 69 server unreachable; 70 internal error; 75 worth trying later;\n"
      "124 timed out: a hang, the start timeout or the total timeout.";
  command.details =
      "A program that ends in .py runs under python3 -u. python3 is $PYTHON_EXEC where that is\n"
      "set, otherwise that of the virtual environment where this command is installed unless\n"
      "another is active, otherwise the first on PATH.\n"
      "A value of --set is written as in the file, and a list as [a, b]. It overrides the file\n"
      "and variables; of two for one property the later one counts.";
  command.properties = RunProperties;
  return command;
}

}  // namespace cadre::launcher
