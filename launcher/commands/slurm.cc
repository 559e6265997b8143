// cadre slurm script: the sbatch script for a job spec.
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "launcher/commands/commands.h"
#include "launcher/slurm/batch_script.h"
#include "launcher/spec/reader.h"
#include "launcher/spec/scalars.h"

namespace cadre {
namespace {

int Run(const Parsed& parsed) {
  if (parsed.rest[0] != "script") {
    return Fail(kExitUsage,
                absl::StrCat("expected 'cadre slurm script FILE', got '", parsed.rest[0], "'"));
  }
  absl::StatusOr<v1::JobSpec> spec = ReadSpecFile(parsed.rest[1]);
  if (!spec.ok()) return Fail(kExitBadSpec, spec.status().message());
  FillSpecDefaults(*spec);
  BatchScriptOptions options;
  if (const auto requeues = parsed.Get("requeues")) {
    const absl::StatusOr<uint32_t> count = ParseCount(*requeues);
    if (!count.ok()) {
      return Fail(kExitUsage, absl::StrCat("--requeues: ", count.status().message()));
    }
    options.requeues = *count;
  }
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) options.cadre = self.string();
  options.spec_path = std::filesystem::absolute(parsed.rest[1], error).lexically_normal().string();
  if (error) return Fail(kExitInternal, absl::StrCat(parsed.rest[1], ": ", error.message()));
  const absl::StatusOr<std::string> script = BatchScript(*spec, options);
  if (!script.ok()) {
    return Fail(kExitBadSpec, absl::StrCat(parsed.rest[1], ": ", script.status().message()));
  }
  return Print(*script);
}

}  // namespace

Command SlurmCommand() {
  Command command;
  command.name = "slurm";
  command.summary = "Write the sbatch script for a job spec.";
  command.positionals = "script FILE";
  command.min_positionals = command.max_positionals = 2;
  command.flags = {
      {"requeues", "N", "How often the job goes back into the queue when it is preempted [16]."}};
  command.run = Run;
  command.description =
      "The script starts one launcher per node, ends in time for a checkpoint when Slurm warns of\n"
      "the time limit or of preemption, and goes back into the queue. What Slurm must know beyond\n"
      "the spec stands under 'slurm:' there: partition, account, and any option of sbatch in "
      "extra.";
  return command;
}

}  // namespace cadre
