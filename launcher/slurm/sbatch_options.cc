#include "launcher/slurm/sbatch_options.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace cadre::launcher {
namespace {

constexpr OptionValue kNo = OptionValue::kNone;
constexpr OptionValue kYes = OptionValue::kRequired;
constexpr OptionValue kMaybe = OptionValue::kOptional;

constexpr SbatchEffect kMapped = SbatchEffect::kMapped;
constexpr SbatchEffect kSame = SbatchEffect::kSame;
constexpr SbatchEffect kAccepted = SbatchEffect::kAccepted;
constexpr SbatchEffect kRefused = SbatchEffect::kRefused;

constexpr char kNoSockets[] =
    "sockets and cores are not counted; ask for CPUs with --cpus-per-task, or leave it out";
constexpr char kNoBurstBuffers[] = "there are no burst buffers; copy the files in the script";
constexpr char kNoPlacing[] = "the server chooses the nodes, without regard to it";
constexpr char kNoBinding[] = "tasks are not bound by it";
constexpr char kNoMail[] = "no mail is sent";
constexpr char kNoReserve[] = "no processors are set aside";

const SbatchFlag kFlags[] = {
    {"account", 'A', kYes, kAccepted, "SBATCH_ACCOUNT", nullptr, "no account is charged"},
    {"acctg-freq", '\0', kYes, kAccepted, "SBATCH_ACCTG_FREQ", nullptr,
     "Cadre chooses how often it measures"},
    {"array", 'a', kYes, kMapped, "SBATCH_ARRAY_INX", "INDICES",
     "A job for each index: 0-9, 1,3,5-9:2, 0-9%3 (3 at a time)."},
    {"batch", '\0', kYes, kRefused, "SBATCH_BATCH", nullptr,
     "the script runs on the first node; say with --constraint what all nodes must have"},
    {"bb", '\0', kYes, kRefused, nullptr, nullptr, kNoBurstBuffers},
    {"bbf", '\0', kYes, kRefused, nullptr, nullptr, kNoBurstBuffers},
    {"begin", 'b', kYes, kMapped, nullptr, "TIME",
     "Not before this time: 2026-12-01T08:00, 16:30, now+1hour."},
    {"chdir", 'D', kYes, kMapped, nullptr, "DIR", "Directory in which the script starts [here]."},
    {"cluster-constraint", '\0', kYes, kAccepted, nullptr, nullptr, "there is one cluster"},
    {"clusters", 'M', kYes, kRefused, "SBATCH_CLUSTERS", nullptr,
     "the cluster is that of the server (CADRE_SERVER); leave it out"},
    {"comment", '\0', kYes, kAccepted, nullptr, nullptr, "comments are not kept"},
    {"constraint", 'C', kYes, kMapped, "SBATCH_CONSTRAINT", "LABELS",
     "Labels that each node has: \"a&b\", \"a|b\"."},
    {"container", '\0', kYes, kRefused, "SBATCH_CONTAINER", nullptr,
     "containers are not started yet; start the container in the script"},
    {"contiguous", '\0', kNo, kAccepted, nullptr, nullptr, kNoPlacing},
    {"core-spec", 'S', kYes, kAccepted, "SBATCH_CORE_SPEC", nullptr, kNoReserve},
    {"cores-per-socket", '\0', kYes, kRefused, nullptr, nullptr, kNoSockets},
    {"cpu-freq", '\0', kYes, kAccepted, "SBATCH_CPU_FREQ_REQ", nullptr,
     "frequencies are not changed"},
    {"cpus-per-gpu", '\0', kYes, kMapped, "SBATCH_CPUS_PER_GPU", "N", "CPUs for each GPU."},
    {"cpus-per-task", 'c', kYes, kMapped, "SBATCH_CPUS_PER_TASK", "N", "CPUs for each task [1]."},
    {"deadline", '\0', kYes, kMapped, nullptr, "TIME",
     "Cancel the job if it has not ended by this time."},
    {"delay-boot", '\0', kYes, kAccepted, "SBATCH_DELAY_BOOT", nullptr, "nodes are not booted"},
    {"dependency", 'd', kYes, kMapped, nullptr, "afterok:ID,...",
     "Jobs that it waits for; also afterany, afternotok, ..."},
    {"distribution", 'm', kYes, kAccepted, "SBATCH_DISTRIBUTION", nullptr,
     "tasks fill one node after the other"},
    {"error", 'e', kYes, kMapped, "SBATCH_ERROR", "FILE",
     "File for the script's standard error [that of its output]."},
    {"exclude", 'x', kYes, kMapped, nullptr, "HOSTS", "Nodes that the job is not to have."},
    {"exclusive", '\0', kMaybe, kAccepted, "SBATCH_EXCLUSIVE", nullptr,
     "other jobs may get what the job does not ask for on its nodes"},
    {"export", '\0', kYes, kMapped, "SBATCH_EXPORT", "ALL|NONE|NAME[=VALUE],...",
     "Which variables of this environment the job has [ALL]."},
    {"export-file", '\0', kYes, kRefused, nullptr, nullptr,
     "not yet; name the variables with --export, or read the file in the script"},
    {"extra", '\0', kYes, kAccepted, nullptr, nullptr, kNoPlacing},
    {"extra-node-info", 'B', kYes, kRefused, nullptr, nullptr, kNoSockets},
    {"get-user-env", '\0', kMaybe, kAccepted, "SBATCH_GET_USER_ENV", nullptr,
     "the job has the variables that --export says"},
    {"gid", '\0', kYes, kRefused, nullptr, nullptr,
     "a job has the groups of its user; leave it out"},
    {"gpu-bind", '\0', kYes, kAccepted, "SBATCH_GPU_BIND", nullptr,
     "each task sees the GPUs that were asked for it"},
    {"gpu-freq", '\0', kYes, kAccepted, "SBATCH_GPU_FREQ", nullptr, "frequencies are not changed"},
    {"gpus", 'G', kYes, kMapped, "SBATCH_GPUS", "N", "GPUs of all nodes together."},
    {"gpus-per-node", '\0', kYes, kMapped, "SBATCH_GPUS_PER_NODE", "N",
     "GPUs of each node, a multiple of its tasks."},
    {"gpus-per-socket", '\0', kYes, kRefused, nullptr, nullptr,
     "sockets are not counted; use --gpus-per-node"},
    {"gpus-per-task", '\0', kYes, kMapped, "SBATCH_GPUS_PER_TASK", "N", "GPUs for each task."},
    {"gres", '\0', kYes, kMapped, "SBATCH_GRES", "gpu:N", "The same as --gpus-per-node=N."},
    {"gres-flags", '\0', kYes, kAccepted, "SBATCH_GRES_FLAGS", nullptr, kNoBinding},
    {"help", 'h', kNo, kMapped, nullptr, nullptr, "Show this help."},
    {"hint", '\0', kYes, kAccepted, "SBATCH_HINT", nullptr, kNoBinding},
    {"hold", 'H', kNo, kMapped, nullptr, "", "Wait until 'scontrol release' releases it."},
    {"ignore-pbs", '\0', kNo, kSame, "SBATCH_IGNORE_PBS", nullptr, ""},
    {"input", 'i', kYes, kRefused, "SBATCH_INPUT", nullptr,
     "the script has no standard input yet; begin it with 'exec < FILE'"},
    {"job-name", 'J', kYes, kMapped, "SBATCH_JOB_NAME", "NAME",
     "Name of the job [that of the script]."},
    {"kill-on-invalid-dep", '\0', kYes, kMapped, nullptr, "yes|no",
     "Cancel it if they can never be met [yes]."},
    {"licenses", 'L', kYes, kRefused, nullptr, nullptr,
     "licenses are not counted yet; leave it out"},
    {"mail-type", '\0', kYes, kAccepted, nullptr, nullptr, kNoMail},
    {"mail-user", '\0', kYes, kAccepted, nullptr, nullptr, kNoMail},
    {"mcs-label", '\0', kYes, kAccepted, nullptr, nullptr, "there are no such labels"},
    {"mem", '\0', kYes, kMapped, "SBATCH_MEM_PER_NODE", "SIZE",
     "Memory of each node: 4096 (MiB), 16G; 0: as much as there is."},
    {"mem-bind", '\0', kYes, kAccepted, "SBATCH_MEM_BIND", nullptr, kNoBinding},
    {"mem-per-cpu", '\0', kYes, kMapped, "SBATCH_MEM_PER_CPU", "SIZE", "Memory for each CPU."},
    {"mem-per-gpu", '\0', kYes, kMapped, "SBATCH_MEM_PER_GPU", "SIZE", "Memory for each GPU."},
    {"mincpus", '\0', kYes, kMapped, nullptr, "N", "CPUs of each node, at least."},
    {"network", '\0', kYes, kAccepted, "SBATCH_NETWORK", nullptr, "networks are not chosen by it"},
    {"nice", '\0', kMaybe, kMapped, nullptr, "N", "Lower the priority by this much [100]."},
    {"no-kill", 'k', kMaybe, kAccepted, "SBATCH_NO_KILL", nullptr,
     "it does not change what happens when a node is lost"},
    {"no-requeue", '\0', kNo, kMapped, "SBATCH_NO_REQUEUE", "",
     "The job fails when it loses a node."},
    {"nodefile", 'F', kYes, kRefused, nullptr, nullptr, "not yet; name the nodes with --nodelist"},
    {"nodelist", 'w', kYes, kMapped, nullptr, "HOSTS", "Nodes that are among those of the job."},
    {"nodes", 'N', kYes, kMapped, nullptr, "N", "Nodes [1, or as many as the tasks need]."},
    {"ntasks", 'n', kYes, kMapped, nullptr, "N", "Tasks of all nodes together [one on each]."},
    {"ntasks-per-core", '\0', kYes, kAccepted, nullptr, nullptr, kNoBinding},
    {"ntasks-per-gpu", '\0', kYes, kMapped, nullptr, "1", "A task for each GPU."},
    {"ntasks-per-node", '\0', kYes, kMapped, nullptr, "N", "Tasks on each node [1]."},
    {"ntasks-per-socket", '\0', kYes, kAccepted, nullptr, nullptr, kNoBinding},
    {"ntasks-per-tres", '\0', kYes, kRefused, nullptr, nullptr,
     "not yet; use --ntasks-per-node and --gpus-per-task"},
    {"open-mode", '\0', kYes, kMapped, "SBATCH_OPEN_MODE", "append|truncate",
     "Whether these files keep what they have [truncate]."},
    {"output", 'o', kYes, kMapped, "SBATCH_OUTPUT", "FILE",
     "File for the script's output, as a pattern [slurm-%j.out]."},
    {"overcommit", 'O', kNo, kAccepted, "SBATCH_OVERCOMMIT", nullptr,
     "each task is counted with CPUs of its own"},
    {"oversubscribe", 's', kNo, kAccepted, nullptr, nullptr,
     "what a job has been given is its own"},
    {"parsable", '\0', kNo, kMapped, nullptr, "", "Print the id of the job alone."},
    {"partition", 'p', kYes, kAccepted, "SBATCH_PARTITION", nullptr,
     "all nodes are in one partition"},
    {"power", '\0', kYes, kAccepted, "SBATCH_POWER", nullptr, "power is not managed"},
    {"prefer", '\0', kYes, kAccepted, nullptr, nullptr, kNoPlacing},
    {"priority", '\0', kYes, kMapped, nullptr, "N", "Higher is placed first; 0: as --hold."},
    {"profile", '\0', kYes, kAccepted, "SBATCH_PROFILE", nullptr,
     "'cadre dashboard' shows how busy the nodes are"},
    {"propagate", '\0', kMaybe, kAccepted, nullptr, nullptr, "the job has the limits of its node"},
    {"qos", 'q', kYes, kAccepted, "SBATCH_QOS", nullptr, "there are no classes of service"},
    {"quiet", 'Q', kNo, kMapped, nullptr, "", "Print nothing but errors."},
    {"reboot", '\0', kNo, kAccepted, nullptr, nullptr, "nodes are not booted"},
    {"requeue", '\0', kNo, kMapped, "SBATCH_REQUEUE", "",
     "Begin again on other nodes when one is lost [so]."},
    {"reservation", '\0', kYes, kRefused, "SBATCH_RESERVATION", nullptr,
     "there are no reservations yet; leave it out"},
    {"signal", '\0', kYes, kMapped, "SBATCH_SIGNAL", "[B:]SIG[@S]",
     "Signal S seconds before the limit [60]; B: to the script."},
    {"sockets-per-node", '\0', kYes, kRefused, nullptr, nullptr, kNoSockets},
    {"spread-job", '\0', kNo, kAccepted, "SBATCH_SPREAD_JOB", nullptr, kNoPlacing},
    {"switches", '\0', kYes, kAccepted, "SBATCH_REQ_SWITCH", nullptr, kNoPlacing},
    {"tasks-per-node", '\0', kYes, kMapped, nullptr, nullptr, "The same as --ntasks-per-node."},
    {"test-only", '\0', kNo, kMapped, nullptr, "", "Check the job, and do not submit it."},
    {"thread-spec", '\0', kYes, kAccepted, "SBATCH_THREAD_SPEC", nullptr, kNoReserve},
    {"threads-per-core", '\0', kYes, kAccepted, "SBATCH_THREADS_PER_CORE", nullptr, kNoBinding},
    {"time", 't', kYes, kMapped, "SBATCH_TIMELIMIT", "TIME",
     "Limit for the whole job: 30 (minutes), 1:30:00, 2-12 (days-hours)."},
    {"time-min", '\0', kYes, kAccepted, nullptr, nullptr, "the limit is that of --time"},
    {"tmp", '\0', kYes, kAccepted, nullptr, nullptr, "space on disks is not counted"},
    {"tres-per-task", '\0', kYes, kRefused, nullptr, nullptr,
     "not yet; use --gpus-per-task and --cpus-per-task"},
    {"uid", '\0', kYes, kRefused, nullptr, nullptr,
     "a job runs as the user of CADRE_TOKEN_FILE; leave it out"},
    {"usage", '\0', kNo, kMapped, nullptr, nullptr, "Show a short help."},
    {"use-min-nodes", '\0', kNo, kSame, "SBATCH_USE_MIN_NODES", nullptr, ""},
    {"verbose", 'v', kNo, kSame, "SBATCH_DEBUG", nullptr, ""},
    {"version", 'V', kNo, kMapped, nullptr, nullptr, "Show the version."},
    {"wait", 'W', kNo, kMapped, "SBATCH_WAIT", "",
     "Wait until the job has ended; exit with its status."},
    {"wait-all-nodes", '\0', kYes, kSame, "SBATCH_WAIT_ALL_NODES", nullptr, ""},
    {"wckey", '\0', kYes, kAccepted, "SBATCH_WCKEY", nullptr, "nothing is charged"},
    {"wrap", '\0', kYes, kMapped, nullptr, "COMMAND", "Run this line in /bin/sh as the script."},
};

const SbatchFlag& FlagOf(const std::string& name) {
  for (const SbatchFlag& flag : kFlags) {
    if (name == flag.name) return flag;
  }
  return kFlags[0];
}

}  // namespace

