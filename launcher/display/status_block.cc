#include "launcher/display/status_block.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "launcher/display/table.h"
#include "launcher/display/version_line.h"
#include "rpc/job_phase.h"
#include "rpc/worker_end.h"

namespace cadre::launcher {
namespace {

// The nodes that take part, and those that wait. A large job's status does not tell them apart.
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

// Cuts at a character of UTF-8, not within one.
std::string Cut(std::string line, size_t width) {
  if (line.size() <= width) return line;
  size_t end = width;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xc0) == 0x80) --end;
  line.resize(end);
  return line;
}

// The progress that this node's workers report, where the server has not summed it up yet.
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
  const std::string quiet = rpc::QuietText(progress);
  return quiet.empty() ? otherwise : quiet;
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
  // One step apart is how ranks always are.
  if (progress.max_step() > progress.step() + 1) {
    absl::StrAppend(&text, " (rank ", progress.slowest_rank(), "; others up to ",
                    progress.max_step(), ")");
  }
  // What the rate was with the last step is not what it is.
  const std::string quiet = rpc::QuietText(progress);
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
    // Before a generation is formed nobody has a rank, and nobody is in reserve either.
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
    // Where no restart is left the verdict says it all in a moment.
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
    // The agent counts from the step, the server from when it heard of it. Where it is too early
    // for the server, the next redraw says for how long there was none.
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

}  // namespace cadre::launcher
