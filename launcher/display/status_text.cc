#include "launcher/display/status_text.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/civil_time.h"
#include "base/text.h"
#include "launcher/display/output_format.h"
#include "launcher/spec/queue_values.h"
#include "rpc/job_progress.h"
#include "rpc/worker_end.h"

namespace cadre::launcher {
namespace {

// The nodes that take part, and the spares. A large job's status does not list them.
std::string Formed(const v1::JobStatus& status) {
  uint32_t spares = 0, out = 0;
  for (const v1::NodeStatus& node : status.nodes()) {
    if (node.node_rank() < 0) ++(node.remains().empty() ? spares : out);
  }
  return absl::StrCat(
      "generation ", status.generation(),
      " formed: ", Count(NodesIn(status) - spares - out, "node"), ", ",
      Count(status.world_size(), "worker"),
      spares == 0 ? "" : absl::StrCat("; ", Count(spares, "more node"), " in reserve"));
}

// Cuts between UTF-8 characters.
std::string Cut(std::string line, size_t width) {
  if (line.size() <= width) return line;
  size_t end = width;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xc0) == 0x80) --end;
  line.resize(end);
  return line;
}

// The progress of this node's workers, if the server has not summed it up yet.
v1::JobProgress SumOf(const std::vector<v1::Progress>& here) {
  v1::JobProgress sum;
  double loss = 0;
  int losses = 0;
  for (const v1::Progress& one : here) {
    sum.set_step(sum.workers() == 0 ? one.step() : std::min(sum.step(), one.step()));
    sum.set_max_step(std::max(sum.max_step(), one.step()));
    sum.set_samples_per_second(sum.samples_per_second() + one.samples_per_second());
    loss += one.loss();
    losses += one.loss() != 0;
    sum.set_workers(sum.workers() + 1);
    sum.set_total(std::max(sum.total(), one.total()));
    if (sum.figures().empty()) *sum.mutable_figures() = one.figures();
  }
  if (losses > 0) sum.set_loss(loss / losses);
  return sum;
}

// "1:02:03", "12:31".
std::string ClockText(absl::Duration time) {
  const int64_t seconds = absl::ToInt64Seconds(time);
  const int64_t hours = seconds / 3600, minutes = seconds / 60 % 60;
  return hours > 0 ? absl::StrFormat("%d:%02d:%02d", hours, minutes, seconds % 60)
                   : absl::StrFormat("%d:%02d", minutes, seconds % 60);
}

std::string QuietOr(const v1::JobProgress& progress, const std::string& otherwise) {
  const std::string quiet = rpc::StallText(progress);
  return quiet.empty() ? otherwise : quiet;
}

// "n1 runs Cadre 0.2, which is not the server's version\n".
std::string VersionLine(absl::string_view node, absl::string_view version) {
  return EscapeControl(
             absl::StrCat(node, " runs Cadre ", version, ", which is not the server's version")) +
         "\n";
}

std::string RanksOf(const v1::NodeStatus& node) {
  if (node.slots() == 1) return absl::StrCat(node.first_rank());
  return absl::StrCat(node.first_rank(), "-", node.first_rank() + node.slots() - 1);
}

}  // namespace

uint32_t NodesIn(const v1::JobStatus& status) {
  return std::max<uint32_t>(status.nodes_in(), static_cast<uint32_t>(status.nodes_size()));
}

std::string ProgressText(const v1::JobProgress& progress) {
  std::string text = absl::StrCat("step ", progress.step());
  // Ranks are usually one step apart.
  if (progress.max_step() > progress.step() + 1) {
    absl::StrAppend(&text, " (rank ", progress.slowest_rank(), "; others up to ",
                    progress.max_step(), ")");
  }
  // The last rate is no longer true if the job stands still.
  const std::string quiet = rpc::StallText(progress);
  if (!quiet.empty()) {
    absl::StrAppend(&text, " | ", quiet);
  } else if (progress.samples_per_second() > 0) {
    absl::StrAppendFormat(&text, " | %.0f samples/s", progress.samples_per_second());
  }
  if (progress.loss() != 0) absl::StrAppendFormat(&text, " | loss %.4f", progress.loss());
  return text;
}

