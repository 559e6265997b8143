// cadre submit, which submits a job to a cluster or to Slurm; and cadre validate and cadre cancel.
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/batch_jobs.h"
#include "launcher/commands/change_jobs.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/logs.h"
#include "launcher/commands/run_checks.h"
#include "launcher/commands/slurm.h"
#include "launcher/commands/submit_line.h"
#include "launcher/display/output_format.h"
#include "launcher/flags/parser.h"
#include "launcher/flags/run_options.h"
#include "launcher/slurm/batch_script.h"
#include "launcher/slurm/sbatch_job.h"
#include "launcher/slurm/sbatch_options.h"
#include "launcher/spec/job_spec.h"
#include "rendezvous/state/policy.h"

namespace cadre::launcher {
namespace {

constexpr int kExitInterrupted = kExitSignalBase + SIGINT;
constexpr char kSubmitPositionals[] =
    "FILE [ARGUMENT...] | - | --wrap COMMAND | -- PROGRAM [ARGUMENT...]";

std::vector<Flag> SubmitFlags() {
  std::vector<Flag> flags = ControlFlags();
  flags.push_back(
      {"follow", "", "Show its workers' output until it ends; exits with the job's exit status."});
  Flag output = OutputFlag();
  output.value = "plain|json|FILE";
  output.help = "Output format [plain]; or as sbatch has it, a file for a script's output.";
  output.short_name = 'o';
  flags.push_back(std::move(output));
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

// "submitted mnist as job 57; it waits for 2 nodes". Its unique name follows the id if that is
// another one: "job 57 (mnist-57)".
std::string SubmittedText(const v1::JobStatus& job) {
  const bool renamed = !job.submitted_name().empty();
  std::string text = absl::StrCat("submitted ", renamed ? job.submitted_name() : job.name());
  if (job.array() != 0) {
    absl::StrAppend(&text, " as array ", job.array(), " of ", Count(job.array_size(), "element"));
  } else if (job.submission() != 0) {
    absl::StrAppend(&text, " as job ", job.submission());
  }
  if (renamed && job.array() == 0) absl::StrAppend(&text, " (", job.name(), ")");
  if (!job.waiting_for().empty()) absl::StrAppend(&text, "; it waits for ", job.waiting_for());
  return EscapeControl(text) + "\n";
}

// What a command line of `cadre submit` submits.
struct Source {
  enum class Kind { kFile, kScript, kProgram };
  Kind kind = Kind::kFile;
  // How errors name the file or the script.
  std::string name;
  // The content of a file, if it was read from standard input, or of a script.
  std::string text;
};

// The option --wrap; null: it was not given.
const GivenOption* FindWrap(const SubmitLine& line) {
  const GivenOption* found = nullptr;
  for (const GivenOption& option : line.sbatch) {
    if (option.name == "wrap") found = &option;
  }
  return found;
}

absl::StatusOr<Source> FindSource(const SubmitLine& line) {
  const bool wrapped = FindWrap(line) != nullptr;
  if (wrapped && !line.rest.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--wrap is the job's script; leave '", line.rest[0], "' out"));
  }
  if (wrapped) return Source{Source::Kind::kScript, "--wrap", ""};
  if (line.rest.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("an argument is missing; usage: cadre submit [options] ", kSubmitPositionals));
  }
  if (line.is_program) return Source{Source::Kind::kProgram, line.rest[0], ""};
  const std::string& path = line.rest[0];
  if (path == "-") {
    ASSIGN_OR_RETURN(std::string text, ReadStandardInput());
    const auto kind = absl::StartsWith(text, "#!") ? Source::Kind::kScript : Source::Kind::kFile;
    return Source{kind, kStandardInput, std::move(text)};
  }
  if (!IsBatchScript(path)) return Source{Source::Kind::kFile, path, ""};
  ASSIGN_OR_RETURN(std::string text, ReadBatchScript(path));
  return Source{Source::Kind::kScript, path, std::move(text)};
}

// A job of a batch script.
absl::StatusOr<ReadyJob> OfScript(const SubmitLine& line, Source source) {
  if (const GivenOption* const wrap = FindWrap(line)) {
    return MakeReady(WrappedCommand(wrap->value), source.name, line.sbatch);
  }
  BatchSource script;
  script.script = std::move(source.text);
  script.args.assign(line.rest.begin() + 1, line.rest.end());
  if (line.rest[0] == "-") {
    script.name = "sbatch";
    script.program = {"stdin"};
  } else {
    ASSIGN_OR_RETURN(const std::string path, WorkingDir(line.rest[0]));
    script.name = path.substr(path.rfind('/') + 1);
    script.program = {path};
  }
  return MakeReady(script, source.name, line.sbatch);
}

absl::StatusOr<ReadyJob> OfProgram(const SubmitLine& line) {
  ReadyJob job;
  ASSIGN_OR_RETURN(job.options, CombineSbatchOptions({}, {}, line.sbatch));
  ASSIGN_OR_RETURN(const Submitter submitter, ThisSubmitter());
  ASSIGN_OR_RETURN(job.spec, MakeProgramJob(line.rest, submitter, job.options));
  ASSIGN_OR_RETURN(job.array, ArrayOf(job.options));
  return job;
}

// A job that is described in a file.
absl::StatusOr<ReadyJob> OfFile(const SubmitLine& line, const Source& source) {
  ReadyJob job;
  const bool from_input = source.name != line.rest[0];
  absl::StatusOr<v1::JobSpec> spec =
      from_input ? ReadSpec(source.text, source.name) : ReadSpecFile(source.name);
  if (!spec.ok()) {
    // Of a file that has another name than those of jobs, the reader says that it expected YAML.
    const absl::string_view error = spec.status().message();
    const bool may_be_script = from_input || absl::StrContains(error, "which is YAML");
    return absl::InvalidArgumentError(
        absl::StrCat(error, may_be_script ? "; a batch script would begin with '#!'" : ""));
  }
  job.spec = *std::move(spec);
  ASSIGN_OR_RETURN(job.options, CombineSbatchOptions({}, {}, line.sbatch));
  if (!job.options.given.empty()) {
    ASSIGN_OR_RETURN(const Submitter submitter, ThisSubmitter());
    RETURN_IF_ERROR(ChangeJob(source.name, submitter, job.options, job.spec));
    ASSIGN_OR_RETURN(job.array, ArrayOf(job.options));
  }
  if (job.spec.name().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(source.name, ": a job that is submitted needs a name"));
  }
  FillSpecDefaults(job.spec);
  return job;
}

absl::StatusOr<ReadyJob> MakeJob(const SubmitLine& line, Source source) {
  switch (source.kind) {
    case Source::Kind::kScript:
      return OfScript(line, std::move(source));
    case Source::Kind::kProgram:
      return OfProgram(line);
    case Source::Kind::kFile:
      break;
  }
  return OfFile(line, source);
}

// Hands the job of a file to Slurm.
int SubmitFileToSlurm(const SubmitLine& line, const Source& source, const v1::JobSpec& spec,
                      bool json, bool follow) {
  if (source.kind != Source::Kind::kFile || source.name != line.rest[0]) {
    return Fail(kExitUsage, "--slurm takes the file of a job; hand a script to Slurm's sbatch");
  }
  if (!line.sbatch.empty()) {
    return Fail(kExitUsage, absl::StrCat(line.sbatch[0].place, ": with --slurm, write it into ",
                                         source.name, " as slurm: {extra: [...]}"));
  }
  const absl::StatusOr<uint32_t> requeues = Requeues(line.own);
  if (!requeues.ok()) return Fail(kExitUsage, requeues.status().message());
  if (line.own.Has("server")) {
    return Fail(kExitUsage, "--slurm uses no server; leave out --slurm or --server");
  }
  return SubmitToSlurm({source.name, spec, *requeues, json, follow});
}

// How the user wants to be told about the job.
struct Report {
  bool json = false;
  bool follow = false;
};

int SubmitAndReport(const Settings& settings, const ReadyJob& ready, const Report& report) {
  const std::string& name = ready.spec.name();
  if (report.follow && ready.array.indices_size() > 0) {
    return Fail(kExitUsage,
                "--follow shows one job; leave it out with --array, and follow an "
                "element with 'cadre logs ID --follow'");
  }
  const auto client = ControlClient::Connect(settings);
  if (!client.ok()) return Fail(ControlExit(client.status()), client.status().message());
  PrintAtInterrupt(absl::StrCat("job ", name, " may have been submitted; 'cadre status ", name,
                                "' shows whether it was"));
  const absl::StatusOr<v1::JobStatus> job = SubmitJob(**client, ready);
  if (!job.ok()) return Fail(ControlExit(job.status()), job.status().message());
  const bool id_alone = ready.options.Has("parsable");
  const bool quiet = ready.options.Has("quiet") && !report.json && !id_alone;
  const int printed = quiet         ? 0
                      : report.json ? Print(JsonText(*job) + "\n")
                      : id_alone    ? Print(absl::StrCat(job->submission(), "\n"))
                                    : Print(SubmittedText(*job));
  const bool waits = ready.options.Has("wait");
  if (printed != 0 || (!report.follow && !waits)) return printed;
  PrintAtInterrupt(absl::StrCat("job ", job->name(), " continues; 'cadre logs ", job->name(),
                                " --follow' shows it again, 'cadre cancel ", job->name(),
                                "' ends it"));
  if (!report.follow) {
    return AwaitAll(**client, *job,
                    [](const v1::JobStatus& end) { return end.verdict().exit_status(); });
  }
  LogFollow all;
  all.job = LastingName(*job);
  all.follow = true;
  ProtectTerminals(&all);
  return FollowLogs(LogsOf(**client), all);
}

// The job's program is looked for as its nodes will look for it.
int ResolveProgram(const Settings& settings, v1::JobSpec* spec) {
  const absl::StatusOr<v1::JobSpec> at_nodes = ResolveOnNodes(settings, *spec);
  if (!at_nodes.ok()) return Fail(kExitUsage, at_nodes.status().message());
  const std::string missing = WhyProgramMissing(*at_nodes, spec->command(0));
  if (!missing.empty()) {
    Notice(absl::StrCat(missing,
                        "; the job is submitted anyway, because its nodes may have other files "
                        "than this machine"));
  }
  *spec = *at_nodes;
  return 0;
}

int SubmitLineJob(SubmitLine line) {
  absl::StatusOr<Source> source = FindSource(line);
  if (!source.ok()) return Fail(kExitUsage, source.status().message());
  const bool of_file = source->kind == Source::Kind::kFile;
  if (of_file) {
    const absl::Status read = ReadFlagsAfterFile(SubmitFlags(), &line);
    if (!read.ok()) return Fail(kExitUsage, read.message());
  }
  for (const GivenOption& option : line.sbatch) {
    // Of a file its value is a mistake rather than a file for the job's output.
    if (!of_file || option.place != "--output") continue;
    return Fail(kExitUsage, AsksForJson(option.value).status().message());
  }
  const absl::StatusOr<Settings> settings = ClientSettings(line.own, SubmitFlags());
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  const absl::StatusOr<bool> json = AsksForJson(settings->GetOr("output", "plain"));
  if (!json.ok()) return Fail(kExitUsage, json.status().message());
  const auto follow = settings->Switch("follow");
  if (!follow.ok()) return Fail(kExitUsage, follow.status().message());
  const auto slurm = settings->Switch("slurm");
  if (!slurm.ok()) return Fail(kExitUsage, slurm.status().message());
  absl::StatusOr<ReadyJob> job = MakeJob(line, *source);
  if (!job.ok()) return Fail(kExitBadSpec, job.status().message());
  const v1::JobSpec as_written = job->spec;
  if (source->kind != Source::Kind::kScript) {
    const int resolved = ResolveProgram(*settings, &job->spec);
    if (resolved != 0) return resolved;
  }
  if (*slurm) return SubmitFileToSlurm(line, *source, as_written, *json, *follow);
  const absl::Status checked = CheckUtf8Fields(job->spec);
  if (!checked.ok()) return Fail(kExitUsage, checked.message());
  if (!job->options.Has("quiet")) {
    for (const std::string& notice : job->options.notices) Notice(notice);
  }
  if (!job->options.Has("test-only")) return SubmitAndReport(*settings, *job, {*json, *follow});
  Notice(absl::StrCat("job ", job->spec.name(), " would start on ", JobSizeText(*job),
                      "; nothing was submitted"));
  return 0;
}

int RunSubmit(const Parsed& parsed) {
  absl::StatusOr<SubmitLine> line = ReadSubmitLine(parsed.rest, SubmitFlags());
  if (!line.ok()) return Fail(kExitUsage, line.status().message());
  const bool all = line->own.Has("help-all");
  if (all || line->own.Has("help")) return Print(HelpText(SubmitCommand(), all));
  return SubmitLineJob(*std::move(line));
}

}  // namespace