const std::vector<SbatchFlag>& SbatchFlags() {
  static const auto* const flags =
      new std::vector<SbatchFlag>(std::begin(kFlags), std::end(kFlags));
  return *flags;
}

const std::vector<Option>& SbatchTable() {
  static const auto* const table = [] {
    auto* const all = new std::vector<Option>;
    for (const SbatchFlag& flag : kFlags) all->push_back({flag.name, flag.short_name, flag.value});
    return all;
  }();
  return *table;
}

// The script.

namespace {

absl::Status Error(absl::string_view text) { return absl::InvalidArgumentError(text); }

absl::Status ErrorAtLine(absl::string_view file, size_t line, absl::string_view text) {
  return Error(absl::StrCat(file, ":", line, ": ", text));
}

// Splits the rest of an "#SBATCH" line into words as sbatch does: both kinds of quotes, a backslash
// before a single character, and a comment at the end.
class WordSplitter {
 public:
  explicit WordSplitter(absl::string_view line) : line_(line) {}

  absl::StatusOr<std::vector<std::string>> Split() {
    while (SkipBlanks()) {
      if (line_[next_] == '#') break;
      if (line_[next_] == ':') {
        return Error("':' stands between the parts of a heterogeneous job; there are none here");
      }
      RETURN_IF_ERROR(TakeWord());
    }
    return std::move(words_);
  }

