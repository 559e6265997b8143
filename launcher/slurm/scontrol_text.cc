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
#include "absl/time/time.h"
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
      {"suspend", "not yet"},
      {"resume", "not yet"},
      {"top", "not yet; an administrator can say 'scontrol update JobId=ID Priority=N'"},
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

// --- commands that change jobs ---

struct JobCommand {
  const char* word;
  What what;
};
constexpr JobCommand kJobCommands[] = {
    {"hold", What::kHold},       {"uhold", What::kHold},    {"release", What::kRelease},
    {"requeue", What::kRequeue}, {"update", What::kUpdate}, {"requeuehold", What::kRequeueHold},
};

// "57", "57,58_[1-3]", "JobId=57" or "JobName=train".
absl::Status TakeJobs(absl::string_view word, ScontrolRequest* request) {
  const size_t equals = word.find('=');
  const absl::string_view key = equals == word.npos ? "" : word.substr(0, equals);
  const absl::string_view list = equals == word.npos ? word : word.substr(equals + 1);
  if (absl::EqualsIgnoreCase(key, "JobName") || absl::EqualsIgnoreCase(key, "Name")) {
    for (std::string& name : ItemsOf(list)) request->names.insert(std::move(name));
    return absl::OkStatus();
  }
  if (!key.empty() && !absl::EqualsIgnoreCase(key, "JobId") &&
      !absl::EqualsIgnoreCase(key, "Job")) {
    return Error(absl::StrCat("Invalid argument ", OneLine(word, 64),
                              "; expected ids of jobs, or JobName=NAME"));
  }
  const absl::StatusOr<std::vector<WantedId>> ids = ParseWantedIds(list);
  if (!ids.ok()) return Error(ids.status().message());
  for (const WantedId& id : *ids) {
    if (!id.step.empty()) return Error(absl::StrCat(id.Text(), ": expected a job, not a step"));
  }
  request->ids.insert(request->ids.end(), ids->begin(), ids->end());
  return absl::OkStatus();
}

// The property "TimeLimit=60" of `scontrol update`.
absl::Status SetProperty(absl::string_view key, absl::string_view value, absl::Time now,
                         absl::TimeZone zone, JobChange* change) {
  const auto is = [key](absl::string_view name) { return absl::EqualsIgnoreCase(key, name); };
  if (is("TimeLimit")) return SetLimit(value, change);
  if (is("Nice")) return SetNice(value, change);
  if (is("StartTime")) return SetBegin(value, now, zone, change);
  if (is("NodeList") || is("ReqNodeList")) return SetNodes(value, change);
  if (is("ExcNodeList")) return SetExclude(value, change);
  if (is("Features") || is("Feature")) return SetLabels(value, change);
  if (is("Priority")) {
    // As with Slurm, 0 holds the job, and another number releases it.
    RETURN_IF_ERROR(SetPriority(value, change));
    change->held = *change->priority == 0;
    if (*change->priority == 0) change->priority.reset();
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "not yet; TimeLimit, Priority, Nice, StartTime, ReqNodeList, ExcNodeList and Features of a "
      "job can be changed");
}

absl::Status TakeProperty(absl::string_view word, absl::Time now, absl::TimeZone zone,
                          ScontrolRequest* request) {
  const size_t equals = word.find('=');
  const absl::string_view key = word.substr(0, equals);
  for (const char* const node : {"NodeName", "Node"}) {
    if (!absl::EqualsIgnoreCase(key, node)) continue;
    return Error("update: 'cadre drain NODE' and 'cadre undrain NODE' change a node");
  }
  if (equals == word.npos) {
    return Error(absl::StrCat("Invalid argument ", OneLine(word, 64), "; expected NAME=VALUE"));
  }
  for (const char* const name : {"JobId", "Job", "JobName"}) {
    // JobName chooses jobs only if no id does.
    if (absl::EqualsIgnoreCase(key, name)) return TakeJobs(word, request);
  }
  // "TimeLimit+=30" is "TimeLimit=+30".
  absl::string_view name = key;
  std::string value(word.substr(equals + 1));
  if (!name.empty() && (name.back() == '+' || name.back() == '-')) {
    value.insert(0, 1, name.back());
    name.remove_suffix(1);
  }
  const absl::Status set = SetProperty(name, value, now, zone, &request->change);
  if (set.ok()) return set;
  return Error(absl::StrCat("update: ", OneLine(name, 64), ": ", set.message()));
}

absl::Status TakeJobCommand(const std::vector<std::string>& words, absl::Time now,
                            absl::TimeZone zone, ScontrolRequest* request) {
  const bool updates = request->what == What::kUpdate;
  for (size_t i = 1; i < words.size(); ++i) {
    RETURN_IF_ERROR(updates ? TakeProperty(words[i], now, zone, request)
                            : TakeJobs(words[i], request));
  }
  if (request->ids.empty() && request->names.empty()) {
    return Error(absl::StrCat(words[0], ": no job is named; expected the id of one",
                              updates ? ", as JobId=57" : ""));
  }
  if (updates && !request->ids.empty() && !request->names.empty()) {
    return Error("update: JobName: not yet; the name of a job stays");
  }
  if (!updates || !request->change.IsEmpty()) return absl::OkStatus();
  return Error("update: no change is named; expected one such as TimeLimit=60");
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
  const bool expected = job.ended == absl::InfinitePast() && job.Start() != absl::InfinitePast() &&
                        job.limit != absl::InfiniteDuration();
  return expected ? job.Start() + job.limit : job.ended;
}