std::string Pace::Text(const v1::JobStatus& status, const std::vector<v1::Progress>& here,
                       MonoTime now) {
  const v1::JobProgress own = SumOf(here);
  const v1::JobProgress progress = status.has_progress() ? status.progress() : own;
  if (progress.workers() == 0) return "";
  if (!has_begun_) began_ = now;
  if (!has_begun_ || status.generation() != generation_ || progress.step() < first_step_) {
    has_begun_ = true;
    generation_ = status.generation();
    first_step_ = progress.step();
    first_at_ = now;
  }
  std::vector<std::string> parts;
  const uint64_t total = std::max(progress.total(), own.total());
  if (total > 0) {
    parts.push_back(absl::StrCat(progress.step(), " of ", total, " steps"));
    const double done = static_cast<double>(progress.step() - first_step_);
    std::string times = absl::StrCat(ClockText(now - began_), " gone");
    if (done > 0 && progress.step() <= total) {
      const double left = static_cast<double>(total - progress.step());
      absl::StrAppend(&times, ", ", ClockText((now - first_at_) * (left / done)), " left");
    }
    parts.push_back(std::move(times));
  }
  const bool has_own = !own.figures().empty();
  for (const v1::Figure& figure : has_own ? own.figures() : progress.figures()) {
    parts.push_back(EscapeControl(absl::StrFormat("%s %.4g", figure.name(), figure.value())));
  }
  return absl::StrJoin(parts, " | ");
}

std::string NodesTable(const v1::JobStatus& job) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::NodeStatus& node : job.nodes()) {
    const bool placed = node.node_rank() >= 0;
    // Before a generation is formed no node has a rank, and none is a spare.
    const bool spare = !placed && job.phase() == v1::RUNNING;
    rows.push_back({node.name(), node.host(), absl::StrCat(node.slots()),
                    placed                    ? absl::StrCat(node.node_rank())
                    : !node.remains().empty() ? "out"
                    : spare                   ? "spare"
                                              : "-",
                    placed ? RanksOf(node) : "-"});
  }
  std::string text = FormatTable({"NODE", "HOST", "SLOTS", "NODE RANK", "RANKS"}, rows);
  for (const v1::NodeStatus& node : job.nodes()) {
    if (!node.version().empty()) absl::StrAppend(&text, VersionLine(node.name(), node.version()));
    if (!node.remains().empty()) {
      absl::StrAppend(&text, node.name(), " is out: ", EscapeControl(node.remains()), "\n");
    }
  }
  return text;
}

std::vector<std::string> StatusBlock(const v1::JobStatus& status,
                                     const std::vector<v1::Progress>& here,
                                     const v1::NodeRange& nodes, size_t width, bool color) {
  std::string head =
      absl::StrCat("cadre ", EscapeControl(status.name()), " | ", rpc::PhaseName(status.phase()),
                   " | nodes ", NodesIn(status), "/", nodes.max(), " | workers ",
                   status.workers_running() + status.workers_succeeded(), "/", status.world_size());
  if (status.workers_succeeded() > 0) {
    absl::StrAppend(&head, " (", status.workers_succeeded(), " done)");
  }
  if (status.generation() > 1 || status.restarts() > 0) {
    absl::StrAppend(&head, " | generation ", status.generation());
  }
  if (status.max_restarts() > 0) {
    absl::StrAppend(&head, " | restarts ", status.restarts(), "/", status.max_restarts());
  }
  head = Cut(head, width);
  if (color) head = absl::StrCat("\x1b[7m", head, "\x1b[0m");
  std::vector<std::string> lines = {head};
  const v1::JobProgress progress = status.has_progress() ? status.progress() : SumOf(here);
  if (progress.workers() > 0) {
    lines.push_back(Cut(absl::StrCat("  ", ProgressText(progress)), width));
  }
  if (!status.stall().empty()) {
    lines.push_back(Cut(absl::StrCat("  ", EscapeControl(status.stall())), width));
  }
  if (!status.stop_reason().empty()) {
    lines.push_back(Cut(absl::StrCat("  stopping: ", EscapeControl(status.stop_reason())), width));
  }
  if (!status.waiting_for().empty()) {
    lines.push_back(
        Cut(absl::StrCat("  waiting for ", EscapeControl(status.waiting_for())), width));
  }
  return lines;
}

