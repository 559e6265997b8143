#include "rendezvous/cluster/suitability.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"

namespace cadre::cluster {
namespace {

// The least that a node must have.
Share LeastShare(const ScheduleJob& job) {
  const uint32_t cpus_each = std::max<uint32_t>(1, job.resources.cpus_per_worker());
  const uint32_t gpus_each = job.resources.gpus_per_worker();
  switch (job.workers.kind()) {
    case v1::WorkersPerNode::GPU:
      return {1, cpus_each, std::max<uint32_t>(1, gpus_each)};
    case v1::WorkersPerNode::CPU:
    case v1::WorkersPerNode::AUTO:
      return {1, cpus_each, gpus_each};
    default: {
      const uint32_t workers = std::max<uint32_t>(1, job.workers.count());
      return {workers, workers * cpus_each, workers * gpus_each};
    }
  }
}

constexpr char kRoot[] = "root";

// Root's jobs run only where an agent says so.
bool IsForUser(const ScheduleNode& node, const std::string& user) {
  return node.user == user || (node.user.empty() && user != kRoot);
}

struct Group {
  size_t size = 0;
  const std::string* first = nullptr;

  void Add(const ScheduleNode& node) {
    if (size++ == 0) first = &node.name;
  }
};

// "n2 is drained", "4 are drained".
std::string Are(const Group& nodes, const std::string& what) {
  return nodes.size == 1 ? absl::StrCat(*nodes.first, " is ", what)
                         : absl::StrCat(nodes.size, " are ", what);
}

}  // namespace

bool IsBarred(const ScheduleJob& job, const ScheduleNode& node) {
  return !IsForUser(node, job.user) || job.unfit.count(node.name) != 0;
}

std::string ShareText(const Share& share) {
  return absl::StrCat(Count(share.cpus, "CPU"),
                      share.gpus == 0 ? "" : absl::StrCat(" and ", Count(share.gpus, "GPU")));
}

std::string MissingText(const ScheduleJob& job, size_t lacks, size_t fitting,
                        const std::vector<ScheduleNode>& nodes) {
  std::set<std::string> own;
  for (const HeldShare& held : job.held) own.insert(held.node);
  const size_t candidates = std::count_if(
      nodes.begin(), nodes.end(), [&](const auto& node) { return own.count(node.name) == 0; });
  std::string text = absl::StrCat(Count(lacks, own.empty() ? "node" : "more node"), " with ",
                                  ShareText(LeastShare(job)), ": ");
  if (candidates == 0) {
    return absl::StrCat(text, "the cluster has ", own.empty() ? "none" : "no other");
  }
  if (fitting == candidates) {
    // Each of them would do; there are too few.
    return absl::StrCat(text, "the cluster has only ", candidates, own.empty() ? "" : " other",
                        own.empty() || candidates == 1 ? "" : "s");
  }
  if (!own.empty() && candidates == 1) {
    absl::StrAppend(&text, "the only other one cannot take it");
  } else {
    absl::StrAppend(&text, fitting, own.empty() ? " of " : " of the other ", candidates,
                    " can take it");
  }
  Group small, others, unfit, resting;
  std::map<std::string, Group> closed;
  Share largest;
  for (const ScheduleNode& node : nodes) {
    if (own.count(node.name) != 0) continue;
    if (!IsForUser(node, job.user)) {
      others.Add(node);
    } else if (!ShareOf(job, node).has_value()) {
      small.Add(node);
      if (std::make_pair(node.gpus, node.cpus) > std::make_pair(largest.gpus, largest.cpus)) {
        largest = {0, node.cpus, node.gpus};
      }
    } else if (IsBarred(job, node)) {
      unfit.Add(node);
    } else if (!node.closed.empty()) {
      closed[node.closed].Add(node);
    } else if (job.resting.count(node.name) != 0) {
      resting.Add(node);
    }
  }
  std::vector<std::string> why;
  if (small.size > 0) {
    why.push_back(absl::StrCat(Are(small, "too small"), small.size == 1 ? " (it" : " (the largest",
                               " has ", ShareText(largest), ")"));
  }
  for (const auto& [what, group] : closed) why.push_back(Are(group, what));
  if (others.size > 0) {
    why.push_back(Are(others, job.user == kRoot ? "without --user root" : "for other users"));
  }
  if (resting.size > 0) why.push_back(Are(resting, "tried again in a moment"));
  if (unfit.size > 0) why.push_back(Are(unfit, "avoided, since it could not begin there"));
  return absl::StrCat(text, why.empty() ? "" : "; ", absl::StrJoin(why, ", "));
}

uint32_t LeastNodes(const ScheduleJob& job) {
  const uint32_t unit = std::max<uint32_t>(job.unit, 1);
  return (job.min + unit - 1) / unit * unit;
}

std::optional<Share> ShareOf(const ScheduleJob& job, const ScheduleNode& node) {
  const uint32_t gpus_each = job.resources.gpus_per_worker();
  const uint32_t cpus_each = std::max<uint32_t>(1, job.resources.cpus_per_worker());
  auto kind = job.workers.kind();
  if (kind == v1::WorkersPerNode::AUTO) {
    kind = node.gpus > 0 ? v1::WorkersPerNode::GPU : v1::WorkersPerNode::CPU;
  }
  uint64_t workers = std::max<uint32_t>(1, job.workers.count());
  uint64_t gpus = workers * gpus_each;
  if (kind == v1::WorkersPerNode::GPU) {
    workers = node.gpus / std::max<uint32_t>(1, gpus_each);
    gpus = workers * std::max<uint32_t>(1, gpus_each);
  } else if (kind == v1::WorkersPerNode::CPU) {
    workers = node.cpus / cpus_each;
    gpus = workers * gpus_each;
  }
  const uint64_t cpus = workers * cpus_each;
  if (workers == 0 || cpus > node.cpus || gpus > node.gpus) return std::nullopt;
  return Share{static_cast<uint32_t>(workers), static_cast<uint32_t>(cpus),
               static_cast<uint32_t>(gpus)};
}

}  // namespace cadre::cluster