std::string Tres(const JobRecord& job) {
  std::string text = absl::StrCat("cpu=", job.cpus);
  if (job.memory > 0) absl::StrAppend(&text, ",mem=", job.memory >> 20, "M");
  absl::StrAppend(&text, ",node=", std::max(job.node_count, 1u));
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

absl::StatusOr<ScontrolRequest> ReadScontrol(const std::vector<std::string>& arguments,
                                             absl::Time now, absl::TimeZone zone) {
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
  for (const JobCommand& command : kJobCommands) {
    if (!absl::EqualsIgnoreCase(command.word, words[0])) continue;
    request.what = command.what;
    RETURN_IF_ERROR(TakeJobCommand(words, now, zone, &request));
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
  const std::string eligible = Time(job.Eligible(), at);
  const uint32_t nodes = std::max(job.node_count, 1u);
  const std::string array =
      job.array == 0 ? ""
                     : absl::StrCat("ArrayJobId=", job.array, " ArrayTaskId=", job.array_index,
                                    job.array_at_once == 0
                                        ? ""
                                        : absl::StrCat(" ArrayTaskThrottle=", job.array_at_once),
                                    " ");
  const std::string deadline =
      job.deadline == absl::InfinitePast() ? "N/A" : Time(job.deadline, at);
  std::vector<std::string> lines = {
      absl::StrCat("JobId=", job.id, " ", array, "JobName=", EscapeControl(job.name)),
      absl::StrCat("UserId=", UserOf(job, at), " GroupId=(null) MCS_label=N/A"),
      absl::StrCat("Priority=", job.held ? 0 : job.priority, " Nice=0 Account=(null) QOS=normal"),
      absl::StrCat("JobState=", job.state, " Reason=", job.reason,
                   " Dependency=", OrNull(job.dependency)),
      absl::StrCat("Requeue=", job.requeues ? 1 : 0, " Restarts=", job.restarts, " BatchFlag=",
                   job.batch ? 1 : 0, " Reboot=0 ExitCode=", job.exit_code, ":", job.exit_signal),
      absl::StrCat("RunTime=", LongTime(job.Elapsed(at.now)), " TimeLimit=", LongTime(job.limit),
                   " TimeMin=N/A"),
      absl::StrCat("SubmitTime=", Time(job.submitted, at), " EligibleTime=", eligible),
      absl::StrCat("AccrueTime=", eligible),
      absl::StrCat("StartTime=", Time(job.Start(), at), " EndTime=", Time(EndOf(job), at),
                   " Deadline=", deadline),
      absl::StrCat("Partition=", kPartition),
      absl::StrCat("ReqNodeList=", OrNull(job.wanted_nodes),
                   " ExcNodeList=", OrNull(job.excluded_nodes)),
      absl::StrCat("NodeList=", OrNull(job.NodeList())),
  };
  if (!job.nodes.empty()) lines.push_back(absl::StrCat("BatchHost=", job.nodes[0]));
  lines.push_back(absl::StrCat("NumNodes=", nodes, " NumCPUs=", std::max(job.cpus, 1u),
                               " NumTasks=", std::max(job.tasks, 1u), " CPUs/Task=N/A"));
  lines.push_back(absl::StrCat("TRES=", Tres(job)));
  lines.push_back(absl::StrCat("Features=", OrNull(job.features)));
  lines.push_back("OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)");
  const std::pair<const char*, std::string> files[] = {{"Command", job.command},
                                                       {"WorkDir", job.working_dir},
                                                       {"StdErr", ErrorFile(job)},
                                                       {"StdIn", "/dev/null"},
                                                       {"StdOut", OutputFile(job)}};
  // A server of an earlier version does not tell.
  for (const auto& [key, value] : files) {
    if (job.working_dir.empty()) break;
    lines.push_back(absl::StrCat(key, "=", OrNull(EscapeControl(value))));
  }
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
         "       scontrol hold|release|requeue|requeuehold ID...\n"
         "       scontrol update JobId=ID NAME=VALUE...\n"
         "Shows what a cluster of Cadre has, and changes jobs, as Slurm's scontrol does.\n"
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
         "  hold ID...               jobs do not begin until release ID...\n"
         "  requeue ID...            jobs go back into the queue; requeuehold: and are held there\n"
         "  update JobId=ID          with TimeLimit=, Priority=, Nice=, StartTime=, ReqNodeList=,\n"
         "                           ExcNodeList= or Features=\n"
         "IDs are those of jobs, of arrays, or of their elements, as 57_3 and 57_[1-3].\n"
         "\n"
         "Other commands of scontrol are refused. 'cadre drain NODE' drains a node.\n";
}

}  // namespace cadre::launcher