 private:
  // Returns false at the end of the line.
  bool SkipBlanks() {
    while (next_ < line_.size() && absl::ascii_isspace(line_[next_])) ++next_;
    return next_ < line_.size();
  }

  absl::Status TakeWord() {
    std::string word;
    bool quoted = false;
    char quote = '\0';
    for (; next_ < line_.size(); ++next_) {
      const char c = line_[next_];
      if (c == '\\') {
        // In front of a blank outside of quotes it means nothing, as for sbatch.
        const bool ends =
            next_ + 1 == line_.size() || (quote == '\0' && absl::ascii_isspace(line_[next_ + 1]));
        if (!ends) word += line_[++next_];
      } else if (quote != '\0') {
        if (c == quote) {
          quote = '\0';
        } else {
          word += c;
        }
      } else if (c == '"' || c == '\'') {
        quote = c;
        quoted = true;
      } else if (absl::ascii_isspace(c) || c == '#') {
        break;
      } else {
        word += c;
      }
    }
    if (quote != '\0') {
      return Error(
          absl::StrCat("the quotation mark ", std::string(1, quote), " has no second one"));
    }
    // A backslash at the end of the line is not a word.
    if (quoted || !word.empty()) words_.push_back(std::move(word));
    return absl::OkStatus();
  }

