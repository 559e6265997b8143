#include "agent/adoption.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/local/local_directory.h"
#include "agent/run_files.h"
#include "base/status_macros.h"
#include "base/token.h"

namespace cadre::agent {
namespace {

std::string RunPath(const std::string& directory) { return directory + "/run"; }

std::optional<v1::AgentRun> ReadAgentRun(const std::string& directory) {
  std::ifstream in(RunPath(directory), std::ios::binary);
  v1::AgentRun run;
  if (!in.is_open() || !run.ParseFromIstream(&in)) return std::nullopt;
  return run;
}

bool IsSameRun(const v1::AgentRun& a, const v1::AgentRun& b) {
  return a.job() == b.job() && a.node() == b.node() && a.working_dir() == b.working_dir() &&
         a.rendezvous() == b.rendezvous();
}

bool RunsTheSame(const v1::AgentRun& a, const v1::AgentRun& b) {
  return a.slots() == b.slots() &&
         std::equal(a.command().begin(), a.command().end(), b.command().begin(), b.command().end());
}

// Why the workers cannot be adopted; empty if all of them were started.
std::string WhyNot(const Adoption& left) {
  const uint64_t first = left.run.first_group(), wanted = left.run.assign().local_world_size();
  const std::vector<uint64_t>& groups = left.inventory.groups;
  const auto started = static_cast<uint64_t>(std::count_if(
      groups.begin(), groups.end(),
      [first, wanted](uint64_t group) { return group >= first && group - first < wanted; }));
  if (started == wanted) return "";
  return absl::StrCat("it had started only ", started, " of its ", wanted, " workers");
}

absl::StatusOr<Adoption> Take(const std::string& directory, const v1::AgentRun& run) {
  Adoption adoption;
  adoption.directory = directory;
  adoption.run = run;
  ASSIGN_OR_RETURN(const std::string token, ReadTokenFile(LocalDirectory::TokenPath(directory)));
  ASSIGN_OR_RETURN(adoption.supervisor,
                   supervisor::Client::Adopt(LocalDirectory::SupervisorPath(directory), token,
                                             run.frames_version(), &adoption.inventory));
  return adoption;
}

}  // namespace

FoundWorkers FindAdoption(const v1::AgentRun& wanted, std::vector<std::string>* notices,
                          const std::string& parent) {
  FoundWorkers found;
  for (const std::string& directory : LocalDirectory::All(parent)) {
    const std::optional<v1::AgentRun> run = ReadAgentRun(directory);
    if (!run.has_value() || !IsSameRun(*run, wanted)) continue;
    if (!supervisor::SpeaksFrames(run->frames_version())) {
      notices->push_back(absl::StrCat(
          "an earlier launcher of job ", run->job(),
          " left workers that this version of cadre cannot take over; they end by themselves"));
      continue;
    }
    if (!RunsTheSame(*run, wanted)) {
      found.unfit.push_back({directory, *run, "it ran another command"});
      continue;
    }
    absl::StatusOr<Adoption> left = Take(directory, *run);
    if (!left.ok()) {
      // NOT_FOUND: the supervisor is gone, and its workers with it.
      if (!absl::IsNotFound(left.status())) {
        notices->push_back(std::string(left.status().message()));
      }
      continue;
    }
    const std::string why_not = WhyNot(*left);
    if (why_not.empty()) {
      found.adoption = *std::move(left);
      return found;
    }
    left->supervisor->Release();
    found.unfit.push_back({directory, *run, why_not});
  }
  return found;
}

std::string StopUnfit(const UnfitWorkers& unfit) {
  absl::StatusOr<Adoption> taken = Take(unfit.directory, unfit.run);
  if (absl::IsNotFound(taken.status())) return "";
  if (!taken.ok()) return std::string(taken.status().message());
  taken->supervisor.reset();
  return absl::StrCat("stopped the workers that an earlier launcher of job ", unfit.run.job(),
                      " left on this node, because ", unfit.why);
}

absl::StatusOr<supervisor::KeepFrame> OfferForAdoption(const std::string& directory,
                                                       const std::string& token,
                                                       absl::Duration time, v1::AgentRun run) {
  RETURN_IF_ERROR(WriteFile(RunPath(directory), run.SerializeAsString()));
  return supervisor::KeepFrame{static_cast<uint32_t>(absl::ToInt64Milliseconds(time)),
                               LocalDirectory::SupervisorPath(directory), token};
}

}  // namespace cadre::agent
