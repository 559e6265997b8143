// Changes of jobs that were submitted: cadre hold, release, requeue, update and signal.
#include "launcher/commands/change_jobs.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/slurm/job_change.h"
#include "launcher/slurm/job_record.h"
#include "launcher/slurm/option_values.h"
#include "launcher/spec/scalars.h"
#include "proto/control.pb.h"

namespace cadre::launcher {
namespace {

// Whether the word may name an array or its elements: names of jobs are not like this.
bool IsId(const std::string& word) {
  return !word.empty() && absl::ascii_isdigit(word[0]) && ParseWantedIds(word).ok();
}

// The jobs that the words name. Without a server's answer they stay, and Open() says why.
std::vector<std::string> FindJobs(const std::vector<std::string>& words, const Settings& settings) {
  if (std::none_of(words.begin(), words.end(), IsId)) return words;
  const absl::StatusOr<std::unique_ptr<ControlClient>> client = ControlClient::Connect(settings);
  if (!client.ok()) return words;
  const absl::StatusOr<std::vector<v1::JobStatus>> jobs = (*client)->List();
  return jobs.ok() ? SingleJobs(words, *jobs) : words;
}

}  // namespace

std::vector<std::string> SingleJobs(const std::vector<std::string>& words,
                                    const std::vector<v1::JobStatus>& jobs) {
  std::vector<std::string> single;
  const std::vector<JobRecord> records = RecordsOf(jobs, {});
  for (const std::string& word : words) {
    const absl::StatusOr<std::vector<WantedId>> ids = ParseWantedIds(word);
    std::vector<std::string> elements;
    for (const JobRecord& record : records) {
      if (!ids.ok() || record.array == 0 || record.step.has_value() || record.HasEnded()) continue;
      const bool meant = std::any_of(ids->begin(), ids->end(), [&](const WantedId& id) {
        return id.step.empty() && id.MeansJobOf(record);
      });
      if (meant) elements.push_back(absl::StrCat(record.server_id));
    }
    if (elements.empty()) elements.push_back(word);
    for (std::string& element : elements) {
      if (std::find(single.begin(), single.end(), element) != single.end()) continue;
      single.push_back(std::move(element));
    }
  }
  return single;
}

int ForEachJob(const std::vector<std::string>& words, const Settings& settings,
               const std::function<absl::StatusOr<std::string>(JobSource&)>& action) {
  int status = 0;
  for (const std::string& word : FindJobs(words, settings)) {
    absl::StatusOr<JobSource> source = JobSource::Open(settings, word);
    const absl::StatusOr<std::string> line =
        source.ok() ? action(*source) : absl::StatusOr<std::string>(source.status());
    if (!line.ok()) {
      status = Fail(ControlExit(line.status()), line.status().message());
    } else if (const int printed = Print(absl::StrCat(EscapeControl(*line), "\n")); printed != 0) {
      return printed;
    }
  }
  return status;
}

// cadre hold and cadre release.

namespace {

int SetHeld(const Parsed& parsed, bool held) {
  const absl::StatusOr<Settings> settings = ClientSettings(parsed, ControlFlags());
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  v1::JobUpdate update;
  update.set_held(held);
  return ForEachJob(parsed.rest, *settings, [&](JobSource& source) -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(const v1::JobStatus job, source.Update(update));
    return absl::StrCat(held ? "held " : "released ", job.name());
  });
}

int RunHold(const Parsed& parsed) { return SetHeld(parsed, true); }
int RunRelease(const Parsed& parsed) { return SetHeld(parsed, false); }

// A command about jobs that were submitted.
Command JobsCommand(const char* name, const char* summary, std::vector<Flag> flags,
                    int (*run)(const Parsed&)) {
  Command command;
  command.name = name;
  command.summary = summary;
  command.positionals = "JOB...";
  command.min_positionals = 1;
  command.max_positionals = kMostJobs;
  command.flags = std::move(flags);
  command.run = run;
  command.description = kJobsHelp;
  return command;
}

}  // namespace

Command HoldCommand() {
  return JobsCommand("hold", "Keep jobs in the queue until they are released.", ControlFlags(),
                     RunHold);
}

Command ReleaseCommand() {
  return JobsCommand("release", "Let jobs that are held begin.", ControlFlags(), RunRelease);
}

// cadre requeue.

namespace {

std::vector<Flag> RequeueFlags() {
  std::vector<Flag> flags = ControlFlags();
  flags.push_back({"reason", "TEXT", "The reason that the log gives [a user's request]."});
  flags.push_back({"hold", "", "Hold them in the queue until they are released."});
  return flags;
}

int RunRequeue(const Parsed& parsed) {
  const absl::StatusOr<Settings> settings = ClientSettings(parsed, RequeueFlags());
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  const std::string reason = parsed.GetOr("reason", "a user's request");
  const bool hold = parsed.Has("hold");
  return ForEachJob(parsed.rest, *settings, [&](JobSource& source) -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(const v1::JobStatus job, source.Requeue(reason, hold));
    return absl::StrCat("requeueing ", job.name());
  });
}

}  // namespace

Command RequeueCommand() {
  return JobsCommand("requeue", "Stop jobs with grace, and put them back into the queue.",
                     RequeueFlags(), RunRequeue);
}

// cadre update.