std::vector<std::string> StatusLines::Update(const v1::JobStatus& status) {
  std::vector<std::string> lines;
  if (!status.stop_reason().empty() && status.generation() > stopping_) {
    stopping_ = status.generation();
    // If no restart is left, the verdict follows with all details.
    const bool last = status.restarts() >= status.max_restarts();
    lines.push_back(absl::StrCat(
        "stopping generation ", stopping_, ": ",
        EscapeControl(last ? rpc::WithoutDetails(status.stop_reason()) : status.stop_reason())));
  }
  if (status.ended_generation() > ended_ && !status.has_verdict()) {
    ended_ = status.ended_generation();
    // The reason was shown when the job was being stopped.
    if (ended_ > stopping_) {
      lines.push_back(
          absl::StrCat("generation ", ended_, " ended: ", EscapeControl(status.end_reason())));
    }
  }
  if (status.restarts() > restarts_) {
    restarts_ = status.restarts();
    lines.push_back(absl::StrCat("restart ", restarts_, " of ", status.max_restarts()));
  }
  if (status.phase() == v1::QUEUED && !status.waiting_for().empty() && !said_queued_) {
    said_queued_ = true;
    lines.push_back(
        absl::StrCat("in the queue, waiting for ", EscapeControl(status.waiting_for())));
  }
  if (status.phase() == v1::GATHERING && !status.waiting_for().empty() && !said_waiting_) {
    said_waiting_ = true;
    lines.push_back(absl::StrCat("waiting for ", EscapeControl(status.waiting_for())));
  }
  if (status.phase() != v1::RUNNING) return lines;
  said_waiting_ = false;
  if (status.stall().empty()) {
    said_stall_ = false;
  } else if (!said_stall_) {
    // The agent measures the time without progress from the step itself, the server from its
    // report. If it is not long enough for the server yet, the line comes with a later redraw.
    const std::string quiet =
        QuietOr(status.progress(), status.has_progress() ? "" : "no progress");
    if (!quiet.empty()) {
      lines.push_back(absl::StrCat(quiet, ": ", EscapeControl(status.stall())));
      said_stall_ = true;
    }
  }
  if (status.generation() > formed_) {
    formed_ = status.generation();
    lines.push_back(Formed(status));
  }
  if (status.generation() > running_ && status.world_size() > 0 &&
      status.workers_running() + status.workers_succeeded() >= status.world_size()) {
    running_ = status.generation();
    lines.push_back(absl::StrCat("generation ", running_, " running"));
  }
  return lines;
}

