// cadre status: what runs, where, since when.
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "launcher/attach/control_client.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/job_source.h"
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

int ShowJob(const Settings& settings, const std::string& name, bool json) {
  absl::StatusOr<JobSource> source = JobSource::Of(settings, name);
  if (!source.ok()) return Fail(ControlExit(source.status()), source.status().message());
  const absl::StatusOr<v1::JobStatus> job = source->Get();
  if (!job.ok()) return Fail(ControlExit(job.status()), job.status().message());
  if (json) return Print(Json({*job}));
  if (!source->run().has_value()) return Print(Text({*job}, {}, true));
  return Print(RunsTable(
      settings.Get("run").has_value() ? std::vector<PastRun>{*source->run()} : source->Runs(),
      absl::LocalTimeZone()));
}

// What a server knows, or where none is named and none answers, what this machine does.
int ShowAll(const Settings& settings, bool json) {
  std::vector<v1::JobStatus> jobs;
  v1::ListNodesReply nodes;
  absl::Status asked = absl::UnavailableError("");
  if (!settings.Get("log-dir").has_value()) {
    const auto client = ControlClient::Connect(settings);
    asked = client.status();
    if (client.ok()) {
      auto all = (*client)->List();
      asked = all.status();
      if (all.ok()) {
        auto cluster = (*client)->Nodes();
        if (!cluster.ok()) return Fail(ControlExit(cluster.status()), cluster.status().message());
        jobs = *std::move(all);
        nodes = *std::move(cluster);
      }
    }
  }
  if (settings.Get("server").has_value() && !asked.ok()) {
    return Fail(ControlExit(asked), asked.message());
  }
  JobsHere here;
  if (!settings.Get("server").has_value()) here = FindJobsHere(settings);
  // A server's own jobs have their files elsewhere.
  if (asked.ok()) here.runs.clear();
  for (v1::JobStatus& live : here.live) jobs.push_back(std::move(live));
  if (!asked.ok() && jobs.empty() && here.runs.empty()) {
    if (!asked.message().empty()) return Fail(ControlExit(asked), asked.message());
    return Fail(1, absl::StrCat("no run has left its files in ", settings.GetOr("log-dir", "")));
  }
  if (json) {
    for (const PastRun& run : here.runs) {
      const absl::StatusOr<v1::JobStatus> status = StatusOf(run);
      if (status.ok()) jobs.push_back(*status);
    }
    return Print(Json(jobs));
  }
  std::string text = asked.ok() || !jobs.empty() ? Text(jobs, nodes, false) : "";
  if (!here.runs.empty()) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", RunsTable(here.runs, absl::LocalTimeZone()));
  }
  return Print(text);
}

int Run(const Parsed& parsed) {
  const absl::StatusOr<Settings> read = ClientSettings(parsed, Flags());
  if (!read.ok()) return Fail(kExitUsage, read.status().message());
  const Settings& settings = *read;
  const absl::StatusOr<bool> json = AsksForJson(settings.GetOr("output", "plain"));
  if (!json.ok()) return Fail(kExitUsage, json.status().message());
  const auto watch = settings.Switch("watch");
  if (!watch.ok()) return Fail(kExitUsage, watch.status().message());
  const bool one_job = !parsed.rest.empty();
  if (*watch) {
    const auto client = ControlClient::Connect(settings);
    if (!client.ok()) return Fail(ControlExit(client.status()), client.status().message());
    StatusWatch what;
    if (one_job) what.job = parsed.rest[0];
    what.json = *json;
    what.text = [one_job](const auto& jobs, const auto& nodes) {
      return Text(jobs, nodes, one_job);
    };
    return WatchStatus(**client, what);
  }
  return one_job ? ShowJob(settings, parsed.rest[0], *json) : ShowAll(settings, *json);
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
