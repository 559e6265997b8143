#include "rendezvous/job/status.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "rendezvous/job/progress_log.h"

namespace cadre::job {
namespace {

// Nodes that are in no generation: in reserve, or out because of what remains there.
std::string SparesText(const View& view) {
  std::vector<std::string> spares;
  size_t total = 0;
  for (const auto& [name, connection] : view.live.connections.all()) {
    if (NodeRankOf(view.job, name) >= 0 || !connection.remains.empty()) continue;
    ++total;
    if (spares.size() < kFirstFew) spares.push_back(name);
  }
  const std::string remains = WhatRemains(view);
  return absl::StrCat(total == 0 ? "" : "; spare: ", total == 0 ? "" : FirstFew(spares, total),
                      remains.empty() ? "" : "; ", remains);
}

}  // namespace

v1::JobStatus StatusOf(const std::string& name, const View& view, const std::string& cluster_waits,
                       MonoTime at, Shown shown) {
  v1::JobStatus status =
      MakeStatus(name, view.job, view.live.progress,
                 WaitingFor(view, cluster_waits, view.context.clock.FromHost(at)), shown);
  if (WantsCheckpoint(view)) status.set_checkpoint_wanted(true);
  for (v1::NodeStatus& node : *status.mutable_nodes()) {
    const Connection* connection = view.live.connections.Find(node.name());
    if (connection != nullptr) node.set_remains(connection->remains);
  }
  return status;
}

std::string Explain(const View& view, const std::string& cluster_waits, MonoTime at) {
  if (view.job.saved.has_verdict()) {
    return EndText(view.job.saved.verdict());
  }
  const std::string text =
      ExplainText(view.job, WaitingFor(view, cluster_waits, view.context.clock.FromHost(at)));
  const bool formed = view.job.phase() == v1::RUNNING || view.job.phase() == v1::STOPPING;
  return formed ? absl::StrCat(text, SparesText(view)) : text;
}

v1::ServerMessage FinishedMessage(const std::string& name, const View& view) {
  v1::ServerMessage message = step::MessageFor(name, view.job.generation.number());
  *message.mutable_finished()->mutable_verdict() = view.job.saved.verdict();
  *message.mutable_finished()->mutable_timeline() =
      MakeTimeline(name, view.job, view.live.progress);
  return message;
}

}  // namespace cadre::job
