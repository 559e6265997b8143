#include "launcher/slurm/batch_script.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "base/duration.h"
#include "base/status_macros.h"
#include "launcher/spec/scalars.h"

namespace cadre::launcher {
namespace {

// Between the end of the grace and the end of the allocation.
constexpr absl::Duration kWarningMargin = absl::Seconds(30);
// Slurm may send the warning so much sooner than it was asked to.
constexpr absl::Duration kWarningIsEarly = absl::Minutes(1);
// Of sbatch's --signal, an unsigned 16 bit number of seconds.
constexpr absl::Duration kWarningMax = absl::Seconds(65535);

// For a shell.
std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

bool AsksForGpus(const v1::JobSpec& spec) {
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
  if (counted && each.gpus_per_worker() > 0 && !AsksForGpus(spec)) {
    options.push_back(absl::StrCat("--gpus-per-node=", workers * each.gpus_per_worker()));
  }
  if (spec.workers_per_node().kind() == v1::WorkersPerNode::GPU && !AsksForGpus(spec)) {
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

bool SaysTime(const v1::JobSpec& spec) {
  return std::any_of(spec.slurm().extra().begin(), spec.slurm().extra().end(),
                     [](const std::string& option) {
                       return absl::StartsWith(option, "--time=") ||
                              absl::StartsWith(option, "--time ") || absl::StartsWith(option, "-t");
                     });
}

// The time limit of a job that has one of its own, which is to be over before Slurm warns of the
// end. In minutes, as Slurm counts. Empty: the partition's.
std::string TimeOption(const v1::JobSpec& spec, absl::Duration warning) {
  const absl::Duration total = FromProto(spec.timeouts().total());
  if (total <= absl::ZeroDuration() || total == absl::InfiniteDuration() || SaysTime(spec)) {
    return "";
  }
  const absl::Duration limit = total + warning + kWarningIsEarly;
  return absl::StrCat("--time=", absl::ToInt64Minutes(absl::Ceil(limit, absl::Minutes(1))));
}

absl::StatusOr<std::vector<std::string>> Options(const v1::JobSpec& spec) {
  // sbatch takes all that it can get of MIN-MAX; the spares come on top.
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
  // With a number of tasks Slurm would take only as many nodes as those need: MIN.
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
# What sbatch passed on of another job, where it was called within one: srun would take that for this
# job's. So would the launchers of what another launcher told its processes.
unset "${!SLURM_STEP_@}" "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_PER_@}" "${!SLURM_MEM_BIND@}" \
  "${!OMPI_@}" "${!PMIX_@}" "${!PMI_@}" SLURM_DISTRIBUTION SLURM_EXACT SLURM_EXCLUSIVE \
  SLURM_HINT SLURM_LOCALID SLURM_NODEID SLURM_PROCID SLURM_THREADS_PER_CORE

# Each job, and each task of an array, has a state of its own. A job that was put back into the queue
# goes on counting its generations with it.
state=$DIRECTORY/slurm-$SLURM_JOB_ID${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
mkdir -p "$state"
rm -f "$state/verdict.json"

# One launcher per node. It is Cadre that decides what the end of one of them means, not srun: where
# there is a verdict, it counts and not who else ended how.
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

}  // namespace cadre::launcher
