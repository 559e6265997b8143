#include "launcher/slurm/batch_script.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "base/duration.h"
#include "base/status_macros.h"
#include "launcher/spec/job_spec.h"
#include "launcher/spec/scalars.h"

namespace cadre::launcher {
namespace {

// The time between the end of the grace period and the end of the allocation.
constexpr absl::Duration kWarningMargin = absl::Seconds(30);
// Slurm may send the warning this much earlier than requested.
constexpr absl::Duration kWarningIsEarly = absl::Minutes(1);
// The limit of sbatch's --signal: an unsigned 16-bit number of seconds.
constexpr absl::Duration kWarningMax = absl::Seconds(65535);

// Quotes text for a shell.
std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

bool RequestsGpus(const v1::JobSpec& spec) {
  return std::any_of(
      spec.slurm().extra().begin(), spec.slurm().extra().end(), [](const std::string& option) {
        return absl::StartsWith(option, "--gpus") || absl::StartsWith(option, "--gres") ||
               absl::StartsWith(option, "--exclusive");
      });
}

absl::StatusOr<std::vector<std::string>> Resources(const v1::JobSpec& spec) {
  std::vector<std::string> options;
  const v1::Resources& each = spec.resources();
  const bool counted = spec.workers_per_node().kind() == v1::WorkersPerNode::COUNT;
  const uint64_t workers = spec.workers_per_node().count();
  if (counted && each.gpus_per_worker() > 0 && !RequestsGpus(spec)) {
    options.push_back(absl::StrCat("--gpus-per-node=", workers * each.gpus_per_worker()));
  }
  if (spec.workers_per_node().kind() == v1::WorkersPerNode::GPU && !RequestsGpus(spec)) {
    return absl::InvalidArgumentError(
        "workers_per_node: 'gpu' does not say how many GPUs to ask Slurm for; add slurm: {extra: "
        "[\"--gpus-per-node=N\"]}");
  }
  if (counted && each.cpus_per_worker() > 0) {
    options.push_back(absl::StrCat("--cpus-per-task=", workers * each.cpus_per_worker()));
  }
  if (counted && each.memory_per_worker() > 0) {
    constexpr uint64_t kMiB = 1 << 20;
    options.push_back(
        absl::StrCat("--mem=", (workers * each.memory_per_worker() + kMiB - 1) / kMiB, "M"));
  }
  return options;
}

bool HasTimeOption(const v1::JobSpec& spec) {
  return std::any_of(spec.slurm().extra().begin(), spec.slurm().extra().end(),
                     [](const std::string& option) {
                       return absl::StartsWith(option, "--time=") ||
                              absl::StartsWith(option, "--time ") || absl::StartsWith(option, "-t");
                     });
}

// The time limit for a job that has a total timeout, which must end before Slurm warns of the end.
// In minutes, as Slurm counts. Empty: the partition's limit applies.
std::string TimeOption(const v1::JobSpec& spec, absl::Duration warning) {
  const absl::Duration total = FromProto(spec.timeouts().total());
  if (total <= absl::ZeroDuration() || total == absl::InfiniteDuration() || HasTimeOption(spec)) {
    return "";
  }
  const absl::Duration limit = total + warning + kWarningIsEarly;
  return absl::StrCat("--time=", absl::ToInt64Minutes(absl::Ceil(limit, absl::Minutes(1))));
}

absl::StatusOr<std::vector<std::string>> Options(const v1::JobSpec& spec) {
  // sbatch takes as many nodes of MIN-MAX as it can get; the spares are added.
  const uint32_t min = spec.nodes().min();
  const uint32_t max = spec.nodes().max() + spec.spares();
  const absl::Duration grace = FromProto(spec.timeouts().stop_grace());
  if (grace > kWarningMax - kWarningMargin) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeouts.stop_grace: Slurm warns at most ", absl::FormatDuration(kWarningMax),
                     " before the end; make it ",
                     absl::FormatDuration(kWarningMax - kWarningMargin), " or less"));
  }
  const absl::Duration warning = grace + kWarningMargin;
  std::vector<std::string> options = {
      absl::StrCat("--job-name=", spec.name()),
      absl::StrCat("--nodes=", min, max > min ? absl::StrCat("-", max) : ""),
      "--no-kill",
      "--requeue",
      "--open-mode=append",
      absl::StrCat("--signal=USR1@", absl::ToInt64Seconds(absl::Ceil(warning, absl::Seconds(1)))),
  };
  const std::string time = TimeOption(spec, warning);
  if (!time.empty()) options.push_back(time);
  // With a number of tasks Slurm would allocate only as many nodes as those need: MIN.
  if (min == max) options.push_back("--ntasks-per-node=1");
  ASSIGN_OR_RETURN(const std::vector<std::string> resources, Resources(spec));
  options.insert(options.end(), resources.begin(), resources.end());
  const v1::SlurmOptions& slurm = spec.slurm();
  if (!slurm.partition().empty()) {
    options.push_back(absl::StrCat("--partition=", slurm.partition()));
  }
  if (!slurm.account().empty()) options.push_back(absl::StrCat("--account=", slurm.account()));
  options.insert(options.end(), slurm.extra().begin(), slurm.extra().end());
  return options;
}

