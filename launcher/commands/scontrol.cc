// scontrol: lists of hosts, what a cluster has, and changes of jobs.
#include <stdlib.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/host_ranges.h"
#include "base/status_macros.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/slurm_client.h"
#include "launcher/slurm/job_change.h"
#include "launcher/slurm/scontrol_text.h"

namespace cadre::launcher {
namespace {

using What = ScontrolRequest::What;

constexpr char kUnknownJob[] = "slurm_load_jobs error: Invalid job id specified";

int PrintText(const absl::StatusOr<std::string>& text) {
  return text.ok() ? Print(*text) : Fail(1, text.status().message());
}

// Needs no server.
int ShowHostNames(std::string list) {
  for (const char* const variable : {"SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    const char* const value = getenv(variable);
    if (list.empty() && value != nullptr) list = value;
  }
  if (list.empty()) {
    return FailAsSlurm("show hostnames: no list of hosts, and SLURM_JOB_NODELIST is not set");
  }
  return PrintText(HostNames(list));
}

// The records of the job or the step, or of all jobs or all steps.
std::vector<JobRecord> Wanted(const std::vector<JobRecord>& records,
                              const ScontrolRequest& request) {
  const bool steps = request.what == What::kSteps;
  const auto ids = ParseWantedIds(request.which);
  std::vector<JobRecord> wanted;
  if (!ids.ok()) return wanted;
  JobSelection selection;
  for (const WantedId& id : *ids) selection.ids.insert(id.Text());
  for (const JobRecord& record : records) {
    if (record.step.has_value() == steps && selection.Selects(record)) wanted.push_back(record);
  }
  return wanted;
}

// --- commands that change jobs ---

// The jobs that are meant. Of an array those of its elements that the command can be for.
std::vector<JobRecord> Meant(const std::vector<JobRecord>& records, const ScontrolRequest& request,
                             bool* unknown) {
  const bool of_queue = request.what == What::kHold || request.what == What::kRelease;
  std::vector<JobRecord> all;
  const auto add = [&](const std::vector<JobRecord>& found) {
    for (const JobRecord& record : found) {
      const bool left_out = record.HasEnded() || (of_queue && !record.IsPending());
      // About a single one the server says why not.
      if (found.size() == 1 || !left_out) all.push_back(record);
    }
  };
  for (const WantedId& id : request.ids) {
    std::vector<JobRecord> found;
    for (const JobRecord& record : records) {
      if (!record.step.has_value() && id.MeansJobOf(record)) found.push_back(record);
    }
    if (found.empty()) {
      *unknown = true;
      FailAsSlurm(absl::StrCat("Invalid job id specified for job ", id.Text()));
    }
    add(found);
  }
  // A name means the jobs of that name that have not ended, unless an id says which.
  if (!request.ids.empty() || request.names.empty()) return all;
  JobSelection selection;
  selection.names = request.names;
  std::vector<JobRecord> found;
  for (const JobRecord& record : records) {
    const bool live = !record.step.has_value() && !record.HasEnded();
    if (live && selection.Selects(record)) found.push_back(record);
  }
  if (found.empty()) {
    *unknown = true;
    FailAsSlurm("no job of that name waits or runs");
  }
  add(found);
  return all;
}

absl::Status ChangeJob(ControlClient& client, const std::string& id,
                       const ScontrolRequest& request) {
  if (request.what == What::kRequeue || request.what == What::kRequeueHold) {
    return client.Requeue(id, "scontrol requeue", request.what == What::kRequeueHold).status();
  }
  JobChange change = request.change;
  if (request.what == What::kHold) change.held = true;
  if (request.what == What::kRelease) change.held = false;
  ASSIGN_OR_RETURN(const v1::JobStatus job, client.Get(id));
  ASSIGN_OR_RETURN(const v1::JobUpdate update, UpdateOf(change, job));
  return client.Update(id, update).status();
}

int ChangeJobs(ControlClient& client, const ScontrolRequest& request) {
  const absl::StatusOr<ServerJobs> jobs = LoadJobs(client);
  if (!jobs.ok()) return FailAsSlurm(jobs.status().message());
  bool failed = false;
  for (const JobRecord& record : Meant(jobs->Records(), request, &failed)) {
    const absl::Status changed = ChangeJob(client, absl::StrCat(record.server_id), request);
    if (changed.ok()) continue;
    failed = true;
    FailAsSlurm(absl::StrCat(
        "job ", record.Id(), ": ",
        absl::IsPermissionDenied(changed) ? "Access/permission denied" : changed.message()));
  }
  return failed ? 1 : 0;
}

int ShowJobs(ControlClient& client, const ScontrolRequest& request) {
  absl::StatusOr<ServerJobs> jobs = LoadJobs(client);
  if (!jobs.ok()) return FailAsSlurm(jobs.status().message());
  std::vector<JobRecord> records = Wanted(jobs->Records(), request);
  if (records.empty() && !request.which.empty()) return Fail(1, kUnknownJob);
  // The nodes of a single job are shown also when it has ended.
  if (!request.which.empty()) {
    const absl::Status loaded = LoadEndedJobs(client, records, &*jobs);
    if (!loaded.ok()) return FailAsSlurm(loaded.message());
    records = Wanted(jobs->Records(), request);
  }
  const TextSurroundings at = HereAndNow();
  if (request.json) {
    SqueueOptions options;
    options.json = true;
    options.selection.states = {"all"};
    options.steps = request.what == What::kSteps;
    options.array_elements = true;
    return PrintText(SqueueText(records, options, at));
  }
  std::string text;
  for (const JobRecord& record : records) {
    text += record.step.has_value() ? StepDetails(record, request.one_line, at)
                                    : JobDetails(record, request.one_line, at);
  }
  return Print(records.empty() ? "No jobs in the system\n" : text);
}

int ShowNodes(const std::vector<NodeRecord>& nodes, const ScontrolRequest& request) {
  std::set<std::string> wanted;
  if (!request.which.empty()) {
    const auto names = ExpandHosts(request.which);
    if (!names.ok()) return FailAsSlurm(names.status().message());
    wanted.insert(names->begin(), names->end());
  }
  for (const std::string& name : wanted) {
    const bool known = std::any_of(nodes.begin(), nodes.end(),
                                   [&name](const NodeRecord& node) { return node.name == name; });
    if (!known) return Fail(1, absl::StrCat("Node ", name, " not found"));
  }
  if (request.json) {
    SinfoOptions options;
    options.json = true;
    options.nodes = wanted;
    return PrintText(SinfoText(nodes, options, HereAndNow()));
  }
  std::string text;
  for (const NodeRecord& node : nodes) {
    if (wanted.empty() || wanted.count(node.name) != 0) {
      text += NodeDetails(node, request.one_line);
    }
  }
  return Print(nodes.empty() ? "No nodes in the system\n" : text);
}

int ShowPartition(const std::vector<NodeRecord>& nodes, const ScontrolRequest& request) {
  if (!request.which.empty() && request.which != kPartition) {
    return Fail(1, absl::StrCat("Partition ", request.which, " not found"));
  }
  return Print(PartitionDetails(nodes, request.one_line));
}

int Run(const Parsed& parsed) {
  const absl::StatusOr<ScontrolRequest> request =
      ReadScontrol(parsed.rest, absl::Now(), absl::LocalTimeZone());
  if (!request.ok()) return Fail(1, request.status().message());
  switch (request->what) {
    case What::kHelp:
      return Print(ScontrolHelp());
    case What::kVersion:
      return PrintSlurmVersion();
    case What::kHostNames:
      return ShowHostNames(request->which);
    case What::kHostList:
    case What::kHostListSorted:
      return PrintText(HostList(request->which, request->what == What::kHostListSorted));
    default:
      break;
  }
  const auto client = ConnectToServer();
  if (!client.ok()) return FailAsSlurm(client.status().message());
  if (request->what == What::kJobs || request->what == What::kSteps) {
    return ShowJobs(**client, *request);
  }
  if (request->what != What::kNodes && request->what != What::kPartitions) {
    return ChangeJobs(**client, *request);
  }
  const absl::StatusOr<v1::ListNodesReply> reply = (*client)->Nodes();
  if (!reply.ok()) return FailAsSlurm(reply.status().message());
  const std::vector<NodeRecord> nodes = NodesOf(*reply);
  return request->what == What::kNodes ? ShowNodes(nodes, *request)
                                       : ShowPartition(nodes, *request);
}

}  // namespace

Command ScontrolCommand() {
  Command command;
  command.name = "scontrol";
  command.summary = "Show hosts, jobs and nodes, and change jobs, as Slurm's scontrol does.";
  command.own_syntax = true;
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