  const absl::string_view line_;
  size_t next_ = 0;
  std::vector<std::string> words_;
};

absl::Status CheckWords(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (!IsUtf8(word)) {
      return Error(absl::StrCat("'", absl::CHexEscape(word), "' is not UTF-8 text"));
    }
    if (word == "hetjob" || word == "packjob") {
      return Error("there are no heterogeneous jobs; submit a job for each of the parts");
    }
  }
  return absl::OkStatus();
}

// Options that are of no use in a script.
bool IsForCommandLine(const std::string& name) {
  return name == "help" || name == "usage" || name == "version" || name == "wrap";
}

absl::StatusOr<std::vector<GivenOption>> ReadLine(absl::string_view line) {
  ASSIGN_OR_RETURN(const std::vector<std::string> words, WordSplitter(line).Split());
  RETURN_IF_ERROR(CheckWords(words));
  ASSIGN_OR_RETURN(ParsedOptions parsed, ParseOptions(words, SbatchTable()));
  if (!parsed.rest.empty()) {
    return Error(absl::StrCat(Quoted(parsed.rest[0]),
                              " is no option; in a line of #SBATCH there are only options"));
  }
  for (const GivenOption& option : parsed.options) {
    if (!IsForCommandLine(option.name)) continue;
    return Error(absl::StrCat(option.place, " is for the command line of sbatch alone"));
  }
  return std::move(parsed.options);
}

}  // namespace