namespace {

std::vector<Flag> UpdateFlags() {
  std::vector<Flag> flags = ControlFlags();
  flags.push_back({"limit", "TIME", "Limit for the whole job, such as 2h; none: there is none."});
  flags.push_back({"priority", "N", "Higher is placed first."});
  flags.push_back({"begin", "WHEN", "Not before: 2026-12-01T08:00, 16:30, now+1hour."});
  flags.push_back({"nodes", "HOSTS", "Nodes that are among those of the job; empty: any."});
  flags.push_back({"exclude", "HOSTS", "Nodes that the job is not to have; empty: none."});
  Flag label = {"label", "LABEL",
                "What each of its nodes has, as rack=7 or 'a|b'; empty: nothing. Repeatable."};
  label.repeated = true;
  flags.push_back(std::move(label));
  return flags;
}

absl::Status SetCadreLimit(const std::string& text, JobChange* change) {
  if (text == "none") {
    change->limit = absl::InfiniteDuration();
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const absl::Duration limit, ParseDuration(text));
  change->limit = limit == absl::ZeroDuration() ? absl::InfiniteDuration() : limit;
  return absl::OkStatus();
}

absl::Status AddLabels(const std::vector<std::string>& labels, JobChange* change) {
  change->labels.emplace();
  for (const std::string& label : labels) {
    if (label.empty()) continue;
    ASSIGN_OR_RETURN(std::string checked, ParseNodeLabel(label));
    change->labels->push_back(std::move(checked));
  }
  return absl::OkStatus();
}

// The flags count only on the command line: CADRE_NODES and others are for other commands.
absl::StatusOr<JobChange> ReadChange(const Parsed& parsed) {
  JobChange change;
  const auto set = [&](const char* flag, const auto& read) -> absl::Status {
    const std::optional<std::string> given = parsed.Get(flag);
    if (!given.has_value()) return absl::OkStatus();
    const absl::Status status = read(*given);
    if (status.ok()) return status;
    return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", status.message()));
  };
  RETURN_IF_ERROR(set("limit", [&](const auto& text) { return SetCadreLimit(text, &change); }));
  RETURN_IF_ERROR(set("priority", [&](const auto& text) { return SetPriority(text, &change); }));
  RETURN_IF_ERROR(set("begin", [&](const auto& text) {
    return SetBegin(text, absl::Now(), absl::LocalTimeZone(), &change);
  }));
  RETURN_IF_ERROR(set("nodes", [&](const auto& text) { return SetNodes(text, &change); }));
  RETURN_IF_ERROR(set("exclude", [&](const auto& text) { return SetExclude(text, &change); }));
  RETURN_IF_ERROR(
      set("label", [&](const auto&) { return AddLabels(parsed.flags.at("label"), &change); }));
  if (!change.IsEmpty()) return change;
  return absl::InvalidArgumentError(
      "no change is named: expected --limit, --priority, --begin, --nodes, --exclude or --label");
}

int RunUpdate(const Parsed& parsed) {
  const absl::StatusOr<Settings> settings = ClientSettings(parsed, ControlFlags());
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  const absl::StatusOr<JobChange> change = ReadChange(parsed);
  if (!change.ok()) return Fail(kExitUsage, change.status().message());
  return ForEachJob(parsed.rest, *settings, [&](JobSource& source) -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(const v1::JobStatus before, source.Get());
    ASSIGN_OR_RETURN(const v1::JobUpdate update, UpdateOf(*change, before));
    ASSIGN_OR_RETURN(const v1::JobStatus job, source.Update(update));
    return absl::StrCat("updated ", job.name());
  });
}

}  // namespace

Command UpdateCommand() {
  return JobsCommand("update", "Change the limit, priority, begin or nodes of jobs.", UpdateFlags(),
                     RunUpdate);
}

// cadre signal.

namespace {

std::vector<Flag> SignalFlags() {
  std::vector<Flag> flags = ControlFlags();
  flags.push_back({"script", "", "To the script of a batch job, and not to its steps."});
  flags.push_back({"all", "", "To the script and to its steps."});
  return flags;
}

int RunSignal(const Parsed& parsed) {
  const absl::StatusOr<Settings> settings = ClientSettings(parsed, SignalFlags());
  if (!settings.ok()) return Fail(kExitUsage, settings.status().message());
  const absl::StatusOr<int> signal = ParseSlurmSignal(parsed.rest[1]);
  if (!signal.ok()) return Fail(kExitUsage, signal.status().message());
  if (parsed.Has("script") && parsed.Has("all")) {
    return Fail(kExitUsage, "--script and --all contradict each other; give one of them");
  }
  const v1::SignalJobRequest::Target target = parsed.Has("script") ? v1::SignalJobRequest::SCRIPT
                                              : parsed.Has("all")  ? v1::SignalJobRequest::ALL
                                                                   : v1::SignalJobRequest::STEPS;
  return ForEachJob({parsed.rest[0]}, *settings,
                    [&](JobSource& source) -> absl::StatusOr<std::string> {
                      ASSIGN_OR_RETURN(const v1::JobStatus job, source.Signal(*signal, target));
                      return absl::StrCat("sent ", SignalText(*signal), " to ", job.name());
                    });
}

}  // namespace

Command SignalCommand() {
  Command command =
      JobsCommand("signal", "Send a signal to the workers of a job.", SignalFlags(), RunSignal);
  command.positionals = "JOB SIGNAL";
  command.min_positionals = command.max_positionals = 2;
  return command;
}

}  // namespace cadre::launcher
