#include "launcher/slurm/slurm_commands.h"

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

}  // namespace

absl::Status CheckSlurmJobId(const SlurmJobId& id) {
  const auto [number, cluster] = NumberAndCluster(id);
  uint32_t value = 0;
  if (absl::SimpleAtoi(number, &value) && !absl::StartsWith(cluster, "-")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected the number of a Slurm job, got '", id.substr(0, 64), "'"));
}

absl::StatusOr<SlurmJobId> Sbatch(const std::string& script) {
  const absl::StatusOr<ProgramOutput> said = RunProgram({"sbatch", "--parsable", script}, kTimeout);
  if (absl::IsNotFound(said.status())) {
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
