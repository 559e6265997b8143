#include "launcher/display/cluster_text.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "launcher/display/table.h"
#include "launcher/display/version_line.h"

namespace cadre::launcher {
namespace {

constexpr char kUp[] = "up";
// Of nodes that a line names.
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

// Where the agent is away launchers may run of which the server counts nothing any more; and where
// they are being ended they still do.
bool IsUseKnown(const v1::ClusterNodeStatus& node) {
  return node.connected() && node.leftovers() == 0;
}

std::string Used(const v1::ClusterNodeStatus& node, uint64_t used, uint64_t all) {
  return IsUseKnown(node) ? absl::StrCat(used, "/", all) : absl::StrCat("?/", all);
}

struct Use {
  uint64_t cpus = 0, all_cpus = 0, gpus = 0, all_gpus = 0;

  void Add(const v1::ClusterNodeStatus& node) {
    all_cpus += node.cpus();
    all_gpus += node.gpus();
    for (const v1::Part& part : node.parts()) {
      cpus += part.cpus();
      gpus += part.gpus();
    }
  }
};

std::string Named(const std::vector<std::string>& names) {
  const std::vector<std::string> first(names.begin(),
                                       names.begin() + std::min(names.size(), kNamed));
  return absl::StrCat(
      absl::StrJoin(first, ", "),
      names.size() > kNamed ? absl::StrCat(" and ", names.size() - kNamed, " more") : "");
}

// By priority, then by age, as the server goes through them.
std::vector<const v1::JobStatus*> Queue(const std::vector<v1::JobStatus>& jobs) {
  std::vector<const v1::JobStatus*> queue;
  for (const v1::JobStatus& job : jobs) {
    if (job.phase() == v1::QUEUED) queue.push_back(&job);
  }
  std::sort(queue.begin(), queue.end(), [](const v1::JobStatus* a, const v1::JobStatus* b) {
    return std::pair(b->priority(), a->submission()) < std::pair(a->priority(), b->submission());
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
                    Used(node, use.gpus, use.all_gpus),
                    node.user().empty() ? "any but root" : node.user(),
                    labels.empty() ? "-" : absl::StrJoin(labels, ","),
                    jobs.empty() ? "-" : absl::StrJoin(jobs, " ")});
  }
  std::string text =
      FormatTable({"NODE", "STATE", "CPUS", "GPUS", "USERS", "LABELS", "JOBS"}, rows);
  for (const v1::ClusterNodeStatus& node : nodes.nodes()) {
    if (!node.version().empty()) absl::StrAppend(&text, VersionLine(node.name(), node.version()));
    for (const std::string& remains : node.remains()) {
      absl::StrAppend(&text,
                      EscapeControl(absl::StrCat("on ", node.name(), " ", remains,
                                                 "; until then its slots are taken")),
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
    const auto told = told_.find(node.name());
    const bool known = told != told_.end();
    if (known ? told->second == state : first_ && state == kUp) continue;
    lines.push_back(EscapeControl(absl::StrCat("node ", node.name(), ": ", state)));
  }
  for (const auto& [name, state] : told_) {
    if (now.count(name) == 0) lines.push_back(EscapeControl(absl::StrCat("node ", name, ": gone")));
  }
  first_ = false;
  told_ = std::move(now);
  return lines;
}

}  // namespace cadre::launcher
