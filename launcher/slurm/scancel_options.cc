#include "launcher/slurm/scancel_options.h"

#include <signal.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/host_ranges.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/slurm/option_parser.h"
#include "launcher/slurm/option_values.h"

namespace cadre::launcher {
namespace {

absl::Status Error(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("error: ", text));
}

const std::vector<Option>& Table() {
  constexpr OptionValue kNo = OptionValue::kNone, kYes = OptionValue::kRequired;
  static const auto* const table = new std::vector<Option>{
      {"account", 'A', kYes},  {"batch", 'b', kNo},       {"cron", 'c', kNo},
      {"ctld", '\0', kNo},     {"full", 'f', kNo},        {"help", '\0', kNo},
      {"hurry", 'H', kNo},     {"interactive", 'i', kNo}, {"cluster", 'M', kYes},
      {"clusters", 'M', kYes}, {"jobname", 'n', kYes},    {"me", '\0', kNo},
      {"name", 'n', kYes},     {"nodelist", 'w', kYes},   {"partition", 'p', kYes},
      {"qos", 'q', kYes},      {"quiet", 'Q', kNo},       {"reservation", 'R', kYes},
      {"sibling", '\0', kYes}, {"signal", 's', kYes},     {"state", 't', kYes},
      {"usage", '\0', kNo},    {"user", 'u', kYes},       {"verbose", 'v', kNo},
      {"version", 'V', kNo},   {"wckey", '\0', kYes},
  };
  return *table;
}

absl::Status TakeOption(const GivenOption& given, ScancelOptions* options) {
  const std::string& name = given.name;
  // Without their effect other jobs would be cancelled.
  for (const char* const unknown :
       {"account", "qos", "reservation", "wckey", "cluster", "clusters", "sibling"}) {
    if (name == unknown) {
      return Error(absl::StrCat(given.place,
                                ": jobs of a cluster of Cadre have no such property, "
                                "so that none can be chosen by it"));
    }
  }
  JobSelection& selection = options->selection;
  if (name == "help" || name == "usage") options->answer = ScancelOptions::Answer::kHelp;
  if (name == "version") options->answer = ScancelOptions::Answer::kVersion;
  if (name == "interactive") options->interactive = true;
  if (name == "quiet") options->quiet = true;
  if (name == "verbose") options->verbose = true;
  if (name == "me") options->me = true;
  if (name == "name" || name == "jobname") selection.names.insert(given.value);
  if (name == "partition") selection.partitions.insert(given.value);
  if (name == "user") options->users.push_back(given.value);
  if (name == "batch") options->to_script = true;
  if (name == "full") options->to_all = true;
  if (name == "signal") {
    const absl::StatusOr<int> signal = ParseSlurmSignal(given.value);
    if (!signal.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("Unknown job signal: ", OneLine(given.value, 64)));
    }
    options->signal = *signal;
  }
  if (name == "state") {
    const absl::StatusOr<std::string> state = ParseState(given.value);
    if (!state.ok()) return Error(state.status().message());
    if (*state != "PENDING" && *state != "RUNNING" && *state != "SUSPENDED") {
      return Error(absl::StrCat("Invalid job state specified: ", given.value,
                                "; expected PENDING, RUNNING or SUSPENDED"));
    }
    selection.states.insert(*state);
  }
  if (name == "nodelist") {
    const auto nodes = ExpandHosts(given.value);
    if (!nodes.ok()) return Error(nodes.status().message());
    selection.nodes.insert(nodes->begin(), nodes->end());
  }
  return absl::OkStatus();
}

}  // namespace

bool ScancelOptions::Cancels() const {
  // For a script alone, or with its steps, TERM and INT are signals as others are.
  if (to_script || to_all) return signal == 0 || signal == SIGKILL;
  return signal == 0 || signal == SIGTERM || signal == SIGINT || signal == SIGKILL;
}

absl::StatusOr<ScancelOptions> ReadScancel(const std::vector<std::string>& arguments) {
  ASSIGN_OR_RETURN(const ParsedOptions parsed,
                   ParseOptions(arguments, Table(), AfterFirstWord::kOptionsToo));
  ScancelOptions options;
  for (const GivenOption& given : parsed.options) RETURN_IF_ERROR(TakeOption(given, &options));
  for (const std::string& word : parsed.rest) {
    const absl::StatusOr<std::vector<WantedId>> wanted = ParseWantedIds(word);
    if (!wanted.ok()) return Error(absl::StrCat("Invalid job id ", OneLine(word, 64)));
    options.ids.insert(options.ids.end(), wanted->begin(), wanted->end());
  }
  if (options.answer == ScancelOptions::Answer::kNone && options.ids.empty() &&
      !options.HasFilters()) {
    return Error("No job identification provided");
  }
  return options;
}

ToCancel ChooseToCancel(const std::vector<JobRecord>& records, const ScancelOptions& options) {
  ToCancel chosen;
  const auto take = [&chosen](const JobRecord& record) {
    const bool taken =
        std::any_of(chosen.records.begin(), chosen.records.end(),
                    [&record](const JobRecord& one) { return one.server_id == record.server_id; });
    if (!taken) chosen.records.push_back(record);
  };
  for (const WantedId& wanted : options.ids) {
    const bool of_job = wanted.step.empty() || wanted.step == "batch";
    bool known = false;
    for (const JobRecord& record : records) {
      if (!wanted.MeansJobOf(record) || record.step.has_value() == of_job) continue;
      if (!of_job && absl::StrCat(*record.step) != wanted.step) continue;
      known = true;
      if (!record.HasEnded() && options.selection.Selects(record)) take(record);
    }
    if (known) continue;
    chosen.errors.push_back(absl::StrCat("Kill job error on job ",
                                         wanted.step.empty() ? "" : "step ", "id ", wanted.Text(),
                                         ": Invalid job id specified"));
  }
  if (options.ids.empty()) {
    for (const JobRecord& record : records) {
      if (record.step.has_value() || record.HasEnded()) continue;
      if (options.selection.Selects(record)) take(record);
    }
  }
  std::stable_partition(chosen.records.begin(), chosen.records.end(),
                        [](const JobRecord& record) { return record.IsPending(); });
  return chosen;
}

std::string ScancelHelp() {
  return "Usage: scancel [OPTIONS] [JOB_ID[_INDEX][.STEP] ...]\n"
         "Cancels jobs and steps of a cluster of Cadre: their tasks get TERM, and KILL after the\n"
         "grace.\n"
         "\n"
         "  -n, --name=NAME       jobs of this name; with ids: of these jobs\n"
         "  -u, --user=NAME       jobs of this user; --me: your own\n"
         "  -t, --state=STATE     jobs in this state: PENDING or RUNNING\n"
         "  -w, --nodelist=HOSTS  jobs on these nodes\n"
         "  -s, --signal=NAME     send this signal to their tasks, and do not cancel; TERM and\n"
         "                        INT cancel, and KILL cancels at once, without grace\n"
         "  -b, --batch           send it to the batch script alone; -f, --full: and to its steps\n"
         "  -i, --interactive     ask before each job is cancelled\n"
         "  -Q, --quiet           without errors of ids that are not known; -v: say more\n";
}

}  // namespace cadre::launcher