namespace {

// As Slurm writes times: "1-02:03:04", "02:03:04", "03:04".
std::string SlurmTime(absl::Duration time) {
  const int64_t all = std::max<int64_t>(0, absl::ToInt64Seconds(time));
  const int64_t days = all / 86400, hours = all / 3600 % 24, minutes = all / 60 % 60;
  if (days > 0) return absl::StrFormat("%d-%02d:%02d:%02d", days, hours, minutes, all % 60);
  return hours > 0 ? absl::StrFormat("%02d:%02d:%02d", hours, minutes, all % 60)
                   : absl::StrFormat("%02d:%02d", minutes, all % 60);
}

// Since the job began, until it ended or now; "-" if it has not begun.
std::string ElapsedOf(const v1::JobStatus& job, absl::Time now) {
  if (job.began_unix_ms() == 0) return "-";
  const absl::Time end = job.ended_unix_ms() == 0 ? now : absl::FromUnixMillis(job.ended_unix_ms());
  return SlurmTime(end - absl::FromUnixMillis(job.began_unix_ms()));
}

std::string LimitOf(const v1::JobStatus& job) {
  if (job.limit_us() == 0) return "-";
  return SlurmTime(absl::Ceil(absl::Microseconds(job.limit_us()), absl::Seconds(1)));
}

// The workers of a job that has ended do not run, so their number is shown alone.
std::string WorkersOf(const v1::JobStatus& job) {
  if (job.world_size() == 0) return "-";
  if (job.has_verdict()) return absl::StrCat(job.world_size());
  return absl::StrCat(job.workers_running(), "/", job.world_size());
}

std::string RestartsOf(const v1::JobStatus& job) {
  return absl::StrCat(job.restarts(), "/", job.max_restarts());
}

// "failed (1)": the exit statuses of the other outcomes tell nothing more.
std::string StateOf(const v1::JobStatus& job) {
  const std::string state = rpc::PhaseName(job.phase());
  if (job.phase() != v1::FAILED || !job.has_verdict()) return state;
  return absl::StrCat(state, " (", job.verdict().exit_status(), ")");
}

// The first cause comes first.
std::string ReasonOf(const v1::JobStatus& job, size_t limit) {
  const std::string& text = job.has_verdict()            ? job.verdict().message()
                            : !job.stop_reason().empty() ? job.stop_reason()
                            : !job.stall().empty()       ? job.stall()
                                                         : job.waiting_for();
  return Shortened(EscapeControl(text), limit);
}

// How far the job is, and why it does not go on.
std::string ProgressAndReasonOf(const v1::JobStatus& job) {
  std::vector<std::string> parts;
  if (job.has_progress()) parts.push_back(ProgressText(job.progress()));
  const std::string reason = ReasonOf(job, kReasonBytes);
  if (!reason.empty()) parts.push_back(reason);
  return parts.empty() ? "-" : absl::StrJoin(parts, "; ");
}

// The user who submitted the job, or whose token its first node had; "-" for an administrator.
std::string UserOf(const v1::JobStatus& job) {
  const std::string& user = job.user().empty() ? job.started_by() : job.user();
  return user.empty() ? "-" : user;
}

std::string SubmittedNameOf(const v1::JobStatus& job) {
  return job.submitted_name().empty() ? job.name() : job.submitted_name();
}

// By priority, then by age, in the server's order.
bool IsEarlierInQueue(const v1::JobStatus& a, const v1::JobStatus& b) {
  return std::pair(b.priority(), a.submission()) < std::pair(a.priority(), b.submission());
}

// "57", or of an element "57_3", or of several elements "57_[3-9]"; "-" without an id.
std::string IdOf(const v1::JobStatus& job, const std::vector<uint32_t>& indices) {
  if (job.submission() == 0) return "-";
  if (job.array() == 0) return absl::StrCat(job.submission());
  const std::string elements = indices.size() < 2 ? absl::StrCat(job.array_index())
                                                  : absl::StrCat("[", IndicesText(indices), "]");
  return absl::StrCat(job.array(), "_", elements);
}

// "14:05"; with its day if that is not today.
std::string ClockTime(int64_t unix_ms, absl::Time now, absl::TimeZone zone) {
  const absl::Time time = absl::FromUnixMillis(unix_ms);
  const bool today = absl::ToCivilDay(time, zone) == absl::ToCivilDay(now, zone);
  return absl::FormatTime(today ? "%H:%M" : "%Y-%m-%d %H:%M", time, zone);
}

// "between 14:05 and 15:30"; empty: it is not known.
std::string ExpectedBegin(const v1::JobStatus& job, absl::Time now, absl::TimeZone zone) {
  const int64_t from = job.begins_from_unix_ms(), until = job.begins_until_unix_ms();
  if (job.has_verdict() || (from == 0 && until == 0)) return "";
  if (until == 0) return absl::StrCat("after ", ClockTime(from, now, zone));
  const std::string last = ClockTime(until, now, zone);
  if (from == 0 || ClockTime(from, now, zone) == last) return absl::StrCat("at about ", last);
  return absl::StrCat("between ", ClockTime(from, now, zone), " and ", last);
}

// In the order of the table of jobs.
enum class Group { kHasNodes, kInQueue, kEnded };

Group GroupOf(const v1::JobStatus& job) {
  if (job.has_verdict()) return Group::kEnded;
  return job.phase() == v1::QUEUED ? Group::kInQueue : Group::kHasNodes;
}

bool ComesBefore(const v1::JobStatus& a, const v1::JobStatus& b) {
  const Group group = GroupOf(a);
  if (group != GroupOf(b)) return group < GroupOf(b);
  if (group == Group::kInQueue) return IsEarlierInQueue(a, b);
  const auto time = [group](const v1::JobStatus& job) {
    return group == Group::kEnded ? job.ended_unix_ms() : job.began_unix_ms();
  };
  if (time(a) != time(b)) return time(a) > time(b);
  // Servers of an earlier version tell only when the job was created.
  return a.run() != b.run() ? a.run() > b.run() : a.name() < b.name();
}

}  // namespace

