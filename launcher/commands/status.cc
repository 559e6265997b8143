// cadre status: what runs, where, since when.
#include "absl/status/status.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/status_watch.h"
#include "launcher/display/cluster_text.h"
#include "launcher/display/jobs_table.h"
#include "launcher/display/json_text.h"
#include "launcher/display/status_block.h"
#include "launcher/display/timeline_text.h"
#include "launcher/display/warm_text.h"
#include "proto/control.pb.h"

namespace cadre::launcher {
namespace {

std::vector<Flag> Flags() {
  std::vector<Flag> flags = JobSourceFlags();
  flags.push_back({"watch", "",
                   "Go on showing it until the job ends; exits with the job's exit status. In a "
                   "pipe a line for each change."});
  flags.push_back(
      {"all", "",
       absl::StrCat("All runs that have left their files here [the newest ", kRunsShown, "].")});
  flags.push_back(OutputFlag());
  return flags;
}

std::string Json(const std::vector<v1::JobStatus>& jobs) {
  v1::ListJobsReply reply;
  for (const v1::JobStatus& job : jobs) *reply.add_jobs() = job;
  return JsonText(reply) + "\n";
}

// `nodes`: of the cluster, where all jobs are shown.
std::string Text(const std::vector<v1::JobStatus>& jobs, const v1::ListNodesReply& nodes,
                 bool details) {
  std::string text = JobsTable(jobs);
  if (!details) {
    const std::string cluster = ClusterSummary(nodes, jobs);
    return cluster.empty() ? text : absl::StrCat(text, "\n", cluster);
  }
  absl::StrAppend(&text, "\n", NodesTable(jobs[0]), AvoidedText(jobs[0]));
  const std::string warm = WarmStartsTable(jobs[0]);
  if (!warm.empty()) absl::StrAppend(&text, "\n", warm);
  if (jobs[0].timeline().recoveries_size() > 0) {
    absl::StrAppend(&text, "\n", RecoveriesText(jobs[0].timeline()));
  }
  return text;
}

// Runs that have left their files, as far as they are to be shown; what is left out is said.
int PrintRuns(const Settings& settings, std::string text, const std::vector<PastRun>& runs,
              std::vector<std::string> left_out) {
  constexpr size_t kLeftOutShown = 3;
  const absl::StatusOr<bool> all = settings.Switch("all");
  if (!all.ok()) return Fail(kExitUsage, all.status().message());
  const std::string table =
      RunsTable(runs, *all ? runs.size() : kRunsShown, absl::LocalTimeZone(), &left_out);
  absl::StrAppend(&text, text.empty() || table.empty() ? "" : "\n", table);
  for (size_t i = 0; i < std::min(left_out.size(), kLeftOutShown); ++i) Fail(0, left_out[i]);
  if (left_out.size() > kLeftOutShown) {
    Fail(0, absl::StrCat(left_out.size() - kLeftOutShown, " more left out"));
  }
  return Print(text);
}

int ShowJob(const Parsed& parsed, const Settings& settings, bool json) {
  absl::StatusOr<JobSource> source = OpenJob(parsed, settings);
  if (!source.ok()) return Fail(ControlExit(source.status()), source.status().message());
  const absl::StatusOr<v1::JobStatus> job = source->Get();
  // Others of its runs may be whole.
  const bool runs = source->run().has_value() && !settings.Get("run").has_value() && !json;
  if (!job.ok() && !runs) return Fail(ControlExit(job.status()), job.status().message());
  if (json) return Print(Json({*job}));
  if (!source->run().has_value()) return Print(Text({*job}, {}, true));
  std::vector<PastRun> shown = {*source->run()};
  if (runs) shown = source->Runs();
  SortNewestFirst(&shown);
  return PrintRuns(settings, "", shown, {});
}

// The server's jobs and its cluster.
absl::StatusOr<SeenJobs> AskServer(ControlClient& client) {
  SeenJobs seen;
  ASSIGN_OR_RETURN(seen.jobs, client.List());
  ASSIGN_OR_RETURN(seen.nodes, client.Nodes());
  return seen;
}

// What a server knows, or where none is named and none answers, what this machine does.
int ShowAll(const Settings& settings, bool json) {
  SeenJobs seen;
  absl::Status asked = absl::UnavailableError("");
  const bool named = settings.Get("server").has_value();
  if (!AsksForFiles(settings)) {
    const auto client = ControlClient::Connect(settings);
    asked = client.status();
    if (client.ok()) {
      absl::StatusOr<SeenJobs> all = AskServer(**client);
      asked = all.status();
      if (all.ok()) seen = *std::move(all);
    }
    if (named && !asked.ok()) return Fail(ControlExit(asked), asked.message());
  }
  JobsHere here;
  if (!named || AsksForFiles(settings)) here = FindJobsHere(settings);
  // A server's own jobs have their files elsewhere.
  if (asked.ok()) here.runs.clear();
  // Before those that have ended.
  seen.jobs.insert(seen.jobs.begin(), here.live.begin(), here.live.end());
  if (!asked.ok() && seen.jobs.empty() && here.runs.empty()) {
    for (const std::string& line : here.left_out) Fail(0, line);
    if (!asked.message().empty()) return Fail(ControlExit(asked), asked.message());
    return Fail(1, absl::StrCat("no run has left its files in ", settings.GetOr("log-dir", "")));
  }
  if (json) {
    for (const PastRun& run : here.runs) {
      const absl::StatusOr<v1::JobStatus> status = StatusOf(run);
      if (status.ok()) seen.jobs.push_back(*status);
    }
    return Print(Json(seen.jobs));
  }
  const bool live = asked.ok() || !seen.jobs.empty();
  return PrintRuns(settings, live ? Text(seen.jobs, seen.nodes, false) : "", here.runs,
                   std::move(here.left_out));
}

// The job's, or an error where it will never end: of a run whose launcher was killed, or is on
// another machine.
absl::StatusOr<SeenJobs> LookAtJob(JobSource& source) {
  ASSIGN_OR_RETURN(v1::JobStatus job, source.Get());
  if (source.run().has_value() && !job.has_verdict()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the run of job ", job.name(), " in ", source.log_dir(), " that began ",
                     BeganText(*source.run(), absl::LocalTimeZone()),
                     " has left no verdict: it goes on elsewhere, or its launcher was killed"));
  }
  SeenJobs seen;
  seen.jobs.push_back(std::move(job));
  return seen;
}

