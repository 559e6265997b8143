// sbatch: submits a batch script to a cluster, with the options and the output of Slurm's command.
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "launcher/commands/batch_jobs.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/slurm_client.h"

namespace cadre::launcher {
namespace {

// The script that sbatch means by this name: a path, or else a file here or on PATH. A path is
// relative to --chdir.
absl::StatusOr<std::string> FindScript(const std::string& name, const std::string& directory) {
  if (absl::StartsWith(name, "/")) return name;
  const std::string here = directory.empty() ? name : absl::StrCat(directory, "/", name);
  if (absl::StartsWith(name, ".") || access(here.c_str(), F_OK) == 0) return here;
  const char* const path = getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    const std::string found = absl::StrCat(folder, "/", name);
    if (!folder.empty() && access(found.c_str(), R_OK) == 0) return found;
  }
  return absl::NotFoundError(
      absl::StrCat("Unable to open file ", name, ": it is neither here nor on PATH"));
}

// The path as people see it later, when they are in other directories.
std::string Absolute(const std::string& path, const std::string& directory) {
  return absl::StartsWith(path, "/") ? path : absl::StrCat(directory, "/", path);
}

struct Source {
  BatchSource script;
  // How errors name the script.
  std::string file;
};

absl::StatusOr<Source> ReadSource(const ParsedOptions& parsed) {
  if (!parsed.rest.empty() && parsed.rest[0] == ":") {
    return absl::InvalidArgumentError(
        "there are no heterogeneous jobs; submit a job for each of the parts between ':'");
  }
  if (const GivenOption* const wrap = FindOption(parsed, "wrap")) {
    if (parsed.rest.empty()) return Source{WrappedCommand(wrap->value), "--wrap"};
    return absl::InvalidArgumentError(
        absl::StrCat("Script arguments not permitted with --wrap: '", parsed.rest[0], "'"));
  }
  if (parsed.rest.empty()) {
    ASSIGN_OR_RETURN(std::string script, ReadStandardInput());
    return Source{{std::move(script), {}, "sbatch", {"stdin"}}, kStandardInput};
  }
  const GivenOption* const directory = FindOption(parsed, "chdir");
  ASSIGN_OR_RETURN(const std::string path,
                   FindScript(parsed.rest[0], directory == nullptr ? "" : directory->value));
  ASSIGN_OR_RETURN(std::string script, ReadBatchScript(path));
  ASSIGN_OR_RETURN(const Submitter here, ThisSubmitter());
  return Source{{std::move(script),
                 {parsed.rest.begin() + 1, parsed.rest.end()},
                 path.substr(path.rfind('/') + 1),
                 {Absolute(path, here.directory)}},
                path};
}

// As sbatch(1) has it: 1 if the script was ended by a signal.
int StatusOf(const v1::JobStatus& job) {
  const v1::Verdict& verdict = job.verdict();
  if (verdict.outcome() == v1::SUCCEEDED) return 0;
  const bool killed =
      verdict.outcome() == v1::CANCELLED_PHASE || verdict.root_cause().exit().signal() != 0;
  return killed || verdict.exit_status() == 0 ? 1 : verdict.exit_status();
}

int Submit(const ReadyJob& ready) {
  const SbatchOptions& options = ready.options;
  const auto client = ConnectToServer();
  if (!client.ok()) return FailAsSlurm(client.status().message());
  const absl::StatusOr<v1::JobStatus> job = SubmitJob(**client, ready);
  if (!job.ok()) {
    return FailAsSlurm(absl::StrCat("Batch job submission failed: ", job.status().message()));
  }
  int printed = 0;
  if (options.Has("parsable")) {
    printed = Print(absl::StrCat(job->submission(), "\n"));
  } else if (!options.Has("quiet")) {
    printed = Print(absl::StrCat("Submitted batch job ", job->submission(), "\n"));
  }
  if (printed != 0 || !options.Has("wait")) return printed;
  return AwaitAll(**client, *job, StatusOf);
}

int Run(const Parsed& arguments) {
  const absl::StatusOr<ParsedOptions> parsed = ParseOptions(arguments.rest, SbatchTable());
  if (!parsed.ok()) return FailUsage("sbatch", parsed.status());
  if (FindOption(*parsed, "help") != nullptr) return Print(SbatchHelp());
  if (FindOption(*parsed, "usage") != nullptr) return Print(SbatchUsage());
  if (FindOption(*parsed, "version") != nullptr) return PrintSlurmVersion();
  const absl::StatusOr<Source> source = ReadSource(*parsed);
  if (!source.ok()) return FailAsSlurm(source.status().message());
  const absl::StatusOr<ReadyJob> ready = MakeReady(source->script, source->file, parsed->options);
  if (!ready.ok()) return FailAsSlurm(ready.status().message());
  if (!ready->options.Has("quiet")) {
    for (const std::string& notice : ready->options.notices) Notice(notice);
  }
  if (!ready->options.Has("test-only")) return Submit(*ready);
  Notice(absl::StrCat("Job ", ready->spec.name(), " to start on ", JobSizeText(*ready),
                      " when they are free; nothing was submitted"));
  return 0;
}

}  // namespace

Command SbatchCommand() {
  Command command;
  command.name = "sbatch";
  command.summary = "Submit a batch script to a cluster.";
  command.own_syntax = true;
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
