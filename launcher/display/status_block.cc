#include "launcher/display/status_block.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launcher/display/escape.h"
#include "launcher/display/table.h"

namespace cadre {
namespace {

uint32_t NodesIn(const v1::JobStatus& status) {
  return std::max<uint32_t>(status.nodes_in(), static_cast<uint32_t>(status.nodes_size()));
}

std::string Plural(uint64_t count, const char* one) {
  return absl::StrCat(count, " ", one, count == 1 ? "" : "s");
}

// Cuts at a character of UTF-8, not within one.
std::string Cut(std::string line, size_t width) {
  if (line.size() <= width) return line;
  size_t end = width;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xc0) == 0x80) --end;
  line.resize(end);
  return line;
}

std::string ProgressLine(const std::vector<v1::Progress>& progress) {
  if (progress.empty()) return "";
  uint64_t step = 0;
  double speed = 0;
  double loss = 0;
  for (const v1::Progress& one : progress) {
    step = std::max(step, one.step());
    speed += one.samples_per_second();
    loss += one.loss() / static_cast<double>(progress.size());
  }
  std::string line = absl::StrCat("  step ", step);
  if (speed > 0) absl::StrAppendFormat(&line, " | %.0f samples/s here", speed);
  if (loss != 0) absl::StrAppendFormat(&line, " | loss %.4f", loss);
  return line;
}

}  // namespace

std::string PhaseName(v1::JobPhase phase) {
  if (phase == v1::CANCELLED_PHASE) return "cancelled";
  if (phase == v1::JOB_PHASE_UNSPECIFIED) return "starting";
  return absl::AsciiStrToLower(v1::JobPhase_Name(phase));
}

std::string NodesTable(const v1::JobStatus& job) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::NodeStatus& node : job.nodes()) {
    const bool placed = node.node_rank() >= 0;
    // Before a generation is formed nobody has a rank, and nobody is in reserve either.
    const bool spare = !placed && job.phase() == v1::RUNNING;
    rows.push_back({node.name(), node.host(), absl::StrCat(node.slots()),
                    placed  ? absl::StrCat(node.node_rank())
                    : spare ? "spare"
                            : "-",
                    placed
                        ? absl::StrCat(node.first_rank(), "-", node.first_rank() + node.slots() - 1)
                        : "-"});
  }
  return FormatTable({"NODE", "HOST", "SLOTS", "NODE RANK", "RANKS"}, rows);
}

std::vector<std::string> StatusBlock(const v1::JobStatus& status,
                                     const std::vector<v1::Progress>& progress,
                                     const v1::NodeRange& nodes, size_t width, bool color) {
  std::string head =
      absl::StrCat("cadre ", EscapeControl(status.name()), " | ", PhaseName(status.phase()),
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
  const std::string reported = ProgressLine(progress);
  if (!reported.empty()) lines.push_back(Cut(reported, width));
  if (!status.waiting_for().empty()) {
    lines.push_back(
        Cut(absl::StrCat("  waiting for ", EscapeControl(status.waiting_for())), width));
  }
  return lines;
}

std::vector<std::string> StatusLines::Update(const v1::JobStatus& status) {
  std::vector<std::string> lines;
  if (status.restarts() > restarts_) {
    restarts_ = status.restarts();
    lines.push_back(absl::StrCat("restart ", restarts_, " of ", status.max_restarts()));
  }
  if (status.phase() == v1::GATHERING && !status.waiting_for().empty() && !said_waiting_) {
    said_waiting_ = true;
    lines.push_back(absl::StrCat("waiting for ", EscapeControl(status.waiting_for())));
  }
  if (status.phase() != v1::RUNNING) return lines;
  said_waiting_ = false;
  if (status.generation() > formed_) {
    formed_ = status.generation();
    lines.push_back(absl::StrCat("generation ", formed_,
                                 " formed: ", Plural(NodesIn(status), "node"), ", ",
                                 Plural(status.world_size(), "worker")));
  }
  if (status.generation() > running_ && status.world_size() > 0 &&
      status.workers_running() + status.workers_succeeded() >= status.world_size()) {
    running_ = status.generation();
    lines.push_back(absl::StrCat("generation ", running_, " running"));
  }
  return lines;
}

}  // namespace cadre