int Watch(const Parsed& parsed, const Settings& settings, bool json) {
  StatusWatch what;
  what.json = json;
  what.one_job = !parsed.rest.empty();
  what.text = [one_job = what.one_job](const SeenJobs& seen) {
    return Text(seen.jobs, seen.nodes, one_job);
  };
  if (what.one_job) {
    absl::StatusOr<JobSource> source = OpenJob(parsed, settings);
    if (!source.ok()) return Fail(ControlExit(source.status()), source.status().message());
    what.look = [&source] { return LookAtJob(*source); };
    return WatchStatus(what);
  }
  if (AsksForFiles(settings)) {
    return Fail(kExitUsage, "--watch without a JOB shows what runs; leave --log-dir and --run out");
  }
  const auto client = ControlClient::Connect(settings);
  const bool named = settings.Get("server").has_value();
  if (!client.ok() && named) return Fail(ControlExit(client.status()), client.status().message());
  // The usual server need not be there.
  if (named || (client.ok() && (*client)->List().ok())) {
    what.look = [&client] { return AskServer(**client); };
  } else {
    what.look = [&settings]() -> absl::StatusOr<SeenJobs> {
      return SeenJobs{LiveJobsHere(settings), {}};
    };
  }
  return WatchStatus(what);
}

int Run(const Parsed& parsed) {
  const absl::StatusOr<Settings> read = ClientSettings(parsed, Flags());
  if (!read.ok()) return Fail(kExitUsage, read.status().message());
  const Settings& settings = *read;
  const absl::StatusOr<bool> json = AsksForJson(settings.GetOr("output", "plain"));
  if (!json.ok()) return Fail(kExitUsage, json.status().message());
  const auto watch = settings.Switch("watch");
  if (!watch.ok()) return Fail(kExitUsage, watch.status().message());
  if (*watch) return Watch(parsed, settings, *json);
  return parsed.rest.empty() ? ShowAll(settings, *json) : ShowJob(parsed, settings, *json);
}

}  // namespace

Command StatusCommand() {
  Command command;
  command.name = "status";
  command.summary = "Show jobs and runs, or one job and its nodes.";
  command.positionals = "[JOB]";
  command.max_positionals = 1;
  command.flags = Flags();
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
