#include "launcher/slurm/slurm_commands.h"

#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/slurm/program_output.h"

namespace cadre::launcher {
namespace {

// Slurm's commands give up on their own after some ten seconds.
constexpr absl::Duration kTimeout = absl::Minutes(1);

std::pair<std::string, std::string> NumberAndCluster(const SlurmJobId& id) {
  return absl::StrSplit(id, absl::MaxSplits(';', 1));
}

std::pair<std::string, std::string> JobAndTask(const std::string& number) {
  return absl::StrSplit(number, absl::MaxSplits('_', 1));
}

// sbatch, without what it is not to pass on.
std::vector<std::string> SbatchInTheOpen() {
  std::vector<std::string> argv = {"env"};
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string name = std::string(*entry, std::find(*entry, *entry + strlen(*entry), '='));
    if (IsOfAnotherJob(name)) argv.insert(argv.end(), {"-u", name});
  }
  argv.push_back("sbatch");
  return argv;
}

}  // namespace

bool IsOfAnotherJob(absl::string_view variable) {
  // What a person or the site says of Slurm itself.
  static constexpr absl::string_view kOfTheSite[] = {
      "SLURM_CLUSTERS", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_TIME_FORMAT"};
  if (std::find(std::begin(kOfTheSite), std::end(kOfTheSite), variable) != std::end(kOfTheSite)) {
    return false;
  }
  for (const char* const prefix : {"SLURM_", "SLURMD_", "SRUN_", "OMPI_", "PMIX_", "PMI_"}) {
    if (absl::StartsWith(variable, prefix)) return true;
  }
  return false;
}

absl::Status CheckSlurmJobId(const SlurmJobId& id) {
  const auto [number, cluster] = NumberAndCluster(id);
  const auto [job, task] = JobAndTask(number);
  uint32_t value = 0;
  const bool numbers =
      absl::SimpleAtoi(job, &value) && (number == job || absl::SimpleAtoi(task, &value));
  if (numbers && !absl::StartsWith(cluster, "-")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected the number of a Slurm job, got '", id.substr(0, 64), "'"));
}

absl::StatusOr<SlurmJobId> Sbatch(const std::string& script) {
  std::vector<std::string> argv = SbatchInTheOpen();
  argv.insert(argv.end(), {"--parsable", script});
  const absl::StatusOr<ProgramOutput> said = RunProgram(argv, kTimeout);
  // As env says it.
  if (absl::IsNotFound(said.status()) || (said.ok() && said->status == 127)) {
    return absl::UnavailableError(
        "there is no sbatch on PATH: --slurm needs Slurm's commands on this machine");
  }
  if (!said.ok()) return absl::UnavailableError(said.status().message());
  SlurmJobId id(absl::StripAsciiWhitespace(said->standard_output));
  if (said->status == 0 && CheckSlurmJobId(id).ok()) return id;
  return absl::UnavailableError(absl::StrCat("sbatch refuses the job: ", ErrorLine(*said)));
}

absl::StatusOr<SlurmJob> ShowJob(const SlurmJobId& id) {
  const auto [number, cluster] = NumberAndCluster(id);
  std::vector<std::string> argv = {"env", "SLURM_TIME_FORMAT=%s", "scontrol"};
  if (!cluster.empty()) argv.insert(argv.end(), {"-M", cluster});
  argv.insert(argv.end(), {"show", "job", number});
  const absl::StatusOr<ProgramOutput> said = RunProgram(argv, kTimeout);
  if (!said.ok()) return absl::UnavailableError(said.status().message());
  if (said->status == 0) return ParseSlurmJob(said->standard_output);
  const std::string error = absl::StrCat("scontrol show job ", number, ": ", ErrorLine(*said));
  if (absl::StrContains(error, "Invalid job id")) return absl::NotFoundError(error);
  return absl::UnavailableError(error);
}

std::string ScancelLine(const SlurmJobId& id) {
  const auto [number, cluster] = NumberAndCluster(id);
  return absl::StrCat("scancel ", cluster.empty() ? "" : absl::StrCat("-M ", cluster, " "), number);
}

std::string FollowLine(const SlurmJobId& id) {
  const bool plain = id.find(';') == id.npos;
  return absl::StrCat("cadre slurm follow ", plain ? id : absl::StrCat("'", id, "'"));
}

}  // namespace cadre::launcher
