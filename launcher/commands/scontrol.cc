// scontrol: lists of hosts, and what a cluster has.
#include <stdlib.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/host_ranges.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/slurm_client.h"
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
  std::vector<JobRecord> wanted;
  for (const JobRecord& record : records) {
    const bool fits = request.which.empty() || (steps ? request.which == absl::StrCat(record.id) ||
                                                            request.which == record.Id()
                                                      : request.which == absl::StrCat(record.id));
    if (fits && record.step.has_value() == steps) wanted.push_back(record);
  }
  return wanted;
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
  const absl::StatusOr<ScontrolRequest> request = ReadScontrol(parsed.rest);
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
  command.summary = "Show hosts, jobs and nodes, as Slurm's scontrol does.";
  command.own_syntax = true;
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
