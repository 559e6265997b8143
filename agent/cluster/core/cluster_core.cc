#include "agent/cluster/core/cluster_core.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/duration.h"
#include "rpc/versions.h"

namespace cadre::agent {
namespace {

constexpr absl::Duration kDefaultLease = absl::Seconds(10);
// The time from SIGTERM to SIGKILL, beyond the grace of the launcher's own workers.
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
  if (std::holds_alternative<LinkUp>(event)) {
    connected_ = true;
    SendJoined();
  } else if (const auto* down = std::get_if<LinkDown>(&event)) {
    OnLinkDown(down->status);
  } else if (const auto* received = std::get_if<ServerMessageReceived>(&event)) {
    OnServerMessage(received->message);
  } else if (const auto* signal = std::get_if<SignalReceived>(&event)) {
    OnSignal(signal->signal);
  } else if (const auto* failed = std::get_if<LauncherFailed>(&event)) {
    v1::PartReport end;
    end.set_text(failed->why);
    end.set_blame(failed->blame);
    if (running_.count(failed->id) != 0) EndAllocation(failed->id, std::move(end));
  } else if (const auto* ended = std::get_if<LauncherEnded>(&event)) {
    OnLauncherEnded(*ended);
  } else if (const auto* unkillable = std::get_if<AllocationUnkillable>(&event)) {
    OnUnkillable(*unkillable);
  } else if (const auto* gone = std::get_if<AllocationGone>(&event)) {
    const auto found = running_.find(gone->id);
    if (found != running_.end()) EndAllocation(gone->id, std::move(found->second.end));
  }
  OnDeadlines();
  if (closing_ && running_.empty() && !end_.has_value()) Leave();
  if (end_.has_value()) commands_.push_back(EndAgent{*end_});
  return std::exchange(commands_, {});
}

MonoTime ClusterCore::NextDeadline() const {
  if (end_.has_value()) return MonoTime::Never();
  MonoTime next = renew_at_;
  for (const auto& [id, allocation] : running_) next = std::min(next, allocation.stop_at);
  return next;
}

std::map<uint64_t, std::vector<uint32_t>> ClusterCore::Allocations() const {
  std::map<uint64_t, std::vector<uint32_t>> allocations;
  for (const auto& [id, allocation] : running_) allocations[id] = allocation.gpus;
  return allocations;
}

void ClusterCore::OnLinkDown(const absl::Status& status) {
  connected_ = false;
  renew_at_ = MonoTime::Never();
  const bool refused = absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
                       absl::IsInvalidArgument(status);
  // A refusal does not end the agent once it was welcomed, which saves its launchers. The link
  // retries, since the server may only have been started with another token for a moment.
  if (refused && !ever_welcomed_) OnRefused(status);
  // A server that refuses this agent is not merely away, so the operator must be told.
  if (away_.empty() || (refused && away_ != status.message())) {
    commands_.push_back(Say{absl::StrCat(
        refused ? "the server refuses this agent, which goes on trying: " : "the server is away: ",
        status.message())});
  }
  away_ = std::string(status.message());
}

void ClusterCore::OnRefused(const absl::Status& status) {
  if (!closing_) {
    end_ = status;
    return;
  }
  connected_ = false;
  renew_at_ = MonoTime::Never();
}

void ClusterCore::SendJoined() {
  v1::AgentReport report;
  *report.mutable_joined() = config_.node;
  *report.mutable_joined()->mutable_version() = rpc::ThisVersion();
  for (const auto& [id, allocation] : running_) report.mutable_joined()->add_parts(id);
  for (const auto& [id, end] : unreported_) report.mutable_joined()->add_parts(id);
  Send(std::move(report));
  if (closing_) SendClosing();
  for (const auto& [id, end] : unreported_) Report(end);
  for (const auto& [id, allocation] : running_) {
    if (!allocation.unkillable.empty()) ReportUnkillable(id, allocation.unkillable);
  }
}

void ClusterCore::SendClosing() {
  v1::AgentReport report;
  report.set_closing(true);
  Send(std::move(report));
}

void ClusterCore::Leave() {
  v1::AgentReport report;
  report.set_leaving(true);
  if (connected_) Send(std::move(report));
  end_ = absl::OkStatus();
}

void ClusterCore::OnServerMessage(const v1::ServerMessage& message) {
  if (message.has_welcome()) {
    const v1::Welcome& welcome = message.welcome();
    const absl::Status versions =
        rpc::CheckVersions("this node", rpc::ThisVersion(), "the server", rpc::VersionIn(welcome));
    if (!versions.ok()) return OnRefused(versions);
    const absl::Duration lease = FromProto(welcome.lease());
    if (lease > absl::ZeroDuration()) lease_ = lease;
    server_id_ = welcome.server_id();
    renew_at_ = now_ + lease_ / 3;
    unreported_.clear();
    ever_welcomed_ = true;
    commands_.push_back(
        Say{absl::StrCat("node ", config_.node.node(), " is in the cluster at ", config_.server)});
    away_.clear();
  } else if (message.has_rejected()) {
    OnRefused(absl::Status(static_cast<absl::StatusCode>(message.rejected().code()),
                           message.rejected().message()));
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
  if (closing_) {
    return ReportUnstarted(id, "the agent of the node is ending", v1::BLAME_NOBODY);
  }
  Running allocation;
  if (start.part().within() != 0) {
    const std::optional<std::vector<uint32_t>> gpus = GpusOfBatchJob(start);
    if (!gpus.has_value()) {
      // The node is as good as before once its batch job has it again.
      return ReportUnstarted(id, "its batch job has no longer what the step needs of this node",
                             v1::BLAME_NOBODY);
    }
    allocation.within = start.part().within();
    allocation.gpus = *gpus;
  } else if (free_gpus_.size() < start.part().gpus()) {
    return ReportUnstarted(id, "the node has too few free GPUs", v1::BLAME_NODE);
  } else {
    const auto end = std::next(free_gpus_.begin(), start.part().gpus());
    allocation.gpus.assign(free_gpus_.begin(), end);
    allocation.own_gpus.insert(free_gpus_.begin(), end);
    free_gpus_.erase(free_gpus_.begin(), end);
  }
  allocation.holds = start.part().holds();
  allocation.overlaps = start.spec().slurm_step().overlap();
  running_.emplace(id, allocation);
  CheckGpus();
  if (allocation.holds) {
    commands_.push_back(
        Say{absl::StrCat("job ", start.part().job(), ": this node is held for its steps")});
    return;
  }
  running_.at(id).grace = FromProto(start.spec().timeouts().stop_grace()) + kLauncherMargin;
  commands_.push_back(Say{absl::StrCat("job ", start.part().job(), ": starting its launcher for ",
                                       start.part().workers(), " workers as ", start.user())});
  commands_.push_back(StartLauncher{start, allocation.gpus, server_id_});
}

std::optional<std::vector<uint32_t>> ClusterCore::GpusOfBatchJob(const v1::StartPart& start) const {
  const auto batch = running_.find(start.part().within());
  if (batch == running_.end()) return std::nullopt;
  // How many steps use each GPU, those first that share it with no step that does not overlap.
  std::vector<std::tuple<size_t, size_t, uint32_t>> by_use;
  for (const uint32_t gpu : batch->second.gpus) {
    size_t exclusive = 0, overlapping = 0;
    for (const auto& [id, one] : running_) {
      if (one.within != batch->first) continue;
      if (std::find(one.gpus.begin(), one.gpus.end(), gpu) == one.gpus.end()) continue;
      ++(one.overlaps ? overlapping : exclusive);
    }
    by_use.emplace_back(exclusive, overlapping, gpu);
  }
  const size_t wanted = start.part().gpus();
  if (by_use.size() < wanted) return std::nullopt;
  std::sort(by_use.begin(), by_use.end());
  const bool shares = wanted > 0 && std::get<0>(by_use[wanted - 1]) > 0;
  if (shares && !start.spec().slurm_step().overlap()) return std::nullopt;
  std::vector<uint32_t> gpus;
  for (size_t i = 0; i < wanted; ++i) gpus.push_back(std::get<uint32_t>(by_use[i]));
  std::sort(gpus.begin(), gpus.end());
  return gpus;
}

void ClusterCore::OnStop(const v1::StopPart& stop) {
  const auto found = running_.find(stop.id());
  if (found == running_.end()) {
    return ReportUnstarted(stop.id(), "it does not run here", v1::BLAME_NODE);
  }
  if (found->second.holds) return EndAllocation(stop.id(), v1::PartReport());
  found->second.grace = FromProto(stop.grace());
  found->second.stop_at = std::min(found->second.stop_at, now_ + FromProto(stop.after()));
}

void ClusterCore::OnSignal(int signal) {
  // The server is not told: what runs here is killed only once this process is gone.
  if (closing_) {
    end_ = absl::OkStatus();
    return;
  }
  commands_.push_back(Say{absl::StrCat("received signal ", signal, ", ending ", running_.size(),
                                       " launchers with grace")});
  closing_ = true;
  // The server gives this node no allocations from now on, and finds other nodes for its jobs.
  if (connected_) SendClosing();
  for (auto next = running_.begin(); next != running_.end();) {
    const auto one = next++;
    if (one->second.holds) {
      EndAllocation(one->first, v1::PartReport());
    } else {
      one->second.stop_at = std::min(one->second.stop_at, now_);
    }
  }
}

void ClusterCore::OnLauncherEnded(const LauncherEnded& ended) {
  const auto found = running_.find(ended.id);
  if (found == running_.end()) return;
  found->second.end = ended.end;
  found->second.stop_at = MonoTime::Never();
  // Processes that the launcher may have left are killed.
  commands_.push_back(StopLauncher{ended.id, absl::ZeroDuration()});
}

void ClusterCore::OnUnkillable(const AllocationUnkillable& unkillable) {
  const auto found = running_.find(unkillable.id);
  // The supervisor repeats the report after each further StopFrame.
  if (found == running_.end() || found->second.unkillable == unkillable.text) return;
  found->second.unkillable = unkillable.text;
  commands_.push_back(Say{absl::StrCat("a process of allocation ", unkillable.id, " ",
                                       unkillable.text, "; its slots are taken until then")});
  if (connected_) ReportUnkillable(unkillable.id, unkillable.text);
}

void ClusterCore::EndAllocation(uint64_t id, v1::PartReport end) {
  const auto found = running_.find(id);
  CADRE_CHECK(found != running_.end(), "allocation ", id, " does not run");
  const Running ended = std::move(found->second);
  running_.erase(found);
  for (const uint32_t gpu : ended.own_gpus) PassOn(gpu, ended.within == 0 ? id : ended.within);
  CheckGpus();
  commands_.push_back(RemoveFiles{id});
  end.set_id(id);
  Report(std::move(end));
}

void ClusterCore::PassOn(uint32_t gpu, uint64_t batch_allocation) {
  for (auto& [id, allocation] : running_) {
    const std::vector<uint32_t>& used = allocation.gpus;
    if (allocation.within != batch_allocation) continue;
    if (std::find(used.begin(), used.end(), gpu) == used.end()) continue;
    allocation.own_gpus.insert(gpu);
    return;
  }
  const bool was_taken = free_gpus_.insert(gpu).second;
  CADRE_CHECK(was_taken, "GPU ", gpu, " belongs to no allocation");
}

void ClusterCore::CheckGpus() const {
  size_t gpus = free_gpus_.size();
  for (const auto& [id, allocation] : running_) gpus += allocation.own_gpus.size();
  CADRE_CHECK(gpus == config_.gpus.size(), gpus, " of ", config_.gpus.size(),
              " GPUs are free or belong to an allocation");
}

void ClusterCore::OnDeadlines() {
  for (auto& [id, allocation] : running_) {
    if (allocation.stop_at > now_) continue;
    allocation.stop_at = MonoTime::Never();
    commands_.push_back(StopLauncher{id, allocation.grace});
  }
  if (renew_at_ > now_) return;
  renew_at_ = now_ + lease_ / 3;
  v1::NodeMessage renew;
  renew.set_incarnation(config_.incarnation);
  renew.mutable_renew();
  commands_.push_back(SendToServer{std::move(renew)});
}

void ClusterCore::Report(v1::PartReport end) {
  if (!connected_) {
    const uint64_t id = end.id();
    unreported_[id] = std::move(end);
    return;
  }
  v1::AgentReport report;
  *report.mutable_ended() = std::move(end);
  Send(std::move(report));
}

void ClusterCore::ReportUnkillable(uint64_t id, const std::string& text) {
  v1::AgentReport report;
  report.mutable_remains()->set_id(id);
  report.mutable_remains()->set_text(text);
  Send(std::move(report));
}

void ClusterCore::ReportUnstarted(uint64_t id, const std::string& text, v1::PartBlame blame) {
  v1::PartReport end;
  end.set_id(id);
  end.set_text(text);
  end.set_blame(blame);
  Report(std::move(end));
}

void ClusterCore::Send(v1::AgentReport report) {
  v1::NodeMessage message;
  message.set_incarnation(config_.incarnation);
  *message.mutable_agent() = std::move(report);
  commands_.push_back(SendToServer{std::move(message)});
}

}  // namespace cadre::agent
