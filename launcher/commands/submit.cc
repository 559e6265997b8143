// cadre submit: hands a job to a cluster, or to Slurm.
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
#include "agent/cluster/part_start.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/log_follow.h"
#include "launcher/commands/run_checks.h"
#include "launcher/commands/slurm_submit.h"
#include "launcher/display/json_text.h"
#include "launcher/flags/run_options.h"
#include "launcher/slurm/job_script.h"
#include "launcher/spec/reader.h"
#include "launcher/spec/utf8_fields.h"

namespace cadre::launcher {
namespace {

constexpr int kExitInterrupted = kExitSignalBase + SIGINT;

std::vector<Flag> Flags() {
  std::vector<Flag> flags = ControlFlags();
  flags.push_back(
      {"follow", "", "Show its workers' output until it ends; exits with the job's exit status."});
  flags.push_back(OutputFlag());
  flags.push_back({"slurm", "", "Hand it to Slurm, with sbatch, instead of to a server."});
  flags.push_back(RequeuesFlag());
  return flags;
}

// Where nodes look for it as well.
absl::StatusOr<std::string> WorkingDir(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute =
      std::filesystem::absolute(path.empty() ? "." : path, error);
  if (!error) return absolute.lexically_normal().string();
  return absl::InvalidArgumentError(
      absl::StrCat("working_dir: the current directory: ", error.message(),
                   "; change to another one, or give the job's file an absolute working_dir"));
}

// With the folder, and the interpreter in front of the program, that each launcher will have.
absl::StatusOr<v1::JobSpec> AsNodesHaveIt(const Settings& settings, v1::JobSpec spec) {
  ASSIGN_OR_RETURN(const std::string working_dir, WorkingDir(spec.working_dir()));
  spec.set_working_dir(working_dir);
  ASSIGN_OR_RETURN(const std::vector<std::string> command,
                   BuildCommand(settings, spec, {spec.command().begin(), spec.command().end()},
                                IsForPythonHere(spec.command(0), working_dir)));
  spec.mutable_command()->Assign(command.begin(), command.end());
  return spec;
}

// Written by the signal handler.
std::atomic<const char*> last_words{nullptr};

void OnInterrupt(int) {
  const char* const text = last_words;
  // Whether anybody reads it makes no difference.
  (void)!write(STDERR_FILENO, text, strlen(text));
  _exit(kExitInterrupted);
}

// Ctrl-C ends this command with that line, and nothing else: the job is the cluster's.
void SayAtInterrupt(absl::string_view text) {
  // They stay: the handler may be reading the one before.
  static auto* const lines = new std::deque<std::string>();
  last_words = lines->emplace_back(absl::StrCat("cadre: ", text, "\n")).c_str();
  struct sigaction action = {};
  if (sigaction(SIGINT, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) return;
  action.sa_handler = OnInterrupt;
  sigaction(SIGINT, &action, nullptr);
}

int Run(const Parsed& parsed) {
  const absl::StatusOr<Settings> settings = ClientSettings(parsed, Flags());
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
  const absl::StatusOr<v1::JobSpec> at_nodes = AsNodesHaveIt(*settings, *spec);
  if (!at_nodes.ok()) return Fail(kExitUsage, at_nodes.status().message());
  const std::string missing = WhyNotHere(*at_nodes, spec->command(0));
  if (!missing.empty()) {
    Fail(0, absl::StrCat(missing,
                         "; it is submitted all the same, as its nodes may have other "
                         "files than this machine"));
  }
  const auto slurm = settings->Switch("slurm");
  if (!slurm.ok()) return Fail(kExitUsage, slurm.status().message());
  if (*slurm) {
    const absl::StatusOr<uint32_t> requeues = Requeues(parsed);
    if (!requeues.ok()) return Fail(kExitUsage, requeues.status().message());
    if (parsed.Has("server")) {
      return Fail(kExitUsage, "--slurm asks no server; leave it or --server out");
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
  SayAtInterrupt(absl::StrCat("job ", spec->name(), " may have been submitted; 'cadre status ",
                              spec->name(), "' says whether it was"));
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
  SayAtInterrupt(absl::StrCat("job ", spec->name(), " goes on; 'cadre logs ", spec->name(),
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
  command.flags = Flags();
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