std::string JobsTable(const std::vector<v1::JobStatus>& jobs, absl::Time now) {
  std::vector<const v1::JobStatus*> sorted;
  for (const v1::JobStatus& job : jobs) sorted.push_back(&job);
  std::sort(sorted.begin(), sorted.end(),
            [](const v1::JobStatus* a, const v1::JobStatus* b) { return ComesBefore(*a, *b); });
  const bool has_priorities = std::any_of(
      jobs.begin(), jobs.end(), [](const v1::JobStatus& job) { return job.priority() != 0; });
  std::vector<std::string> header = {"ID",      "NAME",     "USER",    "STATE", "NODES",
                                     "WORKERS", "RESTARTS", "ELAPSED", "LIMIT"};
  if (has_priorities) header.push_back("PRIORITY");
  header.push_back("PROGRESS, REASON");
  // The elements of each array that wait, those that are held apart.
  std::map<std::pair<uint64_t, bool>, std::vector<uint32_t>> waiting;
  const auto is_waiting_element = [](const v1::JobStatus& job) {
    return job.array() != 0 && GroupOf(job) == Group::kInQueue;
  };
  for (const v1::JobStatus* job : sorted) {
    if (!is_waiting_element(*job)) continue;
    waiting[{job->array(), job->held()}].push_back(job->array_index());
  }
  std::vector<std::vector<std::string>> rows;
  for (const v1::JobStatus* job : sorted) {
    std::vector<uint32_t> indices;
    if (is_waiting_element(*job)) {
      // The first of them stands for all.
      indices = std::exchange(waiting[{job->array(), job->held()}], {});
      if (indices.empty()) continue;
      std::sort(indices.begin(), indices.end());
    }
    std::vector<std::string>& row = rows.emplace_back();
    row = {IdOf(*job, indices), SubmittedNameOf(*job),       UserOf(*job),
           StateOf(*job),       absl::StrCat(NodesIn(*job)), WorkersOf(*job),
           RestartsOf(*job),    ElapsedOf(*job, now),        LimitOf(*job)};
    if (has_priorities) row.push_back(absl::StrCat(job->priority()));
    row.push_back(ProgressAndReasonOf(*job));
  }
  return FormatTable(header, rows);
}

std::string JobText(const v1::JobStatus& job, absl::Time now, absl::TimeZone zone) {
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const char* what, const std::string& text) { rows.push_back({what, text}); };
  const auto add_time = [&](const char* what, int64_t unix_ms) {
    if (unix_ms == 0) return;
    add(what, absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(unix_ms), zone));
  };
  if (!job.submitted_name().empty()) add("submitted as", job.submitted_name());
  if (job.submission() != 0) add("id", absl::StrCat(job.submission()));
  if (job.array() != 0) {
    add("array", absl::StrCat(job.array(), ", element ", job.array_index(), " (",
                              Count(job.array_size(), "element"), ")"));
  }
  add("user", UserOf(job));
  add("state", rpc::PhaseName(job.phase()));
  if (job.has_verdict()) add("exit status", absl::StrCat(job.verdict().exit_status()));
  if (job.submission() != 0) add("priority", absl::StrCat(job.priority()));
  if (!job.has_verdict()) {
    if (job.held()) add("held", "until it is released");
    const std::string dependencies = DependenciesText(job.queue());
    if (!dependencies.empty()) add("depends on", dependencies);
  }
  add_time("submitted", job.submitted_unix_ms());
  if (job.phase() == v1::QUEUED) {
    add_time("not before", job.queue().begin_unix_ms());
    const std::string expected = ExpectedBegin(job, now, zone);
    if (!expected.empty()) add("expected to begin", expected);
  }
  if (!job.has_verdict()) add_time("deadline", job.queue().deadline_unix_ms());
  add_time("began", job.began_unix_ms());
  add_time("ended", job.ended_unix_ms());
  if (job.began_unix_ms() != 0) add("elapsed", ElapsedOf(job, now));
  if (job.limit_us() != 0) add("limit", LimitOf(job));
  if (NodesIn(job) != 0) add("nodes", absl::StrCat(NodesIn(job)));
  if (job.world_size() != 0) add("workers", WorkersOf(job));
  if (job.generation() != 0) add("generation", absl::StrCat(job.generation()));
  add("restarts", RestartsOf(job));
  if (job.has_progress()) add("progress", ProgressText(job.progress()));
  const std::string reason = ReasonOf(job, kLongReasonBytes);
  if (!reason.empty()) add("reason", reason);
  return FormatTable({"job", EscapeControl(job.name())}, rows);
}

std::string QueueText(const v1::JobStatus& job, absl::Time now, absl::TimeZone zone) {
  std::string text;
  if (job.array() != 0) {
    absl::StrAppend(&text, "it is element ", job.array_index(), " of array ", job.array(),
                    job.array_at_once() == 0
                        ? ""
                        : absl::StrCat(", of which ", job.array_at_once(), " run at the same time"),
                    "\n");
  }
  if (job.has_verdict()) return text;
  if (job.held()) {
    absl::StrAppend(&text, "it is held: 'cadre release ", job.submission(), "' lets it begin\n");
  }
  if (job.phase() != v1::QUEUED) return text;
  const v1::QueueOptions& queue = job.queue();
  const std::string dependencies = DependenciesText(queue);
  if (!dependencies.empty()) absl::StrAppend(&text, "it depends on ", dependencies, "\n");
  if (queue.begin_unix_ms() > absl::ToUnixMillis(now)) {
    absl::StrAppend(&text, "it does not begin before ", ClockTime(queue.begin_unix_ms(), now, zone),
                    "\n");
  }
  const std::string expected = ExpectedBegin(job, now, zone);
  if (!expected.empty()) absl::StrAppend(&text, "expected to begin ", expected, "\n");
  if (queue.deadline_unix_ms() != 0) {
    absl::StrAppend(&text, "it is cancelled if it has not ended by ",
                    ClockTime(queue.deadline_unix_ms(), now, zone), "\n");
  }
  return text;
}

