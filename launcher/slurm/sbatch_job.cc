#include "launcher/slurm/sbatch_job.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/duration.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/flags/run_options.h"
#include "launcher/slurm/option_values.h"
#include "launcher/slurm/slurm_commands.h"
#include "launcher/spec/job_spec.h"
#include "launcher/spec/queue_values.h"
#include "launcher/spec/scalars.h"

namespace cadre::launcher {
namespace {

// Where the launcher leaves a batch job's files: in the working directory.
constexpr char kLogDirectory[] = ".cadre";
constexpr char kDefaultOutput[] = "slurm-%j.out";
constexpr char kDefaultArrayOutput[] = "slurm-%A_%a.out";
// As a job's file may have it (launcher/spec/job_spec.cc).
constexpr int64_t kMaxPriority = 1000000;
// What sbatch's --nice lowers the priority by if no number is given.
constexpr int64_t kDefaultNice = 100;

// The option as the user wrote it: "job.sh:3: --nodes=2", "-N 2".
std::string Shown(const GivenOption& option) {
  const absl::string_view place = option.place;
  if (!option.has_value) return option.place;
  const size_t start = place.rfind(' ') == place.npos ? 0 : place.rfind(' ') + 1;
  const bool is_short = place.size() - start == 2;
  return absl::StrCat(place, is_short ? " " : "=", OneLine(option.value, 64));
}

absl::Status ErrorAt(const GivenOption& option, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(Shown(option), ": ", text));
}

absl::Status Contradiction(const GivenOption& one, const GivenOption& other,
                           absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(Shown(one), " and ", Shown(other), " contradict each other: ", why));
}

template <typename T>
absl::StatusOr<T> At(const GivenOption& option, absl::StatusOr<T> value) {
  if (value.ok()) return value;
  return absl::InvalidArgumentError(absl::StrCat(option.place, ": ", value.status().message()));
}

// --- numbers ---

// A number that an option gives.
template <typename T>
struct Number {
  const GivenOption* option = nullptr;
  T value = 0;

  bool given() const { return option != nullptr; }
};

struct Numbers {
  const GivenOption* nodes = nullptr;
  uint32_t min_nodes = 1;
  uint32_t max_nodes = 1;
  Number<uint32_t> tasks, tasks_per_node, tasks_per_gpu;
  Number<uint32_t> gpus, gpus_per_node, gpus_per_task;
  Number<uint32_t> cpus_per_task, cpus_per_gpu, min_cpus;
  Number<uint64_t> memory, memory_per_cpu, memory_per_gpu;
  // How many nodes are named.
  Number<uint32_t> named;
};

