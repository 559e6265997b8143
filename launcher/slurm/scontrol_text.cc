#include "launcher/slurm/scontrol_text.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/host_ranges.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/flags/nearest.h"
#include "launcher/slurm/option_parser.h"

namespace cadre::launcher {
namespace {

using What = ScontrolRequest::What;

absl::Status Error(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("error: ", text));
}

const std::vector<Option>& Table() {
  constexpr OptionValue kNo = OptionValue::kNone, kYes = OptionValue::kRequired;
  static const auto* const table = new std::vector<Option>{
      {"all", 'a', kNo},      {"cluster", 'M', kYes},   {"clusters", 'M', kYes},
      {"details", 'd', kNo},  {"federation", 'F', kNo}, {"future", '\0', kNo},
      {"help", 'h', kNo},     {"hide", '\0', kNo},      {"json", '\0', kNo},
      {"local", '\0', kNo},   {"oneliner", 'o', kNo},   {"quiet", 'Q', kNo},
      {"sibling", '\0', kNo}, {"uid", 'u', kYes},       {"usage", '\0', kNo},
      {"verbose", 'v', kNo},  {"version", 'V', kNo},
  };
  return *table;
}

// What `show` shows. A shortened word stands for the first one that begins with it.
struct Shown {
  const char* word;
  // How much of it is needed.
  size_t least;
  What what;
};
constexpr Shown kShown[] = {
    {"hostnames", 5, What::kHostNames},
    {"hostlist", 5, What::kHostList},
    {"hostlistsorted", 9, What::kHostListSorted},
    {"jobs", 1, What::kJobs},
    {"jobid", 1, What::kJobs},
    {"nodes", 1, What::kNodes},
    {"partitions", 2, What::kPartitions},
    {"partitionname", 2, What::kPartitions},
    {"steps", 2, What::kSteps},
};

absl::StatusOr<What> WhatOf(absl::string_view word) {
  std::vector<std::string> words;
  for (const Shown& shown : kShown) {
    if (word.size() >= shown.least && absl::StartsWithIgnoreCase(shown.word, word)) {
      return shown.what;
    }
    words.push_back(shown.word);
  }
  const std::string meant = Nearest(absl::AsciiStrToLower(word), words);
  return Error(absl::StrCat("show ", OneLine(word, 64), ": not yet; ",
                            meant.empty() ? "" : absl::StrCat("did you mean ", meant, "? "),
                            "'scontrol --help' lists what can be shown"));
}

// What other commands of scontrol do, and what does it in Cadre.
absl::Status OtherCommandError(absl::string_view command) {
  struct Instead {
    const char* command;
    const char* text;
  };
  static constexpr Instead kInstead[] = {
      {"cancel", "use scancel"},
      {"hold", "not yet"},
      {"release", "not yet"},
      {"requeue", "not yet; a job of a batch script is submitted again with sbatch"},
      {"requeuehold", "not yet"},
      {"suspend", "not yet"},
      {"resume", "not yet"},
      {"top", "not yet"},
      {"update", "not yet; 'cadre drain NODE' and 'cadre undrain NODE' change a node"},
      {"ping", "not yet; 'cadre nodes' shows whether the server answers"},
      {"write", "not yet"},
      {"listpids", "not yet"},
  };
  for (const Instead& one : kInstead) {
    if (absl::EqualsIgnoreCase(one.command, command)) {
      return Error(absl::StrCat(one.command, ": ", one.text));
    }
  }
  return Error(absl::StrCat("invalid keyword: ", OneLine(command, 64),
                            "; 'scontrol --help' lists what is known"));
}

// Lines of a record; the first one begins at the left margin.
std::string Record(const std::vector<std::string>& lines, bool one_line) {
  if (one_line) return absl::StrCat(absl::StrJoin(lines, " "), "\n");
  return absl::StrCat(absl::StrJoin(lines, "\n   "), "\n\n");
}

std::string UserOf(const JobRecord& job, const TextSurroundings& at) {
  const std::optional<uint32_t> uid = at.uid_of ? at.uid_of(job.user) : std::nullopt;
  return absl::StrCat(EscapeControl(job.user), "(", uid.has_value() ? absl::StrCat(*uid) : "nobody",
                      ")");
}

std::string Time(absl::Time time, const TextSurroundings& at) {
  return TimeText(time, at.zone, at.time_format, "Unknown");
}

std::string OrNull(const std::string& text) { return text.empty() ? "(null)" : text; }

absl::Time EndOf(const JobRecord& job) {
  const bool expected = job.ended == absl::InfinitePast() && job.began != absl::InfinitePast() &&
                        job.limit != absl::InfiniteDuration();
  return expected ? job.began + job.limit : job.ended;
}

std::string Tres(const JobRecord& job) {
  std::string text = absl::StrCat("cpu=", job.cpus);
  if (job.memory > 0) absl::StrAppend(&text, ",mem=", job.memory >> 20, "M");
  absl::StrAppend(&text, ",node=", job.node_count);
  if (job.gpus > 0) absl::StrAppend(&text, ",gres/gpu=", job.gpus);
  return text;
}

std::string StateOf(const NodeRecord& node) {
  std::string state = absl::AsciiStrToUpper(node.state);
  if (state == "DRAINED") return "IDLE+DRAIN";
  if (state == "DRAINING") return "MIXED+DRAIN";
  return state == "COMPLETING" ? "IDLE+COMPLETING" : state;
}

}  // namespace