absl::Status CheckBatchScript(absl::string_view script, absl::string_view file) {
  if (absl::StripAsciiWhitespace(script).empty()) {
    return Error(absl::StrCat(file, ": the batch script is empty"));
  }
  const absl::string_view first = script.substr(0, script.find('\n'));
  if (!absl::StartsWith(first, "#!")) {
    return Error(absl::StrCat(
        file, ": this is no batch script: its first line must begin with '#!', as #!/bin/bash"));
  }
  if (absl::StripAsciiWhitespace(first.substr(2)).empty()) {
    return ErrorAtLine(file, 1, "no interpreter is named after '#!', as in #!/bin/bash");
  }
  size_t number = 0;
  for (const absl::string_view line : absl::StrSplit(script, '\n')) {
    ++number;
    if (absl::StrContains(line, '\0')) {
      return ErrorAtLine(file, number, "a batch script cannot have NUL characters");
    }
    if (absl::EndsWith(line, "\r")) {
      return ErrorAtLine(file, number,
                         "the line ends with a DOS line break (\\r\\n); to change them all: "
                         "sed -i 's/\\r$//' FILE");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<GivenOption>> ReadSbatchLines(absl::string_view script,
                                                         absl::string_view file,
                                                         std::vector<std::string>* notices) {
  std::vector<GivenOption> all;
  size_t number = 0, other_schedulers = 0;
  for (absl::string_view line : absl::StrSplit(script, '\n')) {
    ++number;
    const absl::string_view text = absl::StripLeadingAsciiWhitespace(line);
    if (!text.empty() && text[0] != '#') break;
    if (absl::StartsWith(line, "#PBS") || absl::StartsWith(line, "#BSUB")) {
      if (other_schedulers == 0) other_schedulers = number;
    }
    if (!absl::ConsumePrefix(&line, "#SBATCH")) continue;
    absl::StatusOr<std::vector<GivenOption>> options = ReadLine(line);
    if (!options.ok()) return ErrorAtLine(file, number, options.status().message());
    for (GivenOption& option : *options) {
      option.place = absl::StrCat(file, ":", number, ": ", option.place);
      all.push_back(std::move(option));
    }
  }
  if (other_schedulers != 0) {
    notices->push_back(absl::StrCat(file, ":", other_schedulers,
                                    ": lines of #PBS and #BSUB have no effect; write #SBATCH"));
  }
  return all;
}

// The environment.

namespace {

// As sbatch decides whether the variable of an option without a value turns it on.
bool IsOn(const std::string& text) {
  int64_t number = 0;
  return text.empty() || text == "yes" || (absl::SimpleAtoi(text, &number) && number != 0);
}

}  // namespace

std::vector<GivenOption> ReadSbatchVariables(
    const std::map<std::string, std::string>& environment) {
  std::vector<GivenOption> all;
  for (const SbatchFlag& flag : kFlags) {
    if (flag.variable == nullptr) continue;
    const auto found = environment.find(flag.variable);
    if (found == environment.end() || !IsUtf8(found->second)) continue;
    const std::string& text = found->second;
    if (flag.value == kNo ? !IsOn(text) : flag.value == kYes && text.empty()) continue;
    const bool has_value = flag.value != kNo && !text.empty();
    all.push_back({flag.name, has_value ? text : "", has_value, flag.variable});
  }
  return all;
}

// All of them together.

namespace {

// Of those in a group only one way of asking counts, or several that fit together: what is given
// in one place replaces all that is given in a lesser one.
const std::vector<std::vector<std::string>>& Groups() {
  static const auto* const groups = new std::vector<std::vector<std::string>>{
      {"mem", "mem-per-cpu", "mem-per-gpu"},
      {"gpus", "gpus-per-node", "gpus-per-task", "gres", "ntasks-per-gpu"},
      {"cpus-per-task", "cpus-per-gpu"},
      {"requeue", "no-requeue"}};
  return *groups;
}

// Adds the options of one place to those of lesser places.
void Add(const std::vector<GivenOption>& options, std::map<std::string, GivenOption>* all) {
  std::map<std::string, GivenOption> here;
  for (const GivenOption& option : options) {
    const std::string name = option.name == "tasks-per-node" ? "ntasks-per-node" : option.name;
    // Of these two the last one counts.
    if (name == "requeue") here.erase("no-requeue");
    if (name == "no-requeue") here.erase("requeue");
    here[name] = option;
    here[name].name = name;
  }
  for (const std::vector<std::string>& group : Groups()) {
    bool asked = false;
    for (const std::string& name : group) asked = asked || here.count(name) != 0;
    for (const std::string& name : group) {
      if (asked) all->erase(name);
    }
  }
  for (auto& [name, option] : here) (*all)[name] = std::move(option);
}

}  // namespace

absl::StatusOr<SbatchOptions> CombineSbatchOptions(const std::vector<GivenOption>& script,
                                                   const std::vector<GivenOption>& environment,
                                                   const std::vector<GivenOption>& command_line) {
  std::map<std::string, GivenOption> all;
  for (const auto* const place : {&script, &environment, &command_line}) Add(*place, &all);
  SbatchOptions options;
  for (auto& [name, option] : all) {
    const SbatchFlag& flag = FlagOf(name);
    if (flag.effect == kRefused) return Error(absl::StrCat(option.place, ": ", flag.text));
    if (flag.effect == kAccepted) {
      options.notices.push_back(
          absl::StrCat(option.place, " has no effect in a Cadre cluster: ", flag.text));
    }
    if (flag.effect == kMapped) options.given[name] = std::move(option);
  }
  return options;
}

// The help.

std::string SbatchUsage() {
  return "Usage: sbatch [options] SCRIPT [ARGUMENT...]\n"
         "       sbatch [options] --wrap=COMMAND\n"
         "       sbatch [options] < SCRIPT\n";
}

std::string SbatchHelp() {
  std::string text = absl::StrCat(
      SbatchUsage(),
      "\nSubmits a batch script to a cluster of Cadre. It runs once, on the first node of its job, "
      "where\n'srun' starts tasks on all of them.\n\n");
  std::string accepted;
  for (const SbatchFlag& flag : kFlags) {
    if (flag.effect == kAccepted) absl::StrAppend(&accepted, " --", flag.name);
    if (flag.effect != kMapped || flag.form == nullptr) continue;
    std::string left = flag.short_name == '\0' ? "      --" : "  -x, --";
    if (flag.short_name != '\0') left[3] = flag.short_name;
    absl::StrAppend(&left, flag.name, *flag.form == '\0' ? "" : "=", flag.form);
    left.resize(std::max<size_t>(left.size() + 2, 32), ' ');
    absl::StrAppend(&text, left, flag.text, "\n");
  }
  absl::StrAppend(&text,
                  "\nIn a file name %j stands for the job's id, %A and %a for an array's id and ",
                  "index, %x for its\nname, %u for its user, %N for the node.\n"
                  "Accepted, without an effect here:");
  size_t column = 33;
  for (const absl::string_view word : absl::StrSplit(accepted, ' ', absl::SkipEmpty())) {
    const bool fits = column + 1 + word.size() <= 100;
    absl::StrAppend(&text, fits ? " " : "\n  ", word);
    column = fits ? column + 1 + word.size() : 2 + word.size();
  }
  return absl::StrCat(text, "\n");
}

}  // namespace cadre::launcher