namespace {

constexpr char kUp[] = "up";
// The most nodes that a line names.
constexpr size_t kNamed = 6;

std::string StateOf(const v1::ClusterNodeStatus& node) {
  std::string state = node.connected() ? kUp : "away";
  if (node.drained()) {
    absl::StrAppend(&state, ", drained",
                    node.drain_reason().empty() ? "" : absl::StrCat(": ", node.drain_reason()));
  }
  if (node.leftovers() > 0) {
    absl::StrAppend(&state, ", ending ", Count(node.leftovers(), "earlier launcher"));
  }
  return state;
}

// While an agent is away, launchers may run that the server does not count any more; and while
// leftover launchers are being ended, they still use the node.
bool IsUseKnown(const v1::ClusterNodeStatus& node) {
  return node.connected() && node.leftovers() == 0;
}

std::string Used(const v1::ClusterNodeStatus& node, uint64_t used, uint64_t all) {
  return IsUseKnown(node) ? absl::StrCat(used, "/", all) : absl::StrCat("?/", all);
}

struct Use {
  uint64_t cpus = 0, all_cpus = 0, gpus = 0, all_gpus = 0, memory = 0;

  void Add(const v1::ClusterNodeStatus& node) {
    all_cpus += node.cpus();
    all_gpus += node.gpus();
    for (const v1::Part& part : node.parts()) {
      cpus += part.cpus();
      gpus += part.gpus();
      memory += part.memory();
    }
  }
};

// "9/62.75 GiB"; "-" if the memory is not counted.
std::string UsedMemory(const v1::ClusterNodeStatus& node, uint64_t used) {
  if (node.memory() == 0) return "-";
  const auto gib = [](uint64_t bytes) {
    return absl::StrCat(std::round(static_cast<double>(bytes) / (1 << 30) * 100) / 100);
  };
  return absl::StrCat(IsUseKnown(node) ? gib(used) : "?", "/", gib(node.memory()), " GiB");
}

std::string Named(const std::vector<std::string>& names) {
  const std::vector<std::string> first(names.begin(),
                                       names.begin() + std::min(names.size(), kNamed));
  return absl::StrCat(
      absl::StrJoin(first, ", "),
      names.size() > kNamed ? absl::StrCat(" and ", names.size() - kNamed, " more") : "");
}

// In the server's order.
std::vector<const v1::JobStatus*> Queue(const std::vector<v1::JobStatus>& jobs) {
  std::vector<const v1::JobStatus*> queue;
  for (const v1::JobStatus& job : jobs) {
    if (job.phase() == v1::QUEUED) queue.push_back(&job);
  }
  std::sort(queue.begin(), queue.end(), [](const v1::JobStatus* a, const v1::JobStatus* b) {
    return IsEarlierInQueue(*a, *b);
  });
  return queue;
}

}  // namespace

std::string ClusterNodesTable(const v1::ListNodesReply& nodes) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::ClusterNodeStatus& node : nodes.nodes()) {
    Use use;
    use.Add(node);
    std::vector<std::string> jobs, labels;
    for (const v1::Part& part : node.parts()) jobs.push_back(part.job());
    for (const auto& [name, value] : node.labels()) labels.push_back(name + "=" + value);
    std::sort(labels.begin(), labels.end());
    rows.push_back({node.name(), StateOf(node), Used(node, use.cpus, use.all_cpus),
                    Used(node, use.gpus, use.all_gpus), UsedMemory(node, use.memory),
                    node.user().empty() ? "any but root" : node.user(),
                    labels.empty() ? "-" : absl::StrJoin(labels, ","),
                    jobs.empty() ? "-" : absl::StrJoin(jobs, " ")});
  }
  std::string text =
      FormatTable({"NODE", "STATE", "CPUS", "GPUS", "MEMORY", "USERS", "LABELS", "JOBS"}, rows);
  for (const v1::ClusterNodeStatus& node : nodes.nodes()) {
    if (!node.version().empty()) absl::StrAppend(&text, VersionLine(node.name(), node.version()));
    for (const std::string& remains : node.remains()) {
      absl::StrAppend(&text,
                      EscapeControl(absl::StrCat("on ", node.name(), " ", remains,
                                                 "; until then its slots stay taken")),
                      "\n");
    }
  }
  return text;
}

