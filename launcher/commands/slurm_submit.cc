#include "launcher/commands/slurm_submit.h"

#include <errno.h>
#include <string.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/run_files.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/slurm_follow.h"
#include "launcher/slurm/job_script.h"
#include "launcher/slurm/slurm_commands.h"
#include "nlohmann/json.hpp"

namespace cadre::launcher {
namespace {

// Beside what the launchers write of the job: the verdict is looked for there. Its path.
absl::StatusOr<std::string> WriteScript(const v1::JobSpec& spec, const std::string& script) {
  const std::string directory = absl::StrCat(spec.logs().dir(), "/", spec.name());
  RETURN_IF_ERROR(agent::MakeRunDirectory(spec.logs().dir(), spec.name()));
  const std::string path = directory + "/job.sh";
  RETURN_IF_ERROR(agent::WriteFile(path, script));
  return path;
}

}  // namespace

int SubmitToSlurm(const SlurmSubmission& submission) {
  const v1::JobSpec& spec = submission.spec;
  const auto script = SlurmScript(submission.path, spec, submission.requeues);
  if (!script.ok()) return Fail(kExitBadSpec, script.status().message());
  const absl::StatusOr<std::string> path = WriteScript(spec, *script);
  if (!path.ok()) return Fail(kExitUnavailable, path.status().message());
  const absl::StatusOr<SlurmJobId> id = Sbatch(*path);
  if (!id.ok()) return Fail(kExitUnavailable, id.status().message());
  const nlohmann::json json = {{"slurm_job", *id}, {"name", spec.name()}, {"script", *path}};
  const int printed =
      Print(submission.json ? json.dump() + "\n"
                            : absl::StrCat("submitted ", spec.name(), " as Slurm job ", *id,
                                           "; its script is ", *path, "\n"));
  if (printed != 0 || !submission.follow) return printed;
  return FollowSlurmJob(*id);
}

}  // namespace cadre::launcher