absl::StatusOr<ScontrolRequest> ReadScontrol(const std::vector<std::string>& arguments) {
  ASSIGN_OR_RETURN(const ParsedOptions parsed,
                   ParseOptions(arguments, Table(), AfterFirstWord::kOptionsToo));
  ScontrolRequest request;
  request.one_line = FindOption(parsed, "oneliner") != nullptr;
  request.json = FindOption(parsed, "json") != nullptr;
  if (FindOption(parsed, "version") != nullptr) request.what = What::kVersion;
  if (request.what == What::kVersion || FindOption(parsed, "help") != nullptr ||
      FindOption(parsed, "usage") != nullptr) {
    return request;
  }
  const std::vector<std::string>& words = parsed.rest;
  if (words.empty() || absl::EqualsIgnoreCase(words[0], "help")) return request;
  if (absl::EqualsIgnoreCase(words[0], "version")) {
    request.what = What::kVersion;
    return request;
  }
  if (!absl::StartsWithIgnoreCase("show", words[0]) || words[0].size() < 2) {
    return OtherCommandError(words[0]);
  }
  if (words.size() < 2) return Error("too few arguments for keyword:show");
  if (words.size() > 3) return Error("too many arguments for keyword:show");
  // "show job=57" is "show job 57".
  const std::string entity = words[1].substr(0, words[1].find('='));
  ASSIGN_OR_RETURN(request.what, WhatOf(entity));
  if (entity.size() < words[1].size()) request.which = words[1].substr(entity.size() + 1);
  if (words.size() == 3) request.which = words[2];
  const bool encodes = request.what == What::kHostList || request.what == What::kHostListSorted;
  if (encodes && request.which.empty()) return Error("invalid encode argument");
  return request;
}

absl::StatusOr<std::string> HostNames(absl::string_view list) {
  const absl::StatusOr<std::vector<std::string>> names = ExpandHosts(list);
  if (!names.ok()) return Error(names.status().message());
  return absl::StrCat(absl::StrJoin(*names, "\n"), "\n");
}

absl::StatusOr<std::string> HostList(absl::string_view list, bool sorted) {
  absl::StatusOr<std::vector<std::string>> names = ExpandHosts(list);
  if (!names.ok()) return Error(absl::StrCat("Invalid hostlist: ", names.status().message()));
  if (sorted) {
    std::vector<NodeRecord> nodes;
    v1::ListNodesReply all;
    for (const std::string& name : *names) all.add_nodes()->set_name(name);
    names->clear();
    for (const NodeRecord& node : NodesOf(all)) names->push_back(node.name);
  }
  return CompressHosts(*names) + "\n";
}

std::string JobDetails(const JobRecord& job, bool one_line, const TextSurroundings& at) {
  const std::string submitted = Time(job.submitted, at);
  const bool batch = job.has_steps;
  const uint32_t nodes = std::max(job.node_count, 1u);
  std::vector<std::string> lines = {
      absl::StrCat("JobId=", job.id, " JobName=", EscapeControl(job.name)),
      absl::StrCat("UserId=", UserOf(job, at), " GroupId=(null) MCS_label=N/A"),
      absl::StrCat("Priority=", job.priority, " Nice=0 Account=(null) QOS=normal"),
      absl::StrCat("JobState=", job.state, " Reason=", job.reason, " Dependency=(null)"),
      absl::StrCat("Requeue=0 Restarts=", job.restarts, " BatchFlag=", batch ? 1 : 0,
                   " Reboot=0 ExitCode=", job.exit_code, ":", job.exit_signal),
      absl::StrCat("RunTime=", LongTime(job.Elapsed(at.now)), " TimeLimit=", LongTime(job.limit),
                   " TimeMin=N/A"),
      absl::StrCat("SubmitTime=", submitted, " EligibleTime=", submitted),
      absl::StrCat("AccrueTime=", submitted),
      absl::StrCat("StartTime=", Time(job.began, at), " EndTime=", Time(EndOf(job), at),
                   " Deadline=N/A"),
      absl::StrCat("Partition=", kPartition),
      "ReqNodeList=(null) ExcNodeList=(null)",
      absl::StrCat("NodeList=", OrNull(job.NodeList())),
  };
  if (!job.nodes.empty()) lines.push_back(absl::StrCat("BatchHost=", job.nodes[0]));
  lines.push_back(absl::StrCat("NumNodes=", nodes, " NumCPUs=", std::max(job.cpus, 1u),
                               " NumTasks=", std::max(job.tasks, 1u), " CPUs/Task=N/A"));
  lines.push_back(absl::StrCat("TRES=", Tres(job)));
  lines.push_back("OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)");
  if (!job.reason_text.empty()) {
    lines.push_back(absl::StrCat("Comment=", EscapeControl(job.reason_text)));
  }
  return Record(lines, one_line);
}