Command SubmitCommand() {
  Command command;
  command.name = "submit";
  command.summary = "Hand a job to a cluster, or to Slurm.";
  command.positionals = kSubmitPositionals;
  command.own_syntax = true;
  command.flags = WithSbatchFlags(SubmitFlags());
  command.run = RunSubmit;
  command.description =
      "FILE describes a job, in YAML, or is a batch script, which begins with '#!' and may have\n"
      "lines of '#SBATCH'; '-' reads either from standard input. Arguments after a script are its\n"
      "own. A program after '--' runs on each node of its job. The flags of sbatch win over the\n"
      "file. --output is sbatch's, unless its value is plain or json.";
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
  const std::string reason = read->GetOr("reason", "a user's request");
  return ForEachJob(parsed.rest, *read, [&](JobSource& source) -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(const v1::JobStatus job, source.Cancel(reason));
    return absl::StrCat("cancelling ", job.name());
  });
}

}  // namespace

Command CancelCommand() {
  Command command;
  command.name = "cancel";
  command.summary = "Stop jobs on all their nodes, with grace.";
  command.positionals = "JOB...";
  command.min_positionals = 1;
  command.max_positionals = kMostJobs;
  command.flags = CancelFlags();
  command.run = RunCancel;
  command.description = kJobsHelp;
  return command;
}

}  // namespace cadre::launcher