std::vector<std::string> AvoidedNodes(const v1::JobStatus& job) {
  std::vector<std::string> lines;
  for (const v1::AvoidedNode& avoided : job.avoided()) {
    const bool runs_there =
        std::any_of(job.nodes().begin(), job.nodes().end(),
                    [&](const v1::NodeStatus& node) { return node.name() == avoided.node(); });
    if (runs_there) continue;
    lines.push_back(absl::StrCat("avoids ", avoided.node(), ": ", avoided.reason()));
  }
  return lines;
}

std::string AvoidedText(const v1::JobStatus& job) {
  std::string text;
  for (const std::string& line : AvoidedNodes(job)) {
    absl::StrAppend(&text, EscapeControl(line), "\n");
  }
  return text;
}

std::string ClusterSummary(const v1::ListNodesReply& nodes,
                           const std::vector<v1::JobStatus>& jobs) {
  if (nodes.nodes_size() == 0) return "";
  Use use;
  std::vector<std::string> away, drained;
  for (const v1::ClusterNodeStatus& node : nodes.nodes()) {
    if (IsUseKnown(node)) use.Add(node);
    if (!node.connected()) away.push_back(node.name());
    if (!node.drained()) continue;
    drained.push_back(node.drain_reason().empty()
                          ? node.name()
                          : absl::StrCat(node.name(), " (", node.drain_reason(), ")"));
  }
  std::string text = absl::StrCat(
      "cluster: ", Count(nodes.nodes_size(), "node"), ", ", use.cpus, " of ",
      Count(use.all_cpus, "CPU"), " in use",
      use.all_gpus == 0 ? "" : absl::StrCat(", ", use.gpus, " of ", Count(use.all_gpus, "GPU")),
      "\n");
  if (!away.empty()) absl::StrAppend(&text, "away: ", EscapeControl(Named(away)), "\n");
  if (!drained.empty()) absl::StrAppend(&text, "drained: ", EscapeControl(Named(drained)), "\n");
  const std::vector<const v1::JobStatus*> queue = Queue(jobs);
  if (queue.empty()) return text;
  const v1::JobStatus& first = *queue.front();
  absl::StrAppend(
      &text, "queue: ", Count(queue.size(), "job"), "; ",
      EscapeControl(absl::StrCat(first.name(), " of ", first.user(), ", priority ",
                                 first.priority(), ", waits for ", first.waiting_for())),
      "\n");
  return text;
}

std::vector<std::string> ClusterLines::Update(const v1::ListNodesReply& nodes) {
  std::vector<std::string> lines;
  std::map<std::string, std::string> now;
  for (const v1::ClusterNodeStatus& node : nodes.nodes()) {
    std::string& state = now[node.name()] = StateOf(node);
    const auto told = last_lines_.find(node.name());
    const bool known = told != last_lines_.end();
    if (known ? told->second == state : first_ && state == kUp) continue;
    lines.push_back(EscapeControl(absl::StrCat("node ", node.name(), ": ", state)));
  }
  for (const auto& [name, state] : last_lines_) {
    if (now.count(name) == 0) lines.push_back(EscapeControl(absl::StrCat("node ", name, ": gone")));
  }
  first_ = false;
  last_lines_ = std::move(now);
  return lines;
}