constexpr char kBody[] = R"(
# If sbatch was called within another job, that job's variables were passed on, and srun would take
# them for this job's. Launchers would do the same with what another launcher set for its processes.
unset "${!SLURM_STEP_@}" "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_PER_@}" "${!SLURM_MEM_BIND@}" \
  "${!OMPI_@}" "${!PMIX_@}" "${!PMI_@}" SLURM_DISTRIBUTION SLURM_EXACT SLURM_EXCLUSIVE \
  SLURM_HINT SLURM_LOCALID SLURM_NODEID SLURM_PROCID SLURM_THREADS_PER_CORE

# Each job, and each task of an array, has a state directory of its own. A job that was put back into
# the queue finds its state there, and continues to count its generations.
state=$DIRECTORY/slurm-$SLURM_JOB_ID${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
mkdir -p "$state"
rm -f "$state/verdict.json"

# One launcher per node. Cadre, not srun, decides what the end of one of them means: if there is a
# verdict, its exit status counts, and not that of srun.
status=0
srun --ntasks-per-node=1 --kill-on-bad-exit=0 --no-kill --wait=0 --cpu-bind=none \
  $CADRE run --state-dir "$state" $SPEC || status=$?
verdict=$(sed -n 's/^ "exit_status": \([0-9]*\).*/\1/p' "$state/verdict.json" 2> /dev/null)
status=${verdict:-$status}

# 75: worth trying later. Slurm's warning (--signal above) ended it in time for a checkpoint, or
# too few nodes were left.
if [ "$status" -eq 75 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt $REQUEUES ]; then
  echo "put back into the queue"
  scontrol requeue "$SLURM_JOB_ID" && exit 75
fi
exit "$status"
)";

}  // namespace

absl::StatusOr<std::string> BatchScript(const v1::JobSpec& spec,
                                        const BatchScriptOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<std::string> sbatch, Options(spec));
  std::string script = "#!/bin/bash\n# Made by 'cadre slurm script'; hand it to sbatch.\n";
  for (const std::string& option : sbatch) absl::StrAppend(&script, "#SBATCH ", option, "\n");
  return script +
         absl::StrReplaceAll(
             kBody, {{"$CADRE", Quoted(options.cadre)},
                     {"$DIRECTORY", Quoted(absl::StrCat(spec.logs().dir(), "/", spec.name()))},
                     {"$SPEC", Quoted(options.spec_path)},
                     {"$REQUEUES", absl::StrCat(options.requeues)}});
}

absl::StatusOr<std::string> SlurmScript(const std::string& path, const v1::JobSpec& spec,
                                        uint32_t requeues) {
  BatchScriptOptions options;
  options.requeues = requeues;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) options.cadre = self.string();
  options.spec_path = std::filesystem::absolute(path, error).lexically_normal().string();
  if (error) return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.message()));
  absl::StatusOr<std::string> script = BatchScript(spec, options);
  if (script.ok()) return script;
  return SpecErrorAt(path, script.status().message());
}

Flag RequeuesFlag() {
  return {"requeues", "N",
          "How often a Slurm job goes back into the queue when it is preempted [16]."};
}

absl::StatusOr<uint32_t> Requeues(const Parsed& parsed) {
  const auto given = parsed.Get("requeues");
  if (!given.has_value()) return BatchScriptOptions().requeues;
  absl::StatusOr<uint32_t> count = ParseCount(*given);
  if (count.ok()) return count;
  return absl::InvalidArgumentError(absl::StrCat("--requeues: ", count.status().message()));
}

}  // namespace cadre::launcher