template <typename T, typename Parse>
absl::Status Read(const SbatchOptions& options, const std::string& name, Parse parse,
                  Number<T>* number) {
  const GivenOption* const option = options.Find(name);
  if (option == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(number->value, At(*option, parse(option->value)));
  number->option = option;
  return absl::OkStatus();
}

absl::Status ReadGpusPerNode(const SbatchOptions& options, Number<uint32_t>* number) {
  Number<uint32_t> gres;
  RETURN_IF_ERROR(Read(options, "gres", ParseSlurmGres, &gres));
  RETURN_IF_ERROR(Read(options, "gpus-per-node", ParseSlurmGpus, number));
  if (gres.given() && number->given() && gres.value != number->value) {
    return Contradiction(*gres.option, *number->option, "give one of them");
  }
  if (!number->given()) *number = gres;
  return absl::OkStatus();
}

absl::StatusOr<Numbers> ReadNumbers(const SbatchOptions& options) {
  const auto one_or_more = [](absl::string_view text) { return ParseSlurmCount(text, 1); };
  Numbers all;
  all.nodes = options.Find("nodes");
  if (all.nodes != nullptr) {
    ASSIGN_OR_RETURN(const auto range, At(*all.nodes, ParseSlurmNodes(all.nodes->value)));
    std::tie(all.min_nodes, all.max_nodes) = range;
  }
  const auto count_hosts = [](absl::string_view text) -> absl::StatusOr<uint32_t> {
    ASSIGN_OR_RETURN(const std::vector<std::string> hosts, ParseSlurmHosts(text));
    return static_cast<uint32_t>(hosts.size());
  };
  RETURN_IF_ERROR(Read(options, "nodelist", count_hosts, &all.named));
  RETURN_IF_ERROR(Read(options, "ntasks", one_or_more, &all.tasks));
  RETURN_IF_ERROR(Read(options, "ntasks-per-node", one_or_more, &all.tasks_per_node));
  RETURN_IF_ERROR(Read(options, "ntasks-per-gpu", one_or_more, &all.tasks_per_gpu));
  RETURN_IF_ERROR(Read(options, "gpus", ParseSlurmGpus, &all.gpus));
  RETURN_IF_ERROR(Read(options, "gpus-per-task", ParseSlurmGpus, &all.gpus_per_task));
  RETURN_IF_ERROR(ReadGpusPerNode(options, &all.gpus_per_node));
  RETURN_IF_ERROR(Read(options, "cpus-per-task", one_or_more, &all.cpus_per_task));
  RETURN_IF_ERROR(Read(options, "cpus-per-gpu", one_or_more, &all.cpus_per_gpu));
  RETURN_IF_ERROR(Read(options, "mincpus", one_or_more, &all.min_cpus));
  RETURN_IF_ERROR(Read(options, "mem", ParseSlurmMemory, &all.memory));
  RETURN_IF_ERROR(Read(options, "mem-per-cpu", ParseSlurmMemory, &all.memory_per_cpu));
  RETURN_IF_ERROR(Read(options, "mem-per-gpu", ParseSlurmMemory, &all.memory_per_gpu));
  return all;
}

uint32_t Quotient(uint32_t dividend, uint32_t divisor) {
  return dividend / divisor + (dividend % divisor != 0);
}

// --- nodes and tasks ---

struct Size {
  uint32_t min_nodes = 1;
  uint32_t max_nodes = 1;
  uint32_t tasks_per_node = 1;
  // 0: the user has not said.
  uint32_t tasks = 0;
};

// How many tasks there are if their number follows from that of the GPUs.
absl::Status CountTasksByGpus(Numbers& all) {
  Number<uint32_t>& each = all.gpus_per_task;
  if (const GivenOption* const per_gpu = all.tasks_per_gpu.option) {
    if (all.tasks_per_gpu.value != 1) {
      return ErrorAt(*per_gpu, "tasks cannot share a GPU here; only 1 is possible");
    }
    for (const Number<uint32_t>& other : {all.tasks_per_node, each}) {
      if (other.given()) return Contradiction(*per_gpu, *other.option, "give one of them");
    }
    each = {per_gpu, 1};
    if (!all.tasks.given() && all.gpus_per_node.given()) {
      all.tasks_per_node = {all.gpus_per_node.option, std::max(all.gpus_per_node.value, 1u)};
    }
  }
  if (!each.given() || all.tasks.given() || all.tasks_per_node.given() || !all.gpus.given()) {
    return absl::OkStatus();
  }
  if (each.value == 0 || all.gpus.value == 0 || all.gpus.value % each.value != 0) {
    return Contradiction(*all.gpus.option, *each.option, "the tasks are not a whole number");
  }
  all.tasks = {all.gpus.option, all.gpus.value / each.value};
  return absl::OkStatus();
}

// As many nodes as the user says.
absl::StatusOr<Size> SizeOnNodes(const Numbers& all, bool may_grow,
                                 std::vector<std::string>* notices) {
  Size size = {all.min_nodes, may_grow ? all.max_nodes : all.min_nodes};
  if (all.max_nodes > size.max_nodes) {
    notices->push_back(absl::StrCat(Shown(*all.nodes), ": the job has ",
                                    Count(all.min_nodes, "node"),
                                    ", as the job of a script does not grow while it runs"));
  }
  if (!all.tasks.given()) return size;
  if (size.max_nodes > size.min_nodes) {
    return Contradiction(*all.nodes, *all.tasks.option,
                         "say with --ntasks-per-node how many tasks each node has");
  }
  if (all.tasks.value < size.min_nodes) {
    notices->push_back(absl::StrCat("warning: can't run ", all.tasks.value, " processes on ",
                                    size.min_nodes, " nodes, setting nnodes to ", all.tasks.value));
    size.min_nodes = size.max_nodes = all.tasks.value;
  }
  return size;
}

// As few nodes as all can be on.
absl::StatusOr<Size> SmallestSize(const Numbers& all, std::vector<std::string>* notices) {
  uint32_t nodes = 1;
  if (all.tasks.given() && all.tasks_per_node.given()) {
    nodes = Quotient(all.tasks.value, all.tasks_per_node.value);
  } else if (all.gpus.given() && all.gpus_per_node.given() && all.gpus_per_node.value > 0) {
    nodes = std::max(Quotient(all.gpus.value, all.gpus_per_node.value), 1u);
  } else if (all.tasks.given() && all.tasks.value > 1 && all.named.value < 2) {
    notices->push_back(absl::StrCat(Shown(*all.tasks.option),
                                    ": all tasks are on one node; use --nodes or "
                                    "--ntasks-per-node for several"));
  }
  // All nodes that are named.
  nodes = std::max(nodes, all.named.value);
  return Size{nodes, nodes};
}

absl::Status CheckNamed(const Number<uint32_t>& named, uint32_t nodes) {
  if (named.value <= nodes) return absl::OkStatus();
  return ErrorAt(*named.option,
                 absl::StrCat("names ", Count(named.value, "node"), ", and the job has ", nodes));
}

absl::StatusOr<Size> SettleSize(Numbers& all, bool may_grow, std::vector<std::string>* notices) {
  RETURN_IF_ERROR(CountTasksByGpus(all));
  ASSIGN_OR_RETURN(Size size, all.nodes != nullptr ? SizeOnNodes(all, may_grow, notices)
                                                   : SmallestSize(all, notices));
  RETURN_IF_ERROR(CheckNamed(all.named, size.max_nodes));
  if (all.tasks.given()) {
    size.tasks = all.tasks.value;
    size.tasks_per_node = Quotient(all.tasks.value, size.min_nodes);
    if (all.tasks_per_node.given() && size.tasks_per_node > all.tasks_per_node.value) {
      return Contradiction(*all.tasks.option, *all.tasks_per_node.option,
                           absl::StrCat("the job has ", Count(size.min_nodes, "node")));
    }
  } else if (all.tasks_per_node.given()) {
    size.tasks_per_node = all.tasks_per_node.value;
    const uint64_t tasks = uint64_t{size.tasks_per_node} * size.min_nodes;
    size.tasks =
        static_cast<uint32_t>(std::min<uint64_t>(tasks, std::numeric_limits<uint32_t>::max()));
  }
  return size;
}

// --- what each task needs ---

// The number of GPUs for each task if that of each node is given by `option`.
absl::StatusOr<uint32_t> Share(const GivenOption& option, uint32_t on_node, const Size& size) {
  if (on_node % size.tasks_per_node == 0) return on_node / size.tasks_per_node;
  return ErrorAt(option, absl::StrCat("a node has ", Count(size.tasks_per_node, "task"), " and ",
                                      Count(on_node, "GPU"),
                                      "; each task has GPUs of its own here, so give a multiple of "
                                      "the tasks, or fewer tasks"));
}

absl::StatusOr<uint32_t> SettleGpus(const Numbers& all, const Size& size) {
  const Number<uint32_t>&each = all.gpus_per_task, &node = all.gpus_per_node, &total = all.gpus;
  const auto product = [](uint64_t one, uint64_t other) { return one * other; };
  if (each.given()) {
    if (node.given() && node.value != product(each.value, size.tasks_per_node)) {
      return Contradiction(
          *each.option, *node.option,
          absl::StrCat("there are ", size.tasks_per_node,
                       " tasks on each node; say how many with --ntasks-per-node"));
    }
    const uint64_t tasks = product(size.tasks_per_node, size.min_nodes);
    if (total.given() && total.value != product(each.value, tasks) &&
        total.value != product(each.value, size.tasks)) {
      return Contradiction(*each.option, *total.option,
                           absl::StrCat("there are ", Count(tasks, "task")));
    }
    return each.value;
  }
  if (total.given() && node.given() && total.value != product(node.value, size.min_nodes)) {
    return Contradiction(*total.option, *node.option,
                         absl::StrCat("the job has ", Count(size.min_nodes, "node")));
  }
  if (node.given()) return Share(*node.option, node.value, size);
  if (!total.given()) return 0;
  if (total.value % size.min_nodes != 0) {
    return ErrorAt(*total.option, absl::StrCat("not the same number on each of ",
                                               Count(size.min_nodes, "node"), "; give a multiple"));
  }
  return Share(*total.option, total.value / size.min_nodes, size);
}

absl::StatusOr<uint32_t> SettleCpus(const Numbers& all, const Size& size, uint32_t gpus) {
  uint64_t cpus = all.cpus_per_task.value;
  if (const GivenOption* const per_gpu = all.cpus_per_gpu.option) {
    if (all.cpus_per_task.given()) {
      return Contradiction(*all.cpus_per_task.option, *per_gpu, "give one of them");
    }
    if (gpus == 0) return ErrorAt(*per_gpu, "the job asks for no GPUs");
    cpus = uint64_t{all.cpus_per_gpu.value} * gpus;
  }
  if (std::max<uint64_t>(cpus, 1) * size.tasks_per_node < all.min_cpus.value) {
    cpus = Quotient(all.min_cpus.value, size.tasks_per_node);
  }
  if (cpus <= std::numeric_limits<uint32_t>::max()) return static_cast<uint32_t>(cpus);
  return ErrorAt(*all.cpus_per_gpu.option, "no node has so many CPUs");
}

absl::StatusOr<uint64_t> SettleMemory(const Numbers& all, const Size& size,
                                      const v1::Resources& each,
                                      std::vector<std::string>* notices) {
  const GivenOption* given = nullptr;
  for (const Number<uint64_t>& number : {all.memory, all.memory_per_cpu, all.memory_per_gpu}) {
    if (!number.given()) continue;
    if (given != nullptr) return Contradiction(*given, *number.option, "give one of them");
    given = number.option;
  }
  if (given == nullptr) return 0;
  if (all.memory.given()) {
    if (all.memory.value == 0) {
      notices->push_back(absl::StrCat(Shown(*given),
                                      ": the job has no limit of memory, and none is set aside "
                                      "for it"));
    }
    return all.memory.value / size.tasks_per_node + (all.memory.value % size.tasks_per_node != 0);
  }
  const bool by_gpu = all.memory_per_gpu.given();
  if (by_gpu && each.gpus_per_worker() == 0) return ErrorAt(*given, "the job asks for no GPUs");
  const uint64_t one = by_gpu ? all.memory_per_gpu.value : all.memory_per_cpu.value;
  const uint64_t times = by_gpu ? each.gpus_per_worker() : std::max(each.cpus_per_worker(), 1u);
  if (one <= std::numeric_limits<int64_t>::max() / times) return one * times;
  return ErrorAt(*given, "no node has so much memory");
}

absl::StatusOr<Size> SetSize(bool may_grow, SbatchOptions& options, v1::JobSpec& spec) {
  ASSIGN_OR_RETURN(Numbers all, ReadNumbers(options));
  ASSIGN_OR_RETURN(const Size size, SettleSize(all, may_grow, &options.notices));
  spec.mutable_nodes()->set_min(size.min_nodes);
  spec.mutable_nodes()->set_max(size.max_nodes);
  spec.mutable_workers_per_node()->set_kind(v1::WorkersPerNode::COUNT);
  spec.mutable_workers_per_node()->set_count(size.tasks_per_node);
  v1::Resources& each = *spec.mutable_resources();
  ASSIGN_OR_RETURN(const uint32_t gpus, SettleGpus(all, size));
  each.set_gpus_per_worker(gpus);
  ASSIGN_OR_RETURN(const uint32_t cpus, SettleCpus(all, size, gpus));
  each.set_cpus_per_worker(cpus);
  ASSIGN_OR_RETURN(const uint64_t memory, SettleMemory(all, size, each, &options.notices));
  each.set_memory_per_worker(memory);
  return size;
}

// --- the rest of the job ---

// As the user wrote it.
std::string WholeNameOf(const SbatchOptions& options, const std::string& otherwise) {
  const GivenOption* const given = options.Find("job-name");
  return given == nullptr || given->value.empty() ? otherwise : given->value;
}

std::string NameOf(const SbatchOptions& options, const std::string& otherwise) {
  const std::string name = JobNameFrom(WholeNameOf(options, otherwise));
  // A name of digits alone would be taken for an id.
  return absl::c_all_of(name, absl::ascii_isdigit) ? "job-" + name : name;
}

absl::Status SetTime(const SbatchOptions& options, v1::JobSpec& spec) {
  const GivenOption* const given = options.Find("time");
  if (given == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(absl::Duration limit, At(*given, ParseSlurmTime(given->value)));
  spec.mutable_timeouts()->clear_total();
  if (limit == absl::InfiniteDuration()) return absl::OkStatus();
  // Slurm counts in minutes.
  limit = absl::Ceil(limit, absl::Minutes(1));
  if (limit > absl::Seconds(kMaxDurationSeconds)) return ErrorAt(*given, "at most 10 years");
  *spec.mutable_timeouts()->mutable_total() = ToProto(limit);
  return absl::OkStatus();
}

absl::Status SetPriority(const SbatchOptions& options, v1::JobSpec& spec) {
  int64_t priority = spec.priority(), nice = 0;
  if (const GivenOption* const given = options.Find("priority")) {
    if (absl::EqualsIgnoreCase(given->value, "TOP")) {
      priority = kMaxPriority;
    } else if (given->value == "0") {
      // As with Slurm.
      spec.mutable_queue()->set_held(true);
    } else if (!absl::SimpleAtoi(given->value, &priority) || priority < 1 ||
               priority > kMaxPriority) {
      return absl::InvalidArgumentError(absl::StrCat(given->place, ": expected 0 to ", kMaxPriority,
                                                     " or TOP, got ", Quoted(given->value)));
    }
  }
  if (const GivenOption* const given = options.Find("nice")) {
    nice = kDefaultNice;
    if (given->has_value && !absl::SimpleAtoi(given->value, &nice)) {
      return absl::InvalidArgumentError(
          absl::StrCat(given->place, ": expected a number, got ", Quoted(given->value)));
    }
    nice = std::clamp(nice, -2 * kMaxPriority, 2 * kMaxPriority);
  }
  spec.set_priority(static_cast<int32_t>(std::clamp(priority - nice, -kMaxPriority, kMaxPriority)));
  return absl::OkStatus();
}

// When the job may leave the queue.
absl::Status SetQueue(const SbatchOptions& options, const Submitter& submitter, v1::JobSpec& spec) {
  if (options.Has("hold")) spec.mutable_queue()->set_held(true);
  if (const GivenOption* const given = options.Find("begin")) {
    ASSIGN_OR_RETURN(const absl::Time begin,
                     At(*given, ParseTimeToCome(given->value, submitter.now, submitter.zone)));
    spec.mutable_queue()->set_begin_unix_ms(absl::ToUnixMillis(begin));
  }
  if (const GivenOption* const given = options.Find("deadline")) {
    ASSIGN_OR_RETURN(const absl::Time deadline,
                     At(*given, ParseTimeToCome(given->value, submitter.now, submitter.zone)));
    if (deadline <= submitter.now) return ErrorAt(*given, "is over; expected a time to come");
    spec.mutable_queue()->set_deadline_unix_ms(absl::ToUnixMillis(deadline));
  }
  // Scripts give what may be empty: --dependency="$DEPENDENCY".
  if (const GivenOption* const given = options.Find("dependency");
      given != nullptr && !given->value.empty()) {
    const absl::Status read = ParseDependencies(given->value, spec.mutable_queue());
    if (!read.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(given->place, ": ", read.message()));
    }
  }
  if (const GivenOption* const given = options.Find("kill-on-invalid-dep")) {
    const std::string text = absl::AsciiStrToLower(given->value);
    if (text != "yes" && text != "no") {
      return absl::InvalidArgumentError(
          absl::StrCat(given->place, ": expected yes or no, got ", Quoted(given->value)));
    }
    spec.mutable_queue()->set_keep_if_never(text == "no");
  }
  return absl::OkStatus();
}

// Which nodes the job may have.
absl::Status SetPlacement(const SbatchOptions& options, v1::JobSpec& spec) {
  v1::Placement& placement = *spec.mutable_placement();
  if (const GivenOption* const given = options.Find("nodelist")) {
    ASSIGN_OR_RETURN(const std::vector<std::string> hosts,
                     At(*given, ParseSlurmHosts(given->value)));
    placement.mutable_nodes()->Assign(hosts.begin(), hosts.end());
  }
  if (const GivenOption* const given = options.Find("exclude")) {
    ASSIGN_OR_RETURN(const std::vector<std::string> hosts,
                     At(*given, ParseSlurmHosts(given->value)));
    placement.mutable_exclude()->Assign(hosts.begin(), hosts.end());
    for (const std::string& host : hosts) {
      if (absl::c_linear_search(placement.nodes(), host)) {
        return ErrorAt(*given, absl::StrCat(host, " is also asked for by name"));
      }
    }
  }
  if (const GivenOption* const given = options.Find("constraint")) {
    ASSIGN_OR_RETURN(const std::vector<std::string> labels,
                     At(*given, ParseSlurmConstraint(given->value)));
    placement.mutable_labels()->Assign(labels.begin(), labels.end());
  }
  return absl::OkStatus();
}

// What happens before the time limit, and when a node is lost.
absl::Status SetEnds(SbatchOptions& options, v1::JobSpec& spec) {
  if (options.Has("requeue")) spec.mutable_restart()->set_requeue(true);
  if (options.Has("no-requeue")) spec.mutable_restart()->set_requeue(false);
  const GivenOption* const given = options.Find("signal");
  if (given == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const SlurmWarning warning, At(*given, ParseSlurmWarning(given->value)));
  v1::Timeouts& timeouts = *spec.mutable_timeouts();
  *timeouts.mutable_warning() = ToProto(warning.before);
  timeouts.set_warning_signal(warning.signal);
  if (spec.has_batch()) spec.mutable_batch()->set_warn_script(warning.script);
  if (!timeouts.has_total()) {
    options.notices.push_back(
        absl::StrCat(Shown(*given), ": no signal is sent, as the job has no limit (--time)"));
  }
  return absl::OkStatus();
}

absl::Status SetDirectory(const SbatchOptions& options, const std::string& directory,
                          v1::JobSpec& spec) {
  const GivenOption* const given = options.Find("chdir");
  if (given != nullptr && given->value.empty()) return ErrorAt(*given, "expected a directory");
  const std::filesystem::path path =
      std::filesystem::path(directory) / (given == nullptr ? "" : given->value);
  std::string normal = path.lexically_normal().string();
  if (normal.size() > 1 && normal.back() == '/') normal.pop_back();
  spec.set_working_dir(normal);
  return absl::OkStatus();
}

absl::Status SetFiles(const SbatchOptions& options, v1::LogPolicy& logs) {
  for (const char* const name : {"output", "error"}) {
    const GivenOption* const given = options.Find(name);
    if (given == nullptr) continue;
    if (given->value.empty()) return ErrorAt(*given, "expected the name of a file");
    if (std::string(name) == "output") {
      logs.set_stdout_file(given->value);
    } else {
      logs.set_stderr_file(given->value);
    }
  }
  const GivenOption* const mode = options.Find("open-mode");
  if (mode == nullptr) return absl::OkStatus();
  const std::string text = absl::AsciiStrToLower(mode->value);
  const bool append = !text.empty() && absl::StartsWith("append", text);
  if (!append && (text.empty() || !absl::StartsWith("truncate", text))) {
    return absl::InvalidArgumentError(
        absl::StrCat(mode->place, ": expected append or truncate, got ", Quoted(mode->value)));
  }
  logs.set_append(append);
  return absl::OkStatus();
}

// --- the environment ---

// Variables that describe the process, the machine or the job in which sbatch runs, and how its
// commands reach the server. The job gets its own.
bool IsOfSubmitter(absl::string_view name) {
  static const auto* const names =
      new std::set<std::string>{"CADRE_CONFIG",         "CADRE_INSECURE",     "CADRE_SERVER",
                                "CADRE_SUPERVISOR",     "CADRE_TLS_DIR",      "HOSTNAME",
                                "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "XDG_RUNTIME_DIR",
                                "ROCR_VISIBLE_DEVICES"};
  return IsLauncherVariable(name) || absl::StartsWith(name, "CADRE_TOKEN") ||
         absl::StartsWith(name, "TORCHELASTIC_") || !CheckVariableName(name).ok() ||
         names->count(std::string(name)) != 0;
}

class Exporter {
 public:
  Exporter(const Submitter& submitter, v1::JobSpec& spec)
      : environment_(submitter.environment), spec_(spec) {}

  absl::Status Export(const GivenOption* option, std::vector<std::string>* notices) {
    for (const std::string& item : SplitQuoted(option == nullptr ? "ALL" : option->value)) {
      const absl::Status exported = ExportItem(item);
      if (!exported.ok()) return ErrorAt(*option, exported.message());
    }
    if (!no_text_.empty()) {
      notices->push_back(absl::StrCat("the job does not get variables that are not UTF-8 text: ",
                                      FirstFew(no_text_, no_text_.size())));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ExportItem(const std::string& item) {
    if (item.empty() || absl::EqualsIgnoreCase(item, "NONE") ||
        absl::EqualsIgnoreCase(item, "NIL")) {
      return absl::OkStatus();
    }
    if (absl::EqualsIgnoreCase(item, "ALL")) {
      for (const auto& [name, value] : environment_) {
        if (!IsOfSubmitter(name)) Set(name, value);
      }
      return absl::OkStatus();
    }
    const size_t equals = item.find('=');
    const std::string name = item.substr(0, equals);
    RETURN_IF_ERROR(CheckVariableName(name));
    const auto here = environment_.find(name);
    if (equals != item.npos) {
      Set(name, item.substr(equals + 1));
    } else if (here != environment_.end()) {
      Set(name, here->second);
    }
    return absl::OkStatus();
  }

  void Set(const std::string& name, const std::string& value) {
    if (IsUtf8(name) && IsUtf8(value)) {
      (*spec_.mutable_env())[name] = value;
    } else {
      no_text_.push_back(absl::CHexEscape(name));
    }
  }

  const std::map<std::string, std::string>& environment_;
  v1::JobSpec& spec_;
  std::vector<std::string> no_text_;
};

absl::Status CheckBytes(const v1::JobSpec& spec) {
  const size_t all = spec.ByteSizeLong();
  if (all <= kMaxBatchJobBytes) return absl::OkStatus();
  size_t variables = 0;
  for (const auto& [name, value] : spec.env()) variables += name.size() + value.size();
  return absl::InvalidArgumentError(absl::StrCat(
      "the job has ", all, " bytes, at most ", kMaxBatchJobBytes, " are allowed: its script has ",
      spec.batch().script().size(), " and its environment ", variables,
      variables > all / 2 ? "; name the variables that it needs with --export=NAME,NAME,..."
                          : "; keep its data in files"));
}

// What jobs with and without a script have in common.
absl::StatusOr<Size> SetAll(bool may_grow, const Submitter& submitter, SbatchOptions& options,
                            v1::JobSpec& spec) {
  ASSIGN_OR_RETURN(const Size size, SetSize(may_grow, options, spec));
  RETURN_IF_ERROR(SetTime(options, spec));
  RETURN_IF_ERROR(SetPriority(options, spec));
  RETURN_IF_ERROR(SetQueue(options, submitter, spec));
  RETURN_IF_ERROR(SetPlacement(options, spec));
  RETURN_IF_ERROR(SetEnds(options, spec));
  RETURN_IF_ERROR(SetDirectory(options, submitter.directory, spec));
  RETURN_IF_ERROR(SetFiles(options, *spec.mutable_logs()));
  RETURN_IF_ERROR(Exporter(submitter, spec).Export(options.Find("export"), &options.notices));
  FillSpecDefaults(spec);
  return size;
}

}  // namespace

BatchSource WrappedCommand(const std::string& command) {
  BatchSource source;
  source.script = absl::StrCat("#!/bin/sh\n# Made by 'sbatch --wrap'.\n\n", command, "\n");
  source.name = "wrap";
  source.program = {"sh", "-c", command};
  return source;
}

absl::StatusOr<v1::JobSpec> MakeBatchJob(const BatchSource& source, const Submitter& submitter,
                                         SbatchOptions& options) {
  v1::JobSpec spec;
  spec.set_name(NameOf(options, source.name));
  spec.mutable_command()->Assign(source.program.begin(), source.program.end());
  for (const std::string& argument : source.args) spec.add_command(argument);
  v1::BatchScript& batch = *spec.mutable_batch();
  batch.set_script(source.script);
  batch.mutable_args()->Assign(source.args.begin(), source.args.end());
  batch.set_submit_dir(submitter.directory);
  batch.set_submit_host(submitter.host);
  batch.set_name(WholeNameOf(options, source.name));
  spec.mutable_logs()->set_dir(kLogDirectory);
  spec.mutable_logs()->set_stdout_file(options.Has("array") ? kDefaultArrayOutput : kDefaultOutput);
  ASSIGN_OR_RETURN(const Size size, SetAll(/*may_grow=*/false, submitter, options, spec));
  batch.set_ntasks(size.tasks);
  RETURN_IF_ERROR(CheckBytes(spec));
  return spec;
}

absl::StatusOr<v1::JobSpec> MakeProgramJob(const std::vector<std::string>& command,
                                           const Submitter& submitter, SbatchOptions& options) {
  v1::JobSpec spec;
  spec.set_name(NameOf(options, JobNameOfProgram(command[0])));
  spec.mutable_command()->Assign(command.begin(), command.end());
  RETURN_IF_ERROR(SetAll(/*may_grow=*/true, submitter, options, spec).status());
  RETURN_IF_ERROR(CheckBytes(spec));
  return spec;
}

absl::Status ChangeJob(absl::string_view file, const Submitter& submitter, SbatchOptions& options,
                       v1::JobSpec& spec) {
  static const auto* const possible =
      new std::set<std::string>{"job-name",      "nodes",         "ntasks-per-node",
                                "cpus-per-task", "gpus-per-task", "time",
                                "priority",      "nice",          "chdir",
                                "output",        "error",         "open-mode",
                                "parsable",      "quiet",         "wait",
                                "test-only",     "hold",          "begin",
                                "deadline",      "dependency",    "kill-on-invalid-dep",
                                "nodelist",      "exclude",       "constraint",
                                "array",         "signal",        "requeue",
                                "no-requeue"};
  for (const auto& [name, option] : options.given) {
    if (possible->count(name) != 0) continue;
    return ErrorAt(option, absl::StrCat("is for batch scripts; write what it means into ", file));
  }
  ASSIGN_OR_RETURN(const Numbers all, ReadNumbers(options));
  if (options.Has("job-name")) spec.set_name(NameOf(options, spec.name()));
  if (all.nodes != nullptr) {
    spec.mutable_nodes()->set_min(all.min_nodes);
    spec.mutable_nodes()->set_max(all.max_nodes);
  }
  if (all.tasks_per_node.given()) {
    spec.mutable_workers_per_node()->set_kind(v1::WorkersPerNode::COUNT);
    spec.mutable_workers_per_node()->set_count(all.tasks_per_node.value);
  }
  v1::Resources& each = *spec.mutable_resources();
  if (all.cpus_per_task.given()) each.set_cpus_per_worker(all.cpus_per_task.value);
  if (all.gpus_per_task.given()) each.set_gpus_per_worker(all.gpus_per_task.value);
  if (const GivenOption* const directory = options.Find("chdir")) {
    spec.set_working_dir(directory->value);
  }
  RETURN_IF_ERROR(SetTime(options, spec));
  RETURN_IF_ERROR(SetPriority(options, spec));
  RETURN_IF_ERROR(SetQueue(options, submitter, spec));
  RETURN_IF_ERROR(SetPlacement(options, spec));
  RETURN_IF_ERROR(CheckNamed(all.named, std::max(spec.nodes().max(), 1u)));
  RETURN_IF_ERROR(SetEnds(options, spec));
  return SetFiles(options, *spec.mutable_logs());
}

absl::StatusOr<v1::ArrayElements> ArrayOf(const SbatchOptions& options) {
  v1::ArrayElements elements;
  const GivenOption* const given = options.Find("array");
  if (given == nullptr) return elements;
  ASSIGN_OR_RETURN(const SlurmArray array, At(*given, ParseSlurmArray(given->value)));
  elements.mutable_indices()->Assign(array.indices.begin(), array.indices.end());
  elements.set_at_once(array.at_once);
  return elements;
}

}  // namespace cadre::launcher
