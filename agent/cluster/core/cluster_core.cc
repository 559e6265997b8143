#include "agent/cluster/core/cluster_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/duration.h"
#include "rpc/versions.h"

namespace cadre::agent {
namespace {

constexpr absl::Duration kDefaultLease = absl::Seconds(10);
// From SIGTERM to SIGKILL, beyond the grace of the launcher's own workers.
constexpr absl::Duration kLauncherMargin = absl::Seconds(10);

}  // namespace

ClusterCore::ClusterCore(ClusterCoreConfig config)
    : config_(std::move(config)),
      free_gpus_(config_.gpus.begin(), config_.gpus.end()),
      lease_(kDefaultLease) {
  CADRE_CHECK(free_gpus_.size() == config_.gpus.size(), "a GPU is named twice");
}

std::vector<ClusterCommand> ClusterCore::Step(MonoTime now, const ClusterEvent& event) {
  if (end_.has_value()) return {};
  now_ = now;
  if (std::holds_alternative<LinkUp>(event) && !leaving_) {
    up_ = true;
    SayJoined();
  } else if (const auto* down = std::get_if<LinkDown>(&event)) {
    OnLinkDown(down->status);
  } else if (const auto* said = std::get_if<ServerSaid>(&event)) {
    OnServerSaid(said->message);
  } else if (const auto* signal = std::get_if<SignalReceived>(&event)) {
    OnSignal(signal->signal);
  } else if (const auto* failed = std::get_if<LauncherFailed>(&event)) {
    v1::PartReport end;
    end.set_text(failed->why);
    end.set_blame(failed->blame);
    if (running_.count(failed->id) != 0) Forget(failed->id, std::move(end));
  } else if (const auto* ended = std::get_if<LauncherEnded>(&event)) {
    OnLauncherEnded(*ended);
  } else if (const auto* remains = std::get_if<PartRemains>(&event)) {
    OnRemains(*remains);
  } else if (const auto* gone = std::get_if<PartGone>(&event)) {
    const auto found = running_.find(gone->id);
    if (found != running_.end()) Forget(gone->id, std::move(found->second.end));
  }
  OnDeadlines();
  if (leaving_ && running_.empty() && !end_.has_value()) end_ = absl::OkStatus();
  if (end_.has_value()) commands_.push_back(EndAgent{*end_});
  return std::exchange(commands_, {});
}

MonoTime ClusterCore::NextDeadline() const {
  if (end_.has_value()) return MonoTime::Never();
  MonoTime next = renew_at_;
  for (const auto& [id, part] : running_) next = std::min(next, part.stop_at);
  return next;
}

std::map<uint64_t, std::vector<uint32_t>> ClusterCore::Parts() const {
  std::map<uint64_t, std::vector<uint32_t>> parts;
  for (const auto& [id, part] : running_) parts[id] = part.gpus;
  return parts;
}

void ClusterCore::OnLinkDown(const absl::Status& status) {
  up_ = false;
  renew_at_ = MonoTime::Never();
  const bool refused = absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
                       absl::IsInvalidArgument(status);
  // Later the launchers that run here are worth more than an end, and the link tries again: a
  // server may have been started with another token for a moment.
  if (refused && !ever_welcomed_) end_ = status;
  if (leaving_) return;
  // A server that refuses this agent now is not merely away, and somebody must hear of that.
  if (away_.empty() || (refused && away_ != status.message())) {
    commands_.push_back(Say{absl::StrCat(
        refused ? "the server refuses this agent, which goes on trying: " : "the server is away: ",
        status.message())});
  }
  away_ = std::string(status.message());
}

void ClusterCore::SayJoined() {
  v1::AgentReport report;
  *report.mutable_joined() = config_.node;
  *report.mutable_joined()->mutable_version() = rpc::ThisVersion();
  for (const auto& [id, part] : running_) report.mutable_joined()->add_parts(id);
  for (const auto& [id, end] : unreported_) report.mutable_joined()->add_parts(id);
  Send(std::move(report));
  for (const auto& [id, end] : unreported_) Report(end);
  for (const auto& [id, part] : running_) {
    if (!part.remains.empty()) ReportRemains(id, part.remains);
  }
}

void ClusterCore::OnServerSaid(const v1::ServerMessage& message) {
  if (leaving_) return;
  if (message.has_welcome()) {
    const v1::Welcome& welcome = message.welcome();
    const absl::Status versions =
        rpc::CheckVersions("this node", rpc::ThisVersion(), "the server", rpc::VersionIn(welcome));
    if (!versions.ok()) {
      end_ = versions;
      return;
    }
    const absl::Duration lease = FromProto(welcome.lease());
    if (lease > absl::ZeroDuration()) lease_ = lease;
    const bool names_server = rpc::IsSince(rpc::VersionIn(welcome), rpc::kPartTokenSince);
    server_id_ = names_server ? welcome.server_id() : 0;
    renew_at_ = now_ + lease_ / 3;
    unreported_.clear();
    ever_welcomed_ = true;
    commands_.push_back(
        Say{absl::StrCat("node ", config_.node.node(), " is in the cluster at ", config_.server)});
    away_.clear();
  } else if (message.has_rejected()) {
    end_ = absl::Status(static_cast<absl::StatusCode>(message.rejected().code()),
                        message.rejected().message());
  } else if (message.has_agent()) {
    OnOrder(message.agent());
  }
}

void ClusterCore::OnOrder(const v1::AgentOrder& order) {
  if (order.has_start()) return OnStart(order.start());
  if (order.has_stop()) return OnStop(order.stop());
  if (order.has_read_log()) commands_.push_back(AnswerLog{order.read_log()});
}

void ClusterCore::OnStart(const v1::StartPart& start) {
  const uint64_t id = start.part().id();
  if (running_.count(id) != 0) return;
  if (free_gpus_.size() < start.part().gpus()) {
    return ReportUnstarted(id, "the node has too few free GPUs");
  }
  Running& part = running_.emplace(id, Running()).first->second;
  while (part.gpus.size() < start.part().gpus()) {
    part.gpus.push_back(*free_gpus_.begin());
    free_gpus_.erase(free_gpus_.begin());
  }
  part.grace = FromProto(start.spec().timeouts().stop_grace()) + kLauncherMargin;
  commands_.push_back(Say{absl::StrCat("job ", start.part().job(), ": starting its launcher for ",
                                       start.part().workers(), " workers as ", start.user())});
  commands_.push_back(StartLauncher{start, part.gpus, server_id_});
}

void ClusterCore::OnStop(const v1::StopPart& stop) {
  const auto found = running_.find(stop.id());
  if (found == running_.end()) return ReportUnstarted(stop.id(), "it does not run here");
  found->second.grace = FromProto(stop.grace());
  found->second.stop_at = std::min(found->second.stop_at, now_ + FromProto(stop.after()));
}

void ClusterCore::OnSignal(int signal) {
  if (leaving_) {
    end_ = absl::OkStatus();
    return;
  }
  commands_.push_back(Say{absl::StrCat("received signal ", signal, ", ending ", running_.size(),
                                       " launchers with grace")});
  leaving_ = true;
  // From now on this node gets nothing, and jobs get others for it.
  v1::AgentReport report;
  report.set_leaving(true);
  if (up_) Send(std::move(report));
  up_ = false;
  renew_at_ = MonoTime::Never();
  for (auto& [id, part] : running_) part.stop_at = std::min(part.stop_at, now_);
}

void ClusterCore::OnLauncherEnded(const LauncherEnded& ended) {
  const auto found = running_.find(ended.id);
  if (found == running_.end()) return;
  found->second.end = ended.end;
  found->second.stop_at = MonoTime::Never();
  // What it may have left goes too.
  commands_.push_back(StopLauncher{ended.id, absl::ZeroDuration()});
}

void ClusterCore::OnRemains(const PartRemains& remains) {
  const auto found = running_.find(remains.id);
  // The supervisor says it again to whoever asks again for an end.
  if (found == running_.end() || found->second.remains == remains.text) return;
  found->second.remains = remains.text;
  commands_.push_back(Say{absl::StrCat("a process of part ", remains.id, " ", remains.text,
                                       "; until then its slots are taken")});
  if (up_) ReportRemains(remains.id, remains.text);
}

void ClusterCore::Forget(uint64_t id, v1::PartReport end) {
  const auto found = running_.find(id);
  CADRE_CHECK(found != running_.end(), "part ", id, " does not run");
  for (const uint32_t gpu : found->second.gpus) {
    const bool was_taken = free_gpus_.insert(gpu).second;
    CADRE_CHECK(was_taken, "GPU ", gpu, " was nobody's");
  }
  running_.erase(found);
  commands_.push_back(RemoveFiles{id});
  end.set_id(id);
  Report(std::move(end));
}

void ClusterCore::OnDeadlines() {
  for (auto& [id, part] : running_) {
    if (part.stop_at > now_) continue;
    part.stop_at = MonoTime::Never();
    commands_.push_back(StopLauncher{id, part.grace});
  }
  if (renew_at_ > now_) return;
  renew_at_ = now_ + lease_ / 3;
  v1::NodeMessage renew;
  renew.set_incarnation(config_.incarnation);
  renew.mutable_renew();
  commands_.push_back(SendUp{std::move(renew)});
}

void ClusterCore::Report(v1::PartReport end) {
  if (!up_) {
    const uint64_t id = end.id();
    unreported_[id] = std::move(end);
    return;
  }
  v1::AgentReport report;
  *report.mutable_ended() = std::move(end);
  Send(std::move(report));
}

void ClusterCore::ReportRemains(uint64_t id, const std::string& text) {
  v1::AgentReport report;
  report.mutable_remains()->set_id(id);
  report.mutable_remains()->set_text(text);
  Send(std::move(report));
}

void ClusterCore::ReportUnstarted(uint64_t id, const std::string& text) {
  v1::PartReport end;
  end.set_id(id);
  end.set_text(text);
  Report(std::move(end));
}

void ClusterCore::Send(v1::AgentReport report) {
  v1::NodeMessage message;
  message.set_incarnation(config_.incarnation);
  *message.mutable_agent() = std::move(report);
  commands_.push_back(SendUp{std::move(message)});
}

}  // namespace cadre::agent