std::string StepDetails(const JobRecord& step, bool one_line, const TextSurroundings& at) {
  return Record({absl::StrCat("StepId=", step.Id(), " UserId=", UserOf(step, at), " StartTime=",
                              Time(step.began, at), " TimeLimit=", LongTime(step.limit)),
                 absl::StrCat("State=", step.state, " Partition=", kPartition,
                              " NodeList=", OrNull(step.NodeList())),
                 absl::StrCat("Nodes=", step.node_count, " CPUs=", step.cpus, " Tasks=", step.tasks,
                              " Name=", EscapeControl(step.name))},
                one_line);
}

std::string NodeDetails(const NodeRecord& node, bool one_line) {
  const std::string features = OrNull(absl::StrJoin(node.features, ","));
  std::vector<std::string> lines = {
      absl::StrCat("NodeName=", node.name, " CoresPerSocket=", node.cpus),
      absl::StrCat("CPUAlloc=", node.cpus_in_use, " CPUEfctv=", node.cpus, " CPUTot=", node.cpus,
                   " CPULoad=N/A"),
      absl::StrCat("AvailableFeatures=", features),
      absl::StrCat("ActiveFeatures=", features),
      absl::StrCat("Gres=", node.gpus == 0 ? "(null)" : absl::StrCat("gpu:", node.gpus)),
      absl::StrCat("NodeAddr=", node.name, " NodeHostName=", node.name),
      absl::StrCat("RealMemory=", node.memory >> 20, " AllocMem=", node.memory_in_use >> 20,
                   " FreeMem=N/A Sockets=1 Boards=1"),
      absl::StrCat("State=", StateOf(node),
                   " ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A"),
      absl::StrCat("Partitions=", kPartition),
      absl::StrCat("CfgTRES=cpu=", node.cpus, ",mem=", node.memory >> 20, "M",
                   node.gpus == 0 ? "" : absl::StrCat(",gres/gpu=", node.gpus)),
      absl::StrCat("AllocTRES=cpu=", node.cpus_in_use,
                   node.gpus == 0 ? "" : absl::StrCat(",gres/gpu=", node.gpus_in_use)),
  };
  if (!node.reason.empty()) lines.push_back(absl::StrCat("Reason=", EscapeControl(node.reason)));
  return Record(lines, one_line);
}

std::string PartitionDetails(const std::vector<NodeRecord>& nodes, bool one_line) {
  uint64_t cpus = 0;
  std::vector<std::string> names;
  for (const NodeRecord& node : nodes) {
    cpus += node.cpus;
    names.push_back(node.name);
  }
  return Record(
      {absl::StrCat("PartitionName=", kPartition), "AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL",
       "AllocNodes=ALL Default=YES QoS=N/A",
       "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO",
       "MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED",
       absl::StrCat("Nodes=", OrNull(CompressHosts(names))),
       "PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO",
       absl::StrCat("State=UP TotalCPUs=", cpus, " TotalNodes=", nodes.size())},
      one_line);
}

std::string ScontrolHelp() {
  return "Usage: scontrol show ENTITY [NAME]\n"
         "Shows what a cluster of Cadre has, as Slurm's scontrol does.\n"
         "\n"
         "  show hostnames [LIST]    the hosts of n[1-3,5], one on each line [SLURM_JOB_NODELIST]\n"
         "  show hostlist A,B,C      a list of hosts in brackets; hostlistsorted: sorted\n"
         "  show job [ID]            a job, or all\n"
         "  show step [ID]           a step as 57.0, or all of a job\n"
         "  show node [HOSTS]        nodes\n"
         "  show partition           the partition of all nodes\n"
         "  -o, --oneliner           a line for each of them\n"
         "      --json               jobs and nodes as JSON\n"
         "\n"
         "Other commands of scontrol are refused. 'cadre drain NODE' drains a node.\n";
}

}  // namespace cadre::launcher
