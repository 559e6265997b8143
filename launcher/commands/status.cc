// cadre status: what runs, where, since when.
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
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
  std::vector<Flag> flags = ControlFlags();
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

int Run(const Parsed& parsed) {
  const absl::StatusOr<Settings> read = ClientSettings(parsed, Flags());
  if (!read.ok()) return Fail(kExitUsage, read.status().message());
  const Settings& settings = *read;
  const absl::StatusOr<bool> json = AsksForJson(settings.GetOr("output", "plain"));
  if (!json.ok()) return Fail(kExitUsage, json.status().message());
  const auto client = ControlClient::Connect(settings);
  if (!client.ok()) return Fail(ControlExit(client.status()), client.status().message());
  const auto watch = settings.Switch("watch");
  if (!watch.ok()) return Fail(kExitUsage, watch.status().message());
  const bool one_job = !parsed.rest.empty();
  if (*watch) {
    StatusWatch what;
    if (one_job) what.job = parsed.rest[0];
    what.json = *json;
    what.text = [one_job](const auto& jobs, const auto& nodes) {
      return Text(jobs, nodes, one_job);
    };
    return WatchStatus(**client, what);
  }
  std::vector<v1::JobStatus> jobs;
  v1::ListNodesReply nodes;
  if (!one_job) {
    auto all = (*client)->List();
    if (!all.ok()) return Fail(ControlExit(all.status()), all.status().message());
    jobs = *std::move(all);
    auto cluster = (*client)->Nodes();
    if (!cluster.ok()) return Fail(ControlExit(cluster.status()), cluster.status().message());
    nodes = *std::move(cluster);
  } else {
    auto one = (*client)->Get(parsed.rest[0]);
    if (!one.ok()) return Fail(ControlExit(one.status()), one.status().message());
    jobs.push_back(*std::move(one));
  }
  return Print(*json ? Json(jobs) : Text(jobs, nodes, one_job));
}

}  // namespace

Command StatusCommand() {
  Command command;
  command.name = "status";
  command.summary = "Show a server's jobs, or one job and its nodes.";
  command.positionals = "[JOB]";
  command.max_positionals = 1;
  command.flags = Flags();
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