namespace {

// "in all_reduce, from train.py:40 in main".
std::string PlaceText(const v1::RankStack& stack) {
  const v1::RankEvidence& evidence = stack.evidence();
  const std::string& what = evidence.python_what();
  const std::string from =
      evidence.python_where().empty() ? "" : absl::StrCat(", from ", evidence.python_where());
  switch (evidence.python()) {
    case v1::IN_COLLECTIVE:
      return absl::StrCat("in ", what, from);
    case v1::IN_DATA_LOADER:
      return absl::StrCat("in the data loader", what.empty() ? "" : ": ", what, from);
    case v1::IMPORTING:
      return absl::StrCat("importing modules", from);
    case v1::IN_OWN_CODE:
      return absl::StrCat("at ", evidence.python_where().empty() ? what : evidence.python_where());
    default:
      return "no Python stack";
  }
}

// The path of a file of an installed package, relative to site-packages.
std::string ShortPath(absl::string_view file) {
  for (const absl::string_view packages : {"/site-packages/", "/dist-packages/"}) {
    const size_t at = file.rfind(packages);
    if (at != file.npos) return std::string(file.substr(at + packages.size()));
  }
  return std::string(file);
}

std::string FramesText(const v1::RankStack& stack) {
  std::string text;
  for (const v1::StackFrame& frame : stack.frames()) {
    absl::StrAppend(&text, frame.own() ? "  > " : "    ", ShortPath(frame.file()), ":",
                    frame.line(), frame.function().empty() ? "" : " in ", frame.function(), "\n");
    if (!frame.source().empty()) absl::StrAppend(&text, "        ", frame.source(), "\n");
  }
  if (stack.cut()) absl::StrAppend(&text, "    ... and the calls further out\n");
  if (stack.frames_size() > 0) return text;
  return absl::StrCat("    (", stack.no_python(), ")\n    ", stack.evidence().summary(), "\n");
}

std::string WhoText(const v1::StackGroup& group, uint32_t world_size) {
  const bool one = group.ranks_size() == 1;
  const v1::RankEvidence& evidence = group.first().evidence();
  return absl::StrCat(one ? "rank " : "ranks ", RanksText(group),
                      one ? absl::StrCat(" on ", evidence.node(), ", pid ", evidence.pid())
                          : absl::StrCat(" (", group.ranks_size(), " of ", world_size, ")"));
}

std::string GroupText(const v1::StackGroup& group, uint32_t world_size) {
  return absl::StrCat(WhoText(group, world_size), ": ", PlaceText(group.first()), "\n",
                      FramesText(group.first()));
}

std::string SilentText(const v1::SilentNode& node) {
  return absl::StrCat("node ", node.node(), " (",
                      node.workers() == 1 ? absl::StrCat("rank ", node.first_rank())
                                          : absl::StrCat("ranks ", node.first_rank(), "-",
                                                         node.first_rank() + node.workers() - 1),
                      "): ", node.why(), "\n");
}

std::string SilentNodesText(const v1::GetStacksReply& reply) {
  std::string text;
  for (const v1::SilentNode& node : reply.silent()) absl::StrAppend(&text, SilentText(node));
  if (reply.silent_left_out() > 0) {
    absl::StrAppend(&text, "and ", reply.silent_left_out(), " more nodes\n");
  }
  return text;
}

}  // namespace

std::string RanksText(const v1::StackGroup& group) {
  std::vector<std::string> runs;
  for (int i = 0; i < group.ranks_size();) {
    int end = i + 1;
    while (end < group.ranks_size() && group.ranks(end) == group.ranks(end - 1) + 1) ++end;
    runs.push_back(end - i == 1 ? absl::StrCat(group.ranks(i))
                                : absl::StrCat(group.ranks(i), "-", group.ranks(end - 1)));
    i = end;
  }
  return absl::StrJoin(runs, ",");
}

std::string StacksText(const v1::GetStacksReply& reply) {
  std::string text =
      absl::StrCat("job ", reply.job(), ", generation ", reply.generation(), ", ",
                   Count(reply.world_size(), "rank"), "; the most recent call comes first\n");
  for (const v1::StackGroup& group : reply.groups()) {
    absl::StrAppend(&text, "\n", GroupText(group, reply.world_size()));
    const std::string& whole = group.first().text();
    if (whole.empty()) continue;
    absl::StrAppend(&text, "\n");
    for (const absl::string_view line : absl::StrSplit(absl::StripSuffix(whole, "\n"), '\n')) {
      absl::StrAppend(&text, TerminalLine(line), "\n");
    }
  }
  if (reply.silent_size() > 0) absl::StrAppend(&text, "\n");
  return absl::StrCat(text, SilentNodesText(reply));
}

std::string PlacesText(const v1::GetStacksReply& reply) {
  std::string text;
  for (const v1::StackGroup& group : reply.groups()) {
    const v1::RankEvidence& evidence = group.first().evidence();
    const bool python = evidence.python() != v1::PYTHON_ACTIVITY_UNSPECIFIED;
    const bool one = group.ranks_size() == 1;
    // The summary begins with the process.
    const std::string who = !python && one ? absl::StrCat("rank ", RanksText(group))
                                           : WhoText(group, reply.world_size());
    const std::string place = python ? PlaceText(group.first())
                                     : absl::StrCat(one ? "" : "the first is ", evidence.summary());
    absl::StrAppend(&text, "  ", who, ": ", EscapeControl(place), "\n");
  }
  return absl::StrCat(text, SilentNodesText(reply));
}

}  // namespace cadre::launcher
