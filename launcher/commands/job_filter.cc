#include "launcher/commands/job_filter.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "launcher/flags/nearest.h"
#include "rendezvous/state/owner.h"
#include "rpc/job_progress.h"

namespace cadre::launcher {
namespace {

constexpr v1::JobPhase kLive[] = {v1::QUEUED, v1::GATHERING, v1::RUNNING, v1::STOPPING};
constexpr v1::JobPhase kEnded[] = {v1::SUCCEEDED, v1::FAILED, v1::CANCELLED_PHASE};
constexpr char kStates[] =
    "queued (or pending), gathering, running, stopping, succeeded (or completed), failed and "
    "cancelled; 'live' is each of the first four, 'ended' each of the others";

struct StateWord {
  std::string word;
  std::vector<v1::JobPhase> phases;
};

// The names of the phases, Slurm's words for them, and words for several.
std::vector<StateWord> StateWords() {
  std::vector<StateWord> words = {{"pending", {v1::QUEUED}},
                                  {"completed", {v1::SUCCEEDED}},
                                  {"live", {std::begin(kLive), std::end(kLive)}},
                                  {"ended", {std::begin(kEnded), std::end(kEnded)}}};
  for (const v1::JobPhase phase : kLive) words.push_back({rpc::PhaseName(phase), {phase}});
  for (const v1::JobPhase phase : kEnded) words.push_back({rpc::PhaseName(phase), {phase}});
  return words;
}

absl::StatusOr<std::vector<v1::JobPhase>> PhasesOf(const std::string& given) {
  const std::string wanted = absl::AsciiStrToLower(given);
  std::vector<std::string> names;
  for (StateWord& one : StateWords()) {
    if (one.word == wanted) return std::move(one.phases);
    names.push_back(std::move(one.word));
  }
  const std::string meant = Nearest(wanted, names);
  return absl::InvalidArgumentError(
      absl::StrCat("--state: '", given, "' is no state",
                   meant.empty() ? "; the" : absl::StrCat("; did you mean '", meant, "'? The"),
                   " states are ", kStates));
}

// The items of the flag's list; empty: the flag was not given.
absl::StatusOr<std::vector<std::string>> ItemsOf(const Parsed& parsed, const std::string& flag) {
  const std::optional<std::string> value = parsed.Get(flag);
  if (!value.has_value()) return std::vector<std::string>();
  std::vector<std::string> items;
  for (const absl::string_view item : absl::StrSplit(*value, ',', absl::SkipWhitespace())) {
    items.emplace_back(absl::StripAsciiWhitespace(item));
  }
  if (!items.empty()) return items;
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": expected one or more, with commas between them, got ''"));
}

}  // namespace

std::vector<Flag> JobFilterFlags() {
  return {{"me", "", "Only jobs of the user who runs this command."},
          {"user", "NAME[,...]", "Only jobs of these users."},
          {"state", "STATE[,...]", absl::StrCat("Only jobs in these states: ", kStates, ".")},
          {"node", "NAME[,...]", "Only jobs that run on one of these nodes."}};
}

absl::StatusOr<JobFilter> ReadJobFilter(
    const Parsed& parsed, const std::function<absl::StatusOr<std::string>()>& this_user) {
  JobFilter filter;
  ASSIGN_OR_RETURN(const std::vector<std::string> users, ItemsOf(parsed, "user"));
  ASSIGN_OR_RETURN(const std::vector<std::string> states, ItemsOf(parsed, "state"));
  ASSIGN_OR_RETURN(const std::vector<std::string> nodes, ItemsOf(parsed, "node"));
  filter.users.insert(users.begin(), users.end());
  filter.nodes.insert(nodes.begin(), nodes.end());
  for (const std::string& state : states) {
    ASSIGN_OR_RETURN(const std::vector<v1::JobPhase> phases, PhasesOf(state));
    filter.states.insert(phases.begin(), phases.end());
  }
  if (!parsed.Has("me") && users.empty()) return filter;
  const absl::StatusOr<std::string> name = this_user();
  filter.this_user = name.value_or("");
  if (!parsed.Has("me")) return filter;
  if (!name.ok()) {
    return absl::Status(name.status().code(),
                        absl::StrCat("--me: ", name.status().message(), "; name one with --user"));
  }
  filter.users.insert(*name);
  return filter;
}

bool JobFilter::Selects(const v1::JobStatus& job) const {
  return Fits(job, state::OwnerFrom(job.user(), job.started_by()));
}

bool JobFilter::SelectsOwn(const v1::JobStatus& job) const {
  const std::string& owner = state::OwnerFrom(job.user(), job.started_by());
  return Fits(job, owner.empty() ? this_user : owner);
}

bool JobFilter::Fits(const v1::JobStatus& job, const std::string& owner) const {
  if (!users.empty() && users.count(owner) == 0) return false;
  if (!states.empty() && states.count(job.phase()) == 0) return false;
  return nodes.empty() ||
         std::any_of(job.nodes().begin(), job.nodes().end(),
                     [this](const v1::NodeStatus& node) { return nodes.count(node.name()) > 0; });
}

}  // namespace cadre::launcher
