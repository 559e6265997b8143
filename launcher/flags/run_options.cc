#include "launcher/flags/run_options.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/keyed_digest.h"
#include "base/status_macros.h"
#include "launcher/environment/python.h"
#include "launcher/flags/job_flags.h"
#include "launcher/flags/rendezvous_flags.h"
#include "launcher/flags/take.h"
#include "launcher/spec/reader.h"
#include "launcher/spec/scalars.h"

namespace cadre::launcher {
namespace {

constexpr size_t kMaxNameBytes = 63;

// torchrun takes any text for an id, and two texts are two jobs. Where a name's characters do not
// tell them apart, a digest does, the same on every node.
std::string JobNameFromId(absl::string_view id) {
  constexpr size_t kDigits = 8;
  std::string name = JobNameFrom(id);
  if (name == id) return name;
  const std::string digest = absl::BytesToHexString(KeyedDigest("cadre rdzv-id", id));
  name.resize(std::min(name.size(), kMaxNameBytes - 1 - kDigits));
  return absl::StrCat(name, "-", digest.substr(0, kDigits));
}

absl::Status ChooseName(const Settings& settings, const std::optional<Identity>& identity,
                        const std::vector<std::string>& program, RunOptions& options) {
  v1::JobSpec& job = options.job;
  const std::optional<Setting> name = settings.Get("job-name");
  if (name.has_value()) {
    const absl::Status good = CheckJobName(name->value);
    if (!good.ok()) return Named(*name, good);
    job.set_name(name->value);
    return absl::OkStatus();
  }
  const std::string id = settings.GetOr("rdzv-id", "");
  if (!id.empty() && id != "none") {
    job.set_name(JobNameFromId(id));
    options.workers.run_id = id;
  } else if (job.name().empty() && identity.has_value() && !identity->job_name.empty()) {
    job.set_name(JobNameFrom(identity->job_name));
  } else if (job.name().empty()) {
    job.set_name(JobNameOfProgram(program.empty() ? "job" : program[0]));
  }
  return absl::OkStatus();
}

}  // namespace

std::string JobNameFrom(absl::string_view text) {
  std::string name;
  for (const char c : absl::AsciiStrToLower(text)) {
    const bool good = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
    name += good ? c : '-';
  }
  while (!name.empty() && name[0] == '-') name.erase(0, 1);
  if (name.size() > kMaxNameBytes) name.resize(kMaxNameBytes);
  return name.empty() ? "job" : name;
}

std::string JobNameOfProgram(absl::string_view program) {
  const absl::string_view base = program.substr(program.rfind('/') + 1);
  return JobNameFrom(base.substr(0, base.find('.', 1)));
}

absl::StatusOr<std::vector<std::string>> BuildCommand(const Settings& settings,
                                                      const v1::JobSpec& job,
                                                      std::vector<std::string> program,
                                                      bool for_python) {
  ASSIGN_OR_RETURN(const bool module, settings.Switch("module"));
  ASSIGN_OR_RETURN(const bool no_python, settings.Switch("no-python"));
  ASSIGN_OR_RETURN(const bool run_path, settings.Switch("run-path"));
  if (module && no_python) {
    return absl::InvalidArgumentError("--module and --no-python contradict each other");
  }
  if (run_path && module) {
    return absl::InvalidArgumentError("--module and --run-path contradict each other");
  }
  // As in torchrun --run-path wins over --no-python.
  const bool script = !no_python && (for_python || absl::EndsWith(program[0], ".py"));
  if (!module && !run_path && !script) return program;
  std::map<std::string, std::string> environment = settings.environment();
  for (const auto& [name, value] : job.env()) environment[name] = value;
  const std::string python = PythonFor(environment, ThisProgram());
  std::vector<std::string> command = {python.empty() ? "python3" : python, "-u"};
  if (module) command.push_back("-m");
  if (run_path) {
    command.insert(command.end(), {"-c",
                                   "import runpy, sys; sys.argv = sys.argv[1:]; "
                                   "runpy.run_path(sys.argv[0], run_name='__main__')"});
  }
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

absl::StatusOr<RunOptions> ResolveRun(const Settings& settings, std::optional<v1::JobSpec> spec,
                                      const std::optional<Identity>& identity,
                                      const IsForPythonThere& is_for_python) {
  RunOptions options;
  if (spec.has_value()) options.job = *std::move(spec);
  // Before the program is looked for: a flag without its value has taken that for one. First those
  // that --join-timeout and --settle win over.
  RETURN_IF_ERROR(TakeRendezvousFlags(settings, options));
  RETURN_IF_ERROR(TakeJobFlags(settings, options));
  std::vector<std::string> program = settings.rest();
  if (!program.empty() && !options.job.command().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job's file names the program already; leave '", program[0],
                     "' out, or change 'command' in the file"));
  }
  if (program.empty()) program.assign(options.job.command().begin(), options.job.command().end());
  if (program.empty()) {
    return absl::InvalidArgumentError(
        "the program is missing; usage: cadre run [options] [--] PROGRAM [ARGUMENT...]");
  }
  if (program[0].empty()) {
    return absl::InvalidArgumentError(
        "the program is empty text; expected a program's name or path");
  }
  const bool for_python =
      is_for_python != nullptr && is_for_python(program[0], options.job.working_dir());
  ASSIGN_OR_RETURN(const std::vector<std::string> command,
                   BuildCommand(settings, options.job, program, for_python));
  options.job.mutable_command()->Assign(command.begin(), command.end());
  ASSIGN_OR_RETURN(const bool module, settings.Switch("module"));
  // A macro is filled in for each worker.
  const bool macro = absl::StrContains(program[0], "${");
  if (command.size() > program.size() && !module && !macro) options.script = program[0];
  RETURN_IF_ERROR(ChooseName(settings, identity, program, options));
  if (identity.has_value()) RETURN_IF_ERROR(TakeIdentity(settings, *identity, options));
  options.logs_anywhere = options.job.logs().dir().empty();
  FillSpecDefaults(options.job);
  options.workers.bind = options.job.placement().bind();
  if (options.adopt_timeout > absl::ZeroDuration() && options.job.restart().in_place()) {
    return absl::InvalidArgumentError(
        "--adopt-timeout and recovery in place (--in-place) do not go together: leave one out");
  }
  if (options.adopt_timeout > absl::ZeroDuration() && options.job.restart().standby()) {
    return absl::InvalidArgumentError(
        "--adopt-timeout and processes that stand by (--standby yes) do not go together: leave one "
        "out");
  }
  if (options.insecure && options.job.encrypt()) {
    return absl::InvalidArgumentError(
        "--encrypt does not go with --insecure, by which its key would cross the network in clear: "
        "leave one out");
  }
  RETURN_IF_ERROR(ChooseEndpoint(settings, identity, options));
  return options;
}

}  // namespace cadre::launcher
