#include "launcher/slurm/srun_options.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/duration.h"
#include "base/host_ranges.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/flags/run_options.h"
#include "launcher/slurm/option_parser.h"
#include "launcher/slurm/option_values.h"
#include "launcher/slurm/slurm_commands.h"
#include "launcher/spec/job_spec.h"
#include "launcher/spec/scalars.h"

namespace cadre::launcher {
namespace {

constexpr OptionValue kNo = OptionValue::kNone;
constexpr OptionValue kYes = OptionValue::kRequired;
constexpr OptionValue kMaybe = OptionValue::kOptional;

// Where tasks of steps leave their output if the user names no file: in the working directory.
constexpr char kLogDirectory[] = ".cadre";

enum class Effect {
  kTaken,
  // The step is the same without it, or what it asks for is done anyway.
  kSame,
  // A notice says that it has no effect.
  kNoEffect,
  kRefused,
};

struct SrunOption {
  const char* name;
  char short_name;
  OptionValue value;
  Effect effect;
  // Why it is refused, after "--NAME: ".
  const char* why = "";
};

constexpr Effect kTaken = Effect::kTaken;
constexpr Effect kSame = Effect::kSame;
constexpr Effect kNoEffect = Effect::kNoEffect;
constexpr Effect kRefused = Effect::kRefused;

// The options of srun in Slurm 23.02.
constexpr SrunOption kOptions[] = {
    {"help", 'h', kNo, kTaken},
    {"usage", '\0', kNo, kTaken},
    {"version", 'V', kNo, kTaken},
    {"chdir", 'D', kYes, kTaken},
    {"cpus-per-gpu", '\0', kYes, kTaken},
    {"cpus-per-task", 'c', kYes, kTaken},
    {"error", 'e', kYes, kTaken},
    {"exclude", 'x', kYes, kTaken},
    {"export", '\0', kYes, kTaken},
    {"gpus", 'G', kYes, kTaken},
    {"gpus-per-node", '\0', kYes, kTaken},
    {"gpus-per-task", '\0', kYes, kTaken},
    {"gres", '\0', kYes, kTaken},
    {"input", 'i', kYes, kTaken},
    {"job-name", 'J', kYes, kTaken},
    {"jobid", '\0', kYes, kTaken},
    {"kill-on-bad-exit", 'K', kMaybe, kTaken},
    {"label", 'l', kNo, kTaken},
    {"mem", '\0', kYes, kTaken},
    {"mem-per-cpu", '\0', kYes, kTaken},
    {"mem-per-gpu", '\0', kYes, kTaken},
    {"mpi", '\0', kYes, kTaken},
    {"nodelist", 'w', kYes, kTaken},
    {"nodes", 'N', kYes, kTaken},
    {"ntasks", 'n', kYes, kTaken},
    {"ntasks-per-node", '\0', kYes, kTaken},
    {"tasks-per-node", '\0', kYes, kTaken},
    {"open-mode", '\0', kYes, kTaken},
    {"output", 'o', kYes, kTaken},
    {"overlap", '\0', kMaybe, kTaken},
    {"quiet", 'Q', kNo, kTaken},
    {"quit-on-interrupt", '\0', kNo, kTaken},
    {"relative", 'r', kYes, kTaken},
    {"signal", '\0', kYes, kTaken},
    {"time", 't', kYes, kTaken},
    {"unbuffered", 'u', kNo, kTaken},
    {"verbose", 'v', kNo, kTaken},

    {"accel-bind", '\0', kYes, kSame},
    {"cpu-bind", '\0', kYes, kSame},
    {"cpu_bind", '\0', kYes, kSame},
    {"disable-status", 'X', kNo, kSame},
    {"distribution", 'm', kYes, kSame},
    {"exact", '\0', kNo, kSame},
    {"exclusive", '\0', kMaybe, kSame},
    {"gpu-bind", '\0', kYes, kSame},
    {"hint", '\0', kYes, kSame},
    {"immediate", 'I', kMaybe, kSame},
    {"interactive", '\0', kNo, kSame},
    {"mem-bind", '\0', kYes, kSame},
    {"mincpus", '\0', kYes, kSame},
    {"msg-timeout", '\0', kYes, kSame},
    {"no-kill", 'k', kMaybe, kSame},
    {"ntasks-per-core", '\0', kYes, kSame},
    {"ntasks-per-socket", '\0', kYes, kSame},
    {"overcommit", 'O', kNo, kSame},
    {"oversubscribe", 's', kNo, kSame},
    {"preserve-env", 'E', kNo, kSame},
    {"send-libs", '\0', kMaybe, kSame},
    {"slurmd-debug", '\0', kYes, kSame},
    {"spread-job", '\0', kNo, kSame},
    {"threads", 'T', kYes, kSame},
    {"threads-per-core", '\0', kYes, kSame},
    {"use-min-nodes", '\0', kNo, kSame},
    {"wait", 'W', kYes, kSame},
    {"whole", '\0', kNo, kSame},

    {"account", 'A', kYes, kNoEffect},
    {"acctg-freq", '\0', kYes, kNoEffect},
    {"comment", '\0', kYes, kNoEffect},
    {"compress", '\0', kMaybe, kNoEffect},
    {"contiguous", '\0', kNo, kNoEffect},
    {"core-spec", 'S', kYes, kNoEffect},
    {"cores-per-socket", '\0', kYes, kNoEffect},
    {"cpu-freq", '\0', kYes, kNoEffect},
    {"debugger-test", '\0', kNo, kNoEffect},
    {"delay-boot", '\0', kYes, kNoEffect},
    {"extra", '\0', kYes, kNoEffect},
    {"extra-node-info", 'B', kYes, kNoEffect},
    {"gpu-freq", '\0', kYes, kNoEffect},
    {"gres-flags", '\0', kYes, kNoEffect},
    {"mail-type", '\0', kYes, kNoEffect},
    {"mail-user", '\0', kYes, kNoEffect},
    {"mcs-label", '\0', kYes, kNoEffect},
    {"network", '\0', kYes, kNoEffect},
    {"nice", '\0', kMaybe, kNoEffect},
    {"partition", 'p', kYes, kNoEffect},
    {"power", '\0', kYes, kNoEffect},
    {"prefer", '\0', kYes, kNoEffect},
    {"priority", '\0', kYes, kNoEffect},
    {"profile", '\0', kYes, kNoEffect},
    {"propagate", '\0', kMaybe, kNoEffect},
    {"qos", 'q', kYes, kNoEffect},
    {"reboot", '\0', kNo, kNoEffect},
    {"resv-ports", '\0', kMaybe, kNoEffect},
    {"sockets-per-node", '\0', kYes, kNoEffect},
    {"switches", '\0', kYes, kNoEffect},
    {"thread-spec", '\0', kYes, kNoEffect},
    {"time-min", '\0', kYes, kNoEffect},
    {"tmp", '\0', kYes, kNoEffect},
    {"wckey", '\0', kYes, kNoEffect},

    {"autocomplete", '\0', kYes, kRefused, "there is no completion for srun"},
    {"bb", '\0', kYes, kRefused, "there are no burst buffers"},
    {"bbf", '\0', kYes, kRefused, "there are no burst buffers"},
    {"bcast", '\0', kMaybe, kRefused, "not yet; put the program on a file system of all nodes"},
    {"bcast-exclude", '\0', kYes, kRefused, "there is no --bcast yet"},
    {"begin", 'b', kYes, kRefused, "not yet"},
    {"cluster", '\0', kYes, kRefused, "there is one cluster: the one of CADRE_SERVER"},
    {"cluster-constraint", '\0', kYes, kRefused, "there is one cluster"},
    {"clusters", 'M', kYes, kRefused, "there is one cluster: the one of CADRE_SERVER"},
    {"constraint", 'C', kYes, kTaken},
    {"container", '\0', kYes, kRefused, "not yet; name the container's own command as program"},
    {"container-id", '\0', kYes, kRefused, "not yet"},
    {"context", '\0', kYes, kRefused, "there are no SELinux contexts"},
    {"deadline", '\0', kYes, kRefused, "not yet"},
    {"dependency", 'd', kYes, kRefused, "not yet"},
    {"epilog", '\0', kYes, kRefused, "not yet"},
    {"gpus-per-socket", '\0', kYes, kRefused, "sockets are not counted; use --gpus-per-node"},
    {"het-group", '\0', kYes, kRefused, "there are no heterogeneous jobs"},
    {"hold", 'H', kNo, kRefused, "not yet"},
    {"licenses", 'L', kYes, kRefused, "there are no licenses"},
    {"multi-prog", '\0', kNo, kRefused,
     "not yet; start one program that chooses by SLURM_PROCID what it does"},
    {"no-allocate", 'Z', kNo, kRefused, "a step cannot run without an allocation"},
    {"nodefile", 'F', kYes, kRefused, "not yet; use --nodelist"},
    {"ntasks-per-gpu", '\0', kYes, kRefused, "not yet; use --ntasks and --gpus-per-task"},
    {"ntasks-per-tres", '\0', kYes, kRefused, "not yet; use --ntasks and --gpus-per-task"},
    {"pack-group", '\0', kYes, kRefused, "there are no heterogeneous jobs"},
    {"prolog", '\0', kYes, kRefused, "not yet"},
    {"pty", '\0', kMaybe, kRefused, "not yet; ssh to the node gives a terminal there"},
    {"reservation", '\0', kYes, kRefused, "there are no reservations"},
    {"task-epilog", '\0', kYes, kRefused, "not yet"},
    {"task-prolog", '\0', kYes, kRefused, "not yet"},
    {"test-only", '\0', kNo, kRefused, "not yet; 'cadre why' says why a job waits"},
    {"tres-per-task", '\0', kYes, kRefused, "not yet; use --gpus-per-task and --cpus-per-task"},
    {"x11", '\0', kMaybe, kRefused, "not yet"},
};

// The variables that stand for options; of several the last one counts.
struct InputVariable {
  const char* variable;
  const char* option;
};
constexpr InputVariable kVariables[] = {
    {"SLURM_GPUS_PER_NODE", "gpus-per-node"},
    {"SLURM_GPUS_PER_TASK", "gpus-per-task"},
    {"SLURM_GRES", "gres"},
    {"SLURM_STEP_GRES", "gres"},
    {"SLURM_JOB_NAME", "job-name"},
    {"SLURM_NNODES", "nodes"},
    {"SLURM_JOB_NUM_NODES", "nodes"},
    {"SLURM_KILL_BAD_EXIT", "kill-on-bad-exit"},
    {"SLURM_LABELIO", "label"},
    {"SLURM_MEM_PER_CPU", "mem-per-cpu"},
    {"SLURM_MEM_PER_GPU", "mem-per-gpu"},
    {"SLURM_MEM_PER_NODE", "mem"},
    {"SLURM_NPROCS", "ntasks"},
    {"SLURM_NTASKS", "ntasks"},
    {"SLURM_NTASKS_PER_NODE", "ntasks-per-node"},
    {"SLURM_OPEN_MODE", "open-mode"},
    {"SLURM_OVERLAP", "overlap"},
    {"SRUN_CPUS_PER_TASK", "cpus-per-task"},
    {"SLURM_EXPORT_ENV", "export"},
    {"SRUN_EXPORT_ENV", "export"},
    {"SLURM_STDERRMODE", "error"},
    {"SRUN_ERROR", "error"},
    {"SLURM_STDINMODE", "input"},
    {"SRUN_INPUT", "input"},
    {"SLURM_STDOUTMODE", "output"},
    {"SRUN_OUTPUT", "output"},
    {"SLURM_TIMELIMIT", "time"},
    {"SLURM_UNBUFFEREDIO", "unbuffered"},
    {"SLURM_REMOTE_CWD", "chdir"},
    {"SLURM_WORKING_DIR", "chdir"},
};

absl::Status Error(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("error: ", text));
}

// The value of an option, from the command line or from a variable.
struct Value {
  std::string text;
  bool has_text = false;
  bool from_environment = false;
  // For errors: "--nodes", "SLURM_NNODES".
  std::string place;
};

template <typename T>
absl::StatusOr<T> At(const Value& value, absl::StatusOr<T> result) {
  if (result.ok()) return result;
  return Error(absl::StrCat(value.place, ": ", result.status().message()));
}

std::string Lookup(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

const SrunOption* Known(absl::string_view name) {
  for (const SrunOption& option : kOptions) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

// A switch that a variable stands for is on if the variable is empty, "yes" or a number other than
// 0.
bool IsOn(const std::string& text) {
  int64_t number = 0;
  return text.empty() || text == "yes" || (absl::SimpleAtoi(text, &number) && number != 0);
}

// The number of nodes and of tasks, and where they come from.
struct Size {
  uint32_t least_nodes = 1;
  uint32_t most_nodes = 1;
  bool nodes_set = false;
  bool nodes_from_environment = false;
  uint32_t tasks = 1;
  bool tasks_set = false;
  bool tasks_from_environment = false;
  // 0: not given.
  uint32_t tasks_per_node = 0;
};

class Reader {
 public:
  Reader(const Environment& environment, const std::string& directory)
      : environment_(environment), directory_(directory) {}

  absl::StatusOr<SrunRequest> Read(const std::vector<std::string>& arguments) {
    RETURN_IF_ERROR(Parse(arguments));
    if (request_.answer != SrunRequest::Answer::kNone) return std::move(request_);
    if (command_.empty()) return absl::InvalidArgumentError("fatal: No command given to execute.");
    RETURN_IF_ERROR(TakeWithin());
    TakeVariables();
    TakeSwitches();
    RETURN_IF_ERROR(TakeNameAndPlace());
    RETURN_IF_ERROR(TakeSize());
    RETURN_IF_ERROR(TakeCpus());
    RETURN_IF_ERROR(TakeGpus());
    RETURN_IF_ERROR(TakeCpusPerGpu());
    RETURN_IF_ERROR(TakeMemory());
    RETURN_IF_ERROR(TakeStreams());
    RETURN_IF_ERROR(TakeTime());
    RETURN_IF_ERROR(TakeSignal());
    RETURN_IF_ERROR(TakeConstraint());
    RETURN_IF_ERROR(TakeOthers());
    spec_.mutable_command()->Assign(command_.begin(), command_.end());
    for (const auto& [name, value] :
         ExportedVariables(environment_, Text("export", "ALL"), &request_.notices)) {
      (*spec_.mutable_env())[name] = value;
    }
    FillSpecDefaults(spec_);
    request_.spec = std::move(spec_);
    return std::move(request_);
  }

 private:
  absl::Status Parse(const std::vector<std::string>& arguments) {
    std::vector<Option> table;
    for (const SrunOption& option : kOptions) {
      table.push_back({option.name, option.short_name, option.value});
    }
    ASSIGN_OR_RETURN(ParsedOptions parsed, ParseOptions(arguments, table));
    std::vector<std::string> no_effect;
    for (const GivenOption& given : parsed.options) {
      if (given.name == "help") request_.answer = SrunRequest::Answer::kHelp;
      if (given.name == "usage") request_.answer = SrunRequest::Answer::kUsage;
      if (given.name == "version") request_.answer = SrunRequest::Answer::kVersion;
      const SrunOption* const option = Known(given.name);
      if (option->effect == kRefused) {
        return Error(absl::StrCat("--", option->name, ": ", option->why));
      }
      if (option->effect == kNoEffect) no_effect.push_back(given.place);
      const std::string name = given.name == "tasks-per-node" ? "ntasks-per-node" : given.name;
      values_[name] = {given.value, given.has_value, false, given.place};
    }
    if (!no_effect.empty()) {
      request_.notices.push_back(
          absl::StrCat(absl::StrJoin(no_effect, ", "),
                       no_effect.size() == 1 ? " has no effect here" : " have no effect here"));
    }
    command_ = std::move(parsed.rest);
    return absl::OkStatus();
  }

  const Value* Find(const std::string& name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : &found->second;
  }
  std::string Text(const std::string& name, const std::string& otherwise) const {
    const Value* const value = Find(name);
    return value == nullptr ? otherwise : value->text;
  }

  // A batch job's script has both variables. A job of Slurm itself has no server of Cadre.
  absl::Status TakeWithin() {
    const Value* const given = Find("jobid");
    if (given != nullptr) {
      uint64_t id = 0;
      if (!absl::SimpleAtoi(given->text, &id) || id == 0) {
        return Error(absl::StrCat("Invalid --jobid: ", given->text));
      }
      request_.within = absl::StrCat(id);
    } else if (!Lookup(environment_, "CADRE_SERVER").empty()) {
      request_.within = Lookup(environment_, "SLURM_JOB_ID");
    }
    return absl::OkStatus();
  }

  // The command line takes precedence.
  void TakeVariables() {
    std::map<std::string, Value> from_environment;
    for (const InputVariable& input : kVariables) {
      // A step is not called after its batch job.
      if (!request_.within.empty() && std::string(input.variable) == "SLURM_JOB_NAME") continue;
      const auto found = environment_.find(input.variable);
      if (found == environment_.end()) continue;
      const bool is_switch = Known(input.option)->value == kNo;
      if (is_switch ? !IsOn(found->second) : found->second.empty()) continue;
      from_environment[input.option] = {found->second, true, true, input.variable};
    }
    // A request for GPUs, or for memory, on the command line replaces all of that kind.
    for (const std::vector<std::string>& kind :
         {std::vector<std::string>{"gpus", "gpus-per-node", "gpus-per-task", "gres"},
          std::vector<std::string>{"mem", "mem-per-cpu", "mem-per-gpu"}}) {
      const bool given = std::any_of(kind.begin(), kind.end(), [this](const std::string& name) {
        return values_.count(name) != 0;
      });
      for (const std::string& name : kind) {
        if (given) from_environment.erase(name);
      }
    }
    values_.insert(from_environment.begin(), from_environment.end());
  }

  void TakeSwitches() {
    request_.label = Find("label") != nullptr;
    request_.unbuffered = Find("unbuffered") != nullptr;
    request_.quits_on_interrupt = Find("quit-on-interrupt") != nullptr;
    request_.quiet = Find("quiet") != nullptr;
    request_.verbose = Find("verbose") != nullptr;
    spec_.mutable_slurm_step()->set_overlap(Find("overlap") != nullptr);
  }

  absl::Status TakeNameAndPlace() {
    const std::string given = Text("job-name", "");
    std::string name = given.empty() ? JobNameOfProgram(command_[0]) : JobNameFrom(given);
    // A name of digits would be taken for an id.
    if (std::all_of(name.begin(), name.end(), absl::ascii_isdigit)) name = "job-" + name;
    spec_.set_name(name);
    const std::filesystem::path directory = std::filesystem::path(directory_) / Text("chdir", "");
    std::string path = directory.lexically_normal().string();
    if (path.size() > 1 && path.back() == '/') path.pop_back();
    spec_.set_working_dir(path);
    spec_.mutable_logs()->set_dir((std::filesystem::path(path) / kLogDirectory).string());
    return absl::OkStatus();
  }

  absl::Status TakeSize() {
    Size size;
    if (const Value* const given = Find("nodes")) {
      ASSIGN_OR_RETURN(const auto range, At(*given, ParseSlurmNodes(given->text)));
      std::tie(size.least_nodes, size.most_nodes) = range;
      size.nodes_set = true;
      size.nodes_from_environment = given->from_environment;
    }
    if (const Value* const given = Find("ntasks")) {
      ASSIGN_OR_RETURN(size.tasks, At(*given, ParseSlurmCount(given->text, 1)));
      size.tasks_set = true;
      size.tasks_from_environment = given->from_environment;
    }
    if (const Value* const given = Find("ntasks-per-node")) {
      ASSIGN_OR_RETURN(size.tasks_per_node, At(*given, ParseSlurmCount(given->text, 1)));
    }
    RETURN_IF_ERROR(ChooseNodes(&size));
    SettleTasks(&size);
    return SetSize(size);
  }

  // The nodes of the batch job, in their order.
  absl::StatusOr<std::vector<std::string>> NodesOfJob() const {
    const std::string list = Lookup(environment_, "SLURM_JOB_NODELIST");
    if (list.empty()) {
      return Error("SLURM_JOB_NODELIST is not set, so that the job's nodes are not known");
    }
    const absl::StatusOr<std::vector<std::string>> nodes = ExpandHosts(list);
    if (!nodes.ok()) return Error(absl::StrCat("SLURM_JOB_NODELIST: ", nodes.status().message()));
    return *nodes;
  }

  // Which nodes the step runs on, if the user chooses among those of the job.
  absl::Status ChooseNodes(Size* size) {
    const Value* const list = Find("nodelist");
    const Value* const exclude = Find("exclude");
    const Value* const relative = Find("relative");
    if (size->most_nodes > size->least_nodes) {
      // As many as there may be, of those that the job has.
      uint32_t has = size->least_nodes;
      if (!request_.within.empty() &&
          absl::SimpleAtoi(Lookup(environment_, "SLURM_NNODES"), &has)) {
        size->least_nodes = std::max(size->least_nodes, std::min(size->most_nodes, has));
      }
      size->most_nodes = size->least_nodes;
    }
    if (list == nullptr && exclude == nullptr && relative == nullptr) return absl::OkStatus();
    if (request_.within.empty()) return PlaceJob(list, exclude, relative, size);
    if (relative != nullptr && (list != nullptr || exclude != nullptr)) {
      return Error("-r,--relative not allowed with -w,--nodelist or -x,--exclude.");
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> all, NodesOfJob());
    std::vector<std::string> chosen;
    if (list != nullptr) {
      ASSIGN_OR_RETURN(chosen, At(*list, ExpandHosts(list->text)));
      RemoveRepeated(&chosen);
      if (!size->nodes_set || size->nodes_from_environment) {
        size->least_nodes = chosen.size();
        size->nodes_set = true;
        size->nodes_from_environment = false;
      }
      // The nodes that are named come first, then others of the job.
      chosen.insert(chosen.end(), all.begin(), all.end());
      RemoveRepeated(&chosen);
      if (chosen.size() > all.size()) {
        return Error(absl::StrCat(list->place, ": ", list->text, " are not all nodes of job ",
                                  request_.within, ", which has ",
                                  Lookup(environment_, "SLURM_JOB_NODELIST")));
      }
    } else {
      chosen = all;
    }
    if (relative != nullptr) {
      ASSIGN_OR_RETURN(const uint32_t first, At(*relative, ParseSlurmCount(relative->text, 0)));
      if (first >= all.size()) {
        return Error(absl::StrCat(relative->place, ": node ", first, " of a job with ",
                                  Count(all.size(), "node"), "; the first one is 0"));
      }
      chosen.erase(chosen.begin(), chosen.begin() + first);
    }
    if (exclude != nullptr) {
      ASSIGN_OR_RETURN(const std::vector<std::string> without,
                       At(*exclude, ExpandHosts(exclude->text)));
      chosen.erase(std::remove_if(chosen.begin(), chosen.end(),
                                  [&](const std::string& node) {
                                    return std::find(without.begin(), without.end(), node) !=
                                           without.end();
                                  }),
                   chosen.end());
    }
    if (size->nodes_from_environment && size->least_nodes > chosen.size() && !chosen.empty()) {
      size->least_nodes = chosen.size();
    }
    if (size->least_nodes > chosen.size()) {
      return Error(absl::StrCat("the step asks for ", Count(size->least_nodes, "node"), ", and ",
                                chosen.size(), " of job ", request_.within, " can be used"));
    }
    chosen_nodes_ = std::move(chosen);
    return absl::OkStatus();
  }

  // The nodes of a job of its own, among all of the cluster.
  absl::Status PlaceJob(const Value* list, const Value* exclude, const Value* relative,
                        Size* size) {
    if (relative != nullptr) {
      return Error(absl::StrCat(relative->place, ": is for steps of a batch job"));
    }
    v1::Placement& placement = *spec_.mutable_placement();
    if (exclude != nullptr) {
      ASSIGN_OR_RETURN(const std::vector<std::string> hosts,
                       At(*exclude, ParseSlurmHosts(exclude->text)));
      placement.mutable_exclude()->Assign(hosts.begin(), hosts.end());
    }
    if (list == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::vector<std::string> hosts, At(*list, ParseSlurmHosts(list->text)));
    placement.mutable_nodes()->Assign(hosts.begin(), hosts.end());
    if (!size->nodes_set) {
      size->least_nodes = size->most_nodes = hosts.size();
      size->nodes_set = hosts.size() > 1;
    }
    if (hosts.size() <= size->least_nodes) return absl::OkStatus();
    return Error(absl::StrCat(list->place, ": names ", Count(hosts.size(), "node"),
                              ", and the job has ", size->least_nodes));
  }

  static void RemoveRepeated(std::vector<std::string>* nodes) {
    std::set<std::string> seen;
    nodes->erase(
        std::remove_if(nodes->begin(), nodes->end(),
                       [&seen](const std::string& node) { return !seen.insert(node).second; }),
        nodes->end());
  }

  // The rules of srun's own _opt_verify().
  void SettleTasks(Size* size) {
    if (size->nodes_set && size->tasks_per_node == 0 && !size->tasks_set) {
      size->tasks = size->least_nodes;
    } else if (size->nodes_set && size->tasks_set) {
      if (size->tasks < size->least_nodes) {
        request_.notices.push_back(absl::StrCat("warning: can't run ", size->tasks,
                                                " processes on ", size->least_nodes,
                                                " nodes, setting nnodes to ", size->tasks));
        size->least_nodes = size->tasks;
        size->nodes_from_environment = false;
      }
      if (size->tasks_per_node != 0 && size->tasks_from_environment &&
          !size->nodes_from_environment) {
        size->tasks_set = false;
      } else if (size->tasks_per_node != 0 &&
                 size->tasks_per_node != size->tasks / size->least_nodes) {
        if (size->tasks > size->tasks_per_node) {
          request_.notices.push_back(
              absl::StrCat("warning: can't honor --ntasks-per-node set to ", size->tasks_per_node,
                           " which doesn't match the requested tasks ", size->tasks,
                           " with the number of requested nodes ", size->least_nodes,
                           ". Ignoring --ntasks-per-node."));
        }
        size->tasks_per_node = 0;
      }
    } else if (size->tasks_set && size->tasks_per_node != 0) {
      // As many nodes as the tasks need.
      size->least_nodes = (size->tasks + size->tasks_per_node - 1) / size->tasks_per_node;
    }
    if (size->tasks_per_node != 0 && !size->tasks_set) {
      size->tasks = size->least_nodes * size->tasks_per_node;
    }
  }

  absl::Status SetSize(const Size& size) {
    const uint32_t nodes = size.least_nodes;
    if (size.tasks % nodes != 0) {
      return Error(absl::StrCat(size.tasks, " tasks on ", nodes,
                                " nodes are not the same number on each node, which is not "
                                "supported yet; ask for a multiple of ",
                                nodes, " with --ntasks, or for other nodes with --nodes"));
    }
    tasks_per_node_ = size.tasks / nodes;
    nodes_ = nodes;
    spec_.mutable_nodes()->set_min(nodes);
    spec_.mutable_nodes()->set_max(nodes);
    spec_.mutable_workers_per_node()->set_kind(v1::WorkersPerNode::COUNT);
    spec_.mutable_workers_per_node()->set_count(tasks_per_node_);
    for (uint32_t i = 0; i < chosen_nodes_.size() && (Find("exclude") != nullptr || i < nodes);
         ++i) {
      spec_.mutable_slurm_step()->add_nodes(chosen_nodes_[i]);
    }
    return absl::OkStatus();
  }

  // Tasks share the CPUs of their node as the job's own tasks would; if these were given more than
  // the step's tasks can have, each gets an equal share.
  absl::Status TakeCpus() {
    uint32_t cpus = 0;
    if (const Value* const given = Find("cpus-per-task")) {
      ASSIGN_OR_RETURN(cpus, At(*given, ParseSlurmCount(given->text, 1)));
    } else if (!request_.within.empty() &&
               absl::SimpleAtoi(Lookup(environment_, "SLURM_CPUS_PER_TASK"), &cpus)) {
      uint32_t here = 0;
      if (absl::SimpleAtoi(Lookup(environment_, "SLURM_CPUS_ON_NODE"), &here) && here > 0 &&
          uint64_t{cpus} * tasks_per_node_ > here) {
        cpus = std::max<uint32_t>(here / tasks_per_node_, 1);
      }
    }
    spec_.mutable_resources()->set_cpus_per_worker(cpus);
    return absl::OkStatus();
  }

  absl::Status TakeGpus() {
    if (const Value* const given = Find("gpus-per-task")) {
      ASSIGN_OR_RETURN(const uint32_t gpus, At(*given, ParseSlurmGpus(given->text)));
      uint32_t here = 0;
      const bool too_many = given->from_environment &&
                            absl::SimpleAtoi(Lookup(environment_, "SLURM_GPUS_ON_NODE"), &here) &&
                            uint64_t{gpus} * tasks_per_node_ > here;
      if (too_many) return SpreadGpus(here);
      spec_.mutable_resources()->set_gpus_per_worker(gpus);
      return absl::OkStatus();
    }
    if (const Value* const given = Find("gpus-per-node")) {
      ASSIGN_OR_RETURN(const uint32_t gpus, At(*given, ParseSlurmGpus(given->text)));
      return SpreadGpus(gpus);
    }
    if (const Value* const given = Find("gres")) {
      ASSIGN_OR_RETURN(const uint32_t gpus, At(*given, ParseSlurmGres(given->text)));
      return SpreadGpus(gpus);
    }
    if (const Value* const given = Find("gpus")) {
      ASSIGN_OR_RETURN(const uint32_t gpus, At(*given, ParseSlurmGpus(given->text)));
      if (gpus % nodes_ != 0) {
        return Error(absl::StrCat(given->place, ": ", gpus, " GPUs cannot be the same number on ",
                                  Count(nodes_, "node"), "; use --gpus-per-node"));
      }
      return SpreadGpus(gpus / nodes_);
    }
    uint32_t here = 0;
    if (request_.within.empty() ||
        !absl::SimpleAtoi(Lookup(environment_, "SLURM_GPUS_ON_NODE"), &here)) {
      return absl::OkStatus();
    }
    return SpreadGpus(here);
  }

  // Gives each task as many of a node's GPUs as the others. All tasks of a node see all of these.
  absl::Status SpreadGpus(uint32_t on_node) {
    const uint32_t each = on_node / tasks_per_node_;
    spec_.mutable_resources()->set_gpus_per_worker(each);
    if (each * tasks_per_node_ == on_node) return absl::OkStatus();
    request_.notices.push_back(
        absl::StrCat("warning: ", Count(on_node, "GPU"), " of a node cannot be divided among ",
                     Count(tasks_per_node_, "task"), ": the step gets ",
                     each == 0 ? "none" : absl::StrCat(each * tasks_per_node_, " of them"),
                     each == 0 ? "; start fewer tasks on each node" : ""));
    return absl::OkStatus();
  }

  absl::Status TakeCpusPerGpu() {
    const Value* const given = Find("cpus-per-gpu");
    if (given == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(const uint32_t cpus, At(*given, ParseSlurmCount(given->text, 1)));
    const uint64_t each = uint64_t{cpus} * spec_.resources().gpus_per_worker();
    if (each == 0 || each > 65536) {
      return Error(absl::StrCat(given->place, ": ", each, " CPUs for a task"));
    }
    spec_.mutable_resources()->set_cpus_per_worker(each);
    return absl::OkStatus();
  }

  absl::Status TakeMemory() {
    uint64_t each = 0;
    if (const Value* const given = Find("mem")) {
      ASSIGN_OR_RETURN(const uint64_t on_node, At(*given, ParseSlurmMemory(given->text)));
      each = on_node / tasks_per_node_;
    } else if (const Value* const of_cpu = Find("mem-per-cpu")) {
      ASSIGN_OR_RETURN(each, At(*of_cpu, ParseSlurmMemory(of_cpu->text)));
      each *= std::max<uint32_t>(spec_.resources().cpus_per_worker(), 1);
    } else if (const Value* const of_gpu = Find("mem-per-gpu")) {
      ASSIGN_OR_RETURN(each, At(*of_gpu, ParseSlurmMemory(of_gpu->text)));
      each *= spec_.resources().gpus_per_worker();
    }
    spec_.mutable_resources()->set_memory_per_worker(each);
    return absl::OkStatus();
  }

  absl::Status TakeStreams() {
    v1::LogPolicy& logs = *spec_.mutable_logs();
    const std::string input = Text("input", "none");
    if (input != "none" && input != "/dev/null") {
      return Error(absl::StrCat(
          "--input: only none and /dev/null: tasks have no standard input, got '", input, "'"));
    }
    const std::string output = Text("output", "all"), errors = Text("error", "");
    uint32_t task = 0;
    if (absl::SimpleAtoi(output, &task)) {
      if (task >= uint64_t{nodes_} * tasks_per_node_) {
        return Error(absl::StrCat("--output: the step has no task ", task));
      }
      request_.only_task = task;
    } else if (output == "none") {
      logs.set_stdout_file("/dev/null");
    } else if (output != "all") {
      logs.set_stdout_file(output);
    }
    const bool to_file = !logs.stdout_file().empty();
    request_.shows_output = !to_file;
    // Without --error both streams go where --output says.
    request_.shows_errors = !to_file && (errors.empty() || errors == "all");
    if (to_file && errors == "all") {
      return Error("--error=all: not yet if --output names a file; name one with --error, too");
    }
    if (errors == "none") {
      logs.set_stderr_file("/dev/null");
    } else if (errors != "all") {
      logs.set_stderr_file(errors);
    }
    if (const Value* const given = Find("open-mode")) {
      const std::string mode = absl::AsciiStrToLower(given->text);
      if (mode != "append" && mode != "truncate" && mode != "a" && mode != "t") {
        return Error(
            absl::StrCat(given->place, ": expected append or truncate, got '", given->text, "'"));
      }
      logs.set_append(mode[0] == 'a');
    }
    return absl::OkStatus();
  }

  absl::Status TakeTime() {
    const Value* const given = Find("time");
    if (given == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(const absl::Duration limit, At(*given, ParseSlurmTime(given->text)));
    if (limit != absl::InfiniteDuration()) {
      *spec_.mutable_timeouts()->mutable_total() = ToProto(limit);
    }
    return absl::OkStatus();
  }

  absl::Status TakeSignal() {
    const Value* const given = Find("signal");
    if (given == nullptr) return absl::OkStatus();
    // "B:" means nothing for tasks, as there is no script.
    ASSIGN_OR_RETURN(const SlurmWarning warning, At(*given, ParseSlurmWarning(given->text)));
    *spec_.mutable_timeouts()->mutable_warning() = ToProto(warning.before);
    spec_.mutable_timeouts()->set_warning_signal(warning.signal);
    if (!spec_.timeouts().has_total()) {
      request_.notices.push_back(absl::StrCat(given->place, ": no signal is sent, as the ",
                                              request_.within.empty() ? "job" : "step",
                                              " has no limit (--time)"));
    }
    return absl::OkStatus();
  }

  absl::Status TakeConstraint() {
    const Value* const given = Find("constraint");
    if (given == nullptr) return absl::OkStatus();
    if (!request_.within.empty()) {
      return Error(absl::StrCat(
          given->place, ": the nodes of a step are those of its batch job; use --nodelist"));
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> labels,
                     At(*given, ParseSlurmConstraint(given->text)));
    spec_.mutable_placement()->mutable_labels()->Assign(labels.begin(), labels.end());
    return absl::OkStatus();
  }

  absl::Status TakeOthers() {
    if (const Value* const given = Find("mpi")) {
      static const auto* const kinds = new std::set<std::string>{
          "none", "pmi2", "pmix", "pmix_v2", "pmix_v3", "pmix_v4", "pmix_v5"};
      if (kinds->count(given->text) == 0) {
        return Error(absl::StrCat("--mpi: expected none, pmi2 or pmix, got '", given->text, "'"));
      }
      if (given->text != "none") {
        request_.notices.push_back(
            absl::StrCat("--mpi=", given->text,
                         " has no effect here: a program that calls MPI_Init is alone in its "
                         "world, and torch.distributed and NCCL need no MPI"));
      }
    }
    if (const Value* const given = Find("kill-on-bad-exit")) {
      uint32_t kills = 1;
      if (given->has_text && (!absl::SimpleAtoi(given->text, &kills) || kills > 1)) {
        return Error(absl::StrCat("Invalid --kill-on-bad-exit specification: ", given->text));
      }
      if (kills == 0 && !given->from_environment) {
        request_.notices.push_back(
            "--kill-on-bad-exit=0 has no effect here: when a task fails, the others are ended");
      }
    }
    if (request_.quiet && request_.verbose) {
      return Error("don't specify both --verbose (-v) and --quiet (-Q)");
    }
    return absl::OkStatus();
  }

  const Environment& environment_;
  const std::string& directory_;
  std::map<std::string, Value> values_;
  std::vector<std::string> command_;
  std::vector<std::string> chosen_nodes_;
  uint32_t nodes_ = 1;
  uint32_t tasks_per_node_ = 1;
  v1::JobSpec spec_;
  SrunRequest request_;
};

// Whether the variable describes the processes of the step or of the node in which srun runs.
bool IsOfThisStep(absl::string_view name) {
  for (const char* const own :
       {"CUDA_VISIBLE_DEVICES", "XDG_RUNTIME_DIR", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}) {
    if (name == own) return true;
  }
  return IsLauncherVariable(name) || absl::StartsWith(name, "CADRE_") ||
         absl::StartsWith(name, "TORCHELASTIC_") || !CheckVariableName(name).ok();
}

}  // namespace

absl::StatusOr<SrunRequest> ReadSrun(const std::vector<std::string>& arguments,
                                     const Environment& environment, const std::string& directory) {
  return Reader(environment, directory).Read(arguments);
}

std::map<std::string, std::string> ExportedVariables(const Environment& environment,
                                                     absl::string_view exported,
                                                     std::vector<std::string>* notices) {
  std::map<std::string, std::string> variables;
  std::vector<std::string> no_text;
  const auto add = [&](const std::string& name, const std::string& value) {
    if (IsUtf8(name) && IsUtf8(value)) {
      variables[name] = value;
    } else {
      no_text.push_back(absl::CHexEscape(name));
    }
  };
  for (const std::string& item : SplitQuoted(exported)) {
    const size_t equals = item.find('=');
    if (item.empty() || absl::EqualsIgnoreCase(item, "NONE") ||
        absl::EqualsIgnoreCase(item, "NIL")) {
      continue;
    }
    if (absl::EqualsIgnoreCase(item, "ALL")) {
      for (const auto& [name, value] : environment) {
        if (!IsOfThisStep(name)) add(name, value);
      }
    } else if (equals != item.npos) {
      if (CheckVariableName(item.substr(0, equals)).ok()) {
        add(item.substr(0, equals), item.substr(equals + 1));
      }
    } else if (environment.count(item) != 0 && CheckVariableName(item).ok()) {
      add(item, environment.at(item));
    }
  }
  if (!no_text.empty()) {
    notices->push_back(absl::StrCat("left out variables that are not UTF-8 text: ",
                                    FirstFew(no_text, no_text.size())));
  }
  return variables;
}

std::string SrunUsage() {
  return "Usage: srun [-N nnodes] [-n ntasks] [--ntasks-per-node n] [-c ncpus] [--gpus n]\n"
         "            [--gpus-per-node n] [--gpus-per-task n] [--gres gpu:n] [--mem MB] [-w "
         "hosts]\n"
         "            [-x hosts] [-r n] [-o out] [-e err] [-l] [-u] [-D path] [-J name] [-t "
         "minutes]\n"
         "            [--export vars] [--overlap] [--jobid id] [-Q|-v] executable [args...]\n";
}

std::string SrunHelp() {
  return absl::StrCat(
      SrunUsage(),
      "\n"
      "Runs a program on a cluster of Cadre: inside a batch job (sbatch) as a step on the job's\n"
      "nodes, otherwise as a job of its own; shows its output, and exits with its exit status.\n"
      "\n"
      "  -N, --nodes=N               number of nodes [those of the job]\n"
      "  -n, --ntasks=N              number of tasks, a multiple of the nodes [one for each node]\n"
      "      --ntasks-per-node=N     number of tasks on each node\n"
      "  -c, --cpus-per-task=N       CPUs for each task\n"
      "  -G, --gpus=N                GPUs of all nodes together [those of the job]\n"
      "      --gpus-per-node=N       GPUs of each node; --gres=gpu:N is the same\n"
      "      --gpus-per-task=N       GPUs for each task\n"
      "      --mem=MB                memory on each node; also --mem-per-cpu, --mem-per-gpu\n"
      "  -w, --nodelist=HOSTS        nodes of the job to run on; -x, --exclude=HOSTS: not on "
      "these\n"
      "  -C, --constraint=LABELS     outside of a batch job: labels that each node has\n"
      "  -r, --relative=N            begin with the node of this number, the first one being 0\n"
      "      --overlap               use what other steps use at the same time\n"
      "  -o, --output=FILE           file for output: %j job, %s step, %t task, %N node, ...\n"
      "  -e, --error=FILE            file for standard error [as --output]\n"
      "      --open-mode=append|truncate\n"
      "  -l, --label                 the number of the task in front of each line\n"
      "  -u, --unbuffered            show output before its line is complete\n"
      "  -D, --chdir=PATH            directory in which tasks start\n"
      "      --export=ALL|NONE|VARS  variables that tasks get [ALL]\n"
      "  -J, --job-name=NAME         name of the step [that of the program]\n"
      "  -t, --time=TIME             time limit\n"
      "      --signal=SIG[@SECONDS]  send this signal so long before the limit [60]\n"
      "      --jobid=ID              run in this batch job\n"
      "  -Q, --quiet; -v, --verbose\n"
      "\n"
      "Options of Slurm's srun that are not listed are accepted if the step is the same without\n"
      "them. 'cadre help slurm' names the other commands of Slurm.\n");
}

}  // namespace cadre::launcher
