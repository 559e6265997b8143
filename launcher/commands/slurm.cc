// cadre slurm: the sbatch script for a job spec, and how a Slurm job gets on.
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/slurm_follow.h"
#include "launcher/slurm/job_script.h"
#include "launcher/spec/reader.h"

namespace cadre::launcher {
namespace {

int Script(const std::string& path, const Parsed& parsed) {
  absl::StatusOr<v1::JobSpec> spec = ReadSpecFile(path);
  if (!spec.ok()) return Fail(kExitBadSpec, spec.status().message());
  FillSpecDefaults(*spec);
  const absl::StatusOr<uint32_t> requeues = Requeues(parsed);
  if (!requeues.ok()) return Fail(kExitUsage, requeues.status().message());
  const absl::StatusOr<std::string> script = SlurmScript(path, *spec, *requeues);
  if (!script.ok()) return Fail(kExitBadSpec, script.status().message());
  return Print(*script);
}

int Run(const Parsed& parsed) {
  if (parsed.rest[0] == "script") return Script(parsed.rest[1], parsed);
  if (parsed.rest[0] != "follow") {
    return Fail(kExitUsage, absl::StrCat("expected 'cadre slurm script FILE' or 'cadre slurm "
                                         "follow JOBID', got '",
                                         parsed.rest[0], "'"));
  }
  const absl::Status number = CheckSlurmJobId(parsed.rest[1]);
  return number.ok() ? FollowSlurmJob(parsed.rest[1]) : Fail(kExitUsage, number.message());
}

}  // namespace

Command SlurmCommand() {
  Command command;
  command.name = "slurm";
  command.summary = "Write the sbatch script for a job spec, or follow a Slurm job.";
  command.positionals = "script FILE | follow JOBID";
  command.min_positionals = command.max_positionals = 2;
  command.flags = {RequeuesFlag()};
  command.run = Run;
  command.description =
      "The script starts one launcher per node, ends in time for a checkpoint when Slurm warns of\n"
      "the time limit or of preemption, and goes back into the queue. What Slurm must know beyond\n"
      "the spec stands under 'slurm:' there: partition, account, and any option of sbatch in "
      "extra.\n"
      "'cadre submit --slurm' writes it and hands it to sbatch.\n"
      "'follow' shows the job's state and what it writes, and exits with its exit status.";
  return command;
}

}  // namespace cadre::launcher
