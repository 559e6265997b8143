// cadre submit, which submits a job to a cluster or to Slurm; and cadre validate and cadre cancel.
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "agent/cluster/users.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/logs.h"
#include "launcher/commands/run_checks.h"
#include "launcher/commands/slurm.h"
#include "launcher/display/output_format.h"
#include "launcher/flags/run_options.h"
#include "launcher/slurm/batch_script.h"
#include "launcher/spec/job_spec.h"
#include "rendezvous/state/policy.h"

namespace cadre::launcher {
namespace {

constexpr int kExitInterrupted = kExitSignalBase + SIGINT;

std::vector<Flag> SubmitFlags() {
  std::vector<Flag> flags = ControlFlags();
  flags.push_back(
      {"follow", "", "Show its workers' output until it ends; exits with the job's exit status."});
  flags.push_back(OutputFlag());
  flags.push_back({"slurm", "", "Hand it to Slurm, with sbatch, instead of to a server."});
  flags.push_back(RequeuesFlag());
  return flags;
}

// The absolute path, under which nodes look for it too.
absl::StatusOr<std::string> WorkingDir(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute =
      std::filesystem::absolute(path.empty() ? "." : path, error);
  if (!error) return absolute.lexically_normal().string();
  return absl::InvalidArgumentError(
      absl::StrCat("working_dir: cannot find the current directory: ", error.message(),
                   "; change to another one, or give the job's file an absolute working_dir"));
}

// Returns the spec with the working directory, and with the interpreter in front of the program, as
// each launcher will have it.
absl::StatusOr<v1::JobSpec> ResolveOnNodes(const Settings& settings, v1::JobSpec spec) {
  ASSIGN_OR_RETURN(const std::string working_dir, WorkingDir(spec.working_dir()));
  spec.set_working_dir(working_dir);
  ASSIGN_OR_RETURN(const std::vector<std::string> command,
                   BuildCommand(settings, spec, {spec.command().begin(), spec.command().end()},
                                IsForPythonHere(spec.command(0), working_dir)));
  spec.mutable_command()->Assign(command.begin(), command.end());
  return spec;
}

// Read by the signal handler.
std::atomic<const char*> interrupt_text{nullptr};

void OnInterrupt(int) {
  const char* const text = interrupt_text;
  // It does not matter whether anybody reads it.
  (void)!write(STDERR_FILENO, text, strlen(text));
  _exit(kExitInterrupted);
}

// Makes Ctrl-C end this command with that line and nothing else, because the job runs in the
// cluster.
void PrintAtInterrupt(absl::string_view text) {
  // Never freed, because the handler may be reading an earlier one.
  static auto* const lines = new std::deque<std::string>();
  interrupt_text = lines->emplace_back(absl::StrCat("cadre: ", text, "\n")).c_str();
  struct sigaction action = {};
  if (sigaction(SIGINT, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) return;
  action.sa_handler = OnInterrupt;
  sigaction(SIGINT, &action, nullptr);
}

int RunSubmit(const Parsed& parsed) {
  const absl::StatusOr<Settings> settings = ClientSettings(parsed, SubmitFlags());
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  const absl::StatusOr<bool> json = AsksForJson(settings->GetOr("output", "plain"));
  if (!json.ok()) return Fail(kExitUsage, json.status().message());
  const auto follow = settings->Switch("follow");
  if (!follow.ok()) return Fail(kExitUsage, follow.status().message());
  absl::StatusOr<v1::JobSpec> spec = ReadSpecFile(parsed.rest[0]);
  if (!spec.ok()) return Fail(kExitBadSpec, spec.status().message());
  if (spec->name().empty()) {
    return Fail(kExitBadSpec,
                absl::StrCat(parsed.rest[0], ": a job that is submitted needs a name"));
  }
  FillSpecDefaults(*spec);
  const absl::StatusOr<v1::JobSpec> at_nodes = ResolveOnNodes(*settings, *spec);
  if (!at_nodes.ok()) return Fail(kExitUsage, at_nodes.status().message());
  const std::string missing = WhyProgramMissing(*at_nodes, spec->command(0));
  if (!missing.empty()) {
    Notice(absl::StrCat(missing,
                        "; the job is submitted anyway, because its nodes may have other files "
                        "than this machine"));
  }
  const auto slurm = settings->Switch("slurm");
  if (!slurm.ok()) return Fail(kExitUsage, slurm.status().message());
  if (*slurm) {
    const absl::StatusOr<uint32_t> requeues = Requeues(parsed);
    if (!requeues.ok()) return Fail(kExitUsage, requeues.status().message());
    if (parsed.Has("server")) {
      return Fail(kExitUsage, "--slurm uses no server; leave out --slurm or --server");
    }
    return SubmitToSlurm({parsed.rest[0], *spec, *requeues, *json, *follow});
  }
  *spec = *at_nodes;
  spec->mutable_logs()->set_dir((std::filesystem::path(spec->working_dir()) / spec->logs().dir())
                                    .lexically_normal()
                                    .string());
  const absl::Status text = CheckUtf8Fields(*spec);
  if (!text.ok()) return Fail(kExitUsage, text.message());
  const absl::StatusOr<agent::UserEntry> user = agent::ThisUser();
  if (!user.ok()) return Fail(kExitInternal, user.status().message());
  const auto client = ControlClient::Connect(*settings);
  if (!client.ok()) return Fail(ControlExit(client.status()), client.status().message());
  PrintAtInterrupt(absl::StrCat("job ", spec->name(), " may have been submitted; 'cadre status ",
                                spec->name(), "' shows whether it was"));
  const absl::StatusOr<v1::JobStatus> job = (*client)->Submit(*spec, user->name);
  if (!job.ok()) return Fail(ControlExit(job.status()), job.status().message());
  const int printed = Print(
      *json ? JsonText(*job) + "\n"
            : absl::StrCat("submitted ", spec->name(),
                           job->waiting_for().empty()
                               ? ""
                               : absl::StrCat("; it waits for ", EscapeControl(job->waiting_for())),
                           "\n"));
  if (printed != 0 || !*follow) return printed;
  PrintAtInterrupt(absl::StrCat("job ", spec->name(), " continues; 'cadre logs ", spec->name(),
                                " --follow' shows it again, 'cadre cancel ", spec->name(),
                                "' ends it"));
  LogFollow all;
  all.job = spec->name();
  all.follow = true;
  ProtectTerminals(&all);
  return FollowLogs(LogsOf(**client), all);
}

}  // namespace

Command SubmitCommand() {
  Command command;
  command.name = "submit";
  command.summary = "Hand a job to a cluster, or to Slurm.";
  command.positionals = "FILE";
  command.min_positionals = command.max_positionals = 1;
  command.flags = SubmitFlags();
  command.run = RunSubmit;
  return command;
}

// cadre validate: parses a spec and reports its errors.

namespace {

std::string Workers(const v1::WorkersPerNode& workers) {
  switch (workers.kind()) {
    case v1::WorkersPerNode::GPU:
      return "one worker per GPU";
    case v1::WorkersPerNode::CPU:
      return "one worker per core";
    case v1::WorkersPerNode::AUTO:
      return "one worker per GPU, or per core where there is none";
    default:
      return Count(workers.count(), "worker");
  }
}

int RunValidate(const Parsed& parsed) {
  absl::StatusOr<v1::JobSpec> spec = ReadSpecFile(parsed.rest[0]);
  if (!spec.ok()) return Fail(kExitBadSpec, spec.status().message());
  FillSpecDefaults(*spec);
  v1::JobSpec named = *spec;
  // `cadre run` would name the job after the program.
  if (named.name().empty()) named.set_name("job");
  const absl::Status taken = state::CheckSpec(named);
  if (!taken.ok()) {
    return Fail(kExitBadSpec, SpecErrorAt(parsed.rest[0], taken.message()).message());
  }
  if (spec->has_slurm()) {
    const absl::StatusOr<std::string> script = SlurmScript(parsed.rest[0], *spec, 0);
    if (!script.ok()) return Fail(kExitBadSpec, script.status().message());
  }
  const v1::NodeRange& nodes = spec->nodes();
  return Print(absl::StrCat(
      parsed.rest[0], ": ok (", spec->command(0), " on ",
      nodes.min() == nodes.max() ? absl::StrCat(nodes.min())
                                 : absl::StrCat(nodes.min(), " to ", nodes.max()),
      nodes.max() == 1 ? " node, " : " nodes, ", Workers(spec->workers_per_node()), " each)\n"));
}

}  // namespace

Command ValidateCommand() {
  Command command;
  command.name = "validate";
  command.summary = "Check a job spec.";
  command.positionals = "FILE";
  command.min_positionals = command.max_positionals = 1;
  command.run = RunValidate;
  return command;
}

// cadre cancel: ends a job with grace.

namespace {

std::vector<Flag> CancelFlags() {
  std::vector<Flag> flags = ControlFlags();
  flags.push_back({"reason", "TEXT", "The reason that the verdict gives [a user's request]."});
  return flags;
}

int RunCancel(const Parsed& parsed) {
  const absl::StatusOr<Settings> read = ClientSettings(parsed, CancelFlags());
  if (!read.ok()) return Fail(kExitUsage, read.status().message());
  const Settings& settings = *read;
  absl::StatusOr<JobSource> source = OpenJob(parsed, settings);
  if (!source.ok()) return Fail(ControlExit(source.status()), source.status().message());
  const auto job = source->Cancel(settings.GetOr("reason", "a user's request"));
  if (!job.ok()) return Fail(ControlExit(job.status()), job.status().message());
  return Print(absl::StrCat("cancelling ", source->job(), "\n"));
}

}  // namespace

Command CancelCommand() {
  Command command;
  command.name = "cancel";
  command.summary = "Stop a job on all its nodes, with grace.";
  command.positionals = "JOB";
  command.min_positionals = command.max_positionals = 1;
  command.flags = CancelFlags();
  command.run = RunCancel;
  return command;
}

}  // namespace cadre::launcher
