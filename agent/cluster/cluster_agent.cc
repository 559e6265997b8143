#include "agent/cluster/cluster_agent.h"

#include <poll.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/cluster/log_file.h"
#include "agent/cluster/part_end.h"
#include "agent/event_queue.h"
#include "agent/signal_reader.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

constexpr absl::Duration kDefaultLease = absl::Seconds(10);
// From SIGTERM to SIGKILL, beyond the grace of the launcher's own workers.
constexpr absl::Duration kLauncherMargin = absl::Seconds(10);

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

class ClusterAgent {
 public:
  ClusterAgent(const ClusterAgentOptions& options, std::unique_ptr<SupervisorClient> supervisor,
               ServerLink& link)
      : options_(options),
        supervisor_(std::move(supervisor)),
        link_(link),
        free_gpus_(options.gpus.begin(), options.gpus.end()) {}

  absl::Status Run();

 private:
  // A launcher that runs, or of which something is left.
  struct Running {
    std::vector<uint32_t> gpus;
    absl::Duration grace;
    // When it is told to end.
    MonoTime stop_at = MonoTime::Never();
    // Once its launcher has ended: what is said of it when nothing else of it is left.
    v1::PartReport end;
  };

  void Wait();
  void OnEvent(AgentEvent& event);
  void OnServerSaid(const v1::ServerMessage& message);
  void OnOrder(const v1::AgentOrder& order);
  void StartPart(const v1::StartPart& start);
  void OnSignal(int signal);
  void OnFrame(const Frame& frame);
  void OnTime();
  void ToSupervisor(const Frame& frame);
  void Report(v1::PartReport end);
  void ReportUnstarted(uint64_t id, const std::string& text);
  void Send(v1::AgentReport report);
  void SayJoined();
  void Answer(const v1::ReadLog& read);

  const ClusterAgentOptions& options_;
  std::unique_ptr<SupervisorClient> supervisor_;
  ServerLink& link_;
  std::unique_ptr<EventQueue> queue_;
  std::unique_ptr<SignalReader> signals_;
  std::map<uint64_t, Running> running_;
  std::set<uint32_t> free_gpus_;
  // What the server may not have heard: it counts as running until a stream has taken it.
  std::map<uint64_t, v1::PartReport> unreported_;
  bool up_ = false;
  bool welcomed_ = false;
  std::string away_;
  absl::Duration lease_ = kDefaultLease;
  MonoTime renew_at_ = MonoTime::Never();
  bool leaving_ = false;
  std::optional<absl::Status> end_;
};

absl::Status ClusterAgent::Run() {
  ASSIGN_OR_RETURN(queue_, EventQueue::Make());
  ASSIGN_OR_RETURN(signals_, SignalReader::Make());
  EventQueue* queue = queue_.get();
  link_.Start({[queue] { queue->Push(LinkUp{}); },
               [queue](v1::ServerMessage message) { queue->Push(ServerSaid{std::move(message)}); },
               [queue](absl::Status status) { queue->Push(LinkDown{std::move(status)}); }});
  while (!end_.has_value()) {
    Wait();
    for (AgentEvent& event : queue_->TakeAll()) OnEvent(event);
    if (queue_->overflowed()) end_ = absl::InternalError("the agent does not keep up");
    for (const int signal : signals_->Read()) OnSignal(signal);
    absl::StatusOr<std::vector<Frame>> frames = supervisor_->Read();
    if (!frames.ok() || (supervisor_->WantsWrite() && !supervisor_->Flush().ok())) {
      end_ = absl::InternalError("cadre-supervisor is gone, and all launchers with it");
      break;
    }
    for (const Frame& frame : *frames) OnFrame(frame);
    OnTime();
    if (leaving_ && running_.empty() && !end_.has_value()) end_ = absl::OkStatus();
  }
  link_.Stop();
  return *end_;
}

void ClusterAgent::Wait() {
  const short supervisor_events = POLLIN | (supervisor_->WantsWrite() ? POLLOUT : 0);
  pollfd fds[] = {{queue_->fd(), POLLIN, 0},
                  {signals_->fd(), POLLIN, 0},
                  {supervisor_->fd(), supervisor_events, 0}};
  MonoTime deadline = renew_at_;
  for (const auto& [id, part] : running_) deadline = std::min(deadline, part.stop_at);
  timespec timeout = {};
  if (deadline != MonoTime::Never()) {
    timeout = absl::ToTimespec(std::max(deadline - MonoNow(), absl::ZeroDuration()));
  }
  ppoll(fds, std::size(fds), deadline == MonoTime::Never() ? nullptr : &timeout, nullptr);
}

void ClusterAgent::OnEvent(AgentEvent& event) {
  if (const auto* said = std::get_if<ServerSaid>(&event)) return OnServerSaid(said->message);
  if (std::holds_alternative<LinkUp>(event)) {
    if (leaving_) return;
    up_ = true;
    return SayJoined();
  }
  const auto* down = std::get_if<LinkDown>(&event);
  if (down == nullptr) return;
  up_ = false;
  renew_at_ = MonoTime::Never();
  const absl::Status& status = down->status;
  const bool refused = absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
                       absl::IsInvalidArgument(status);
  // What was meant for the last stream may have come first on this one.
  if (refused && !welcomed_) end_ = status;
  if (leaving_) return;
  if (away_.empty()) options_.log(absl::StrCat("the server is away: ", status.message()));
  away_ = std::string(status.message());
}

void ClusterAgent::SayJoined() {
  v1::AgentReport report;
  *report.mutable_joined() = options_.node;
  for (const auto& [id, part] : running_) report.mutable_joined()->add_parts(id);
  for (const auto& [id, end] : unreported_) report.mutable_joined()->add_parts(id);
  Send(std::move(report));
  for (const auto& [id, end] : unreported_) Report(end);
}

void ClusterAgent::OnServerSaid(const v1::ServerMessage& message) {
  if (leaving_) return;
  if (message.has_welcome()) {
    const absl::Duration lease = FromProto(message.welcome().lease());
    if (lease > absl::ZeroDuration()) lease_ = lease;
    renew_at_ = MonoNow() + lease_ / 3;
    unreported_.clear();
    welcomed_ = true;
    options_.log(absl::StrCat("node ", options_.node.node(), " is in the cluster at ",
                              options_.start.server));
    away_.clear();
  } else if (message.has_rejected()) {
    end_ = absl::Status(static_cast<absl::StatusCode>(message.rejected().code()),
                        message.rejected().message());
  } else if (message.has_agent()) {
    OnOrder(message.agent());
  }
}

void ClusterAgent::OnOrder(const v1::AgentOrder& order) {
  if (order.has_start()) return StartPart(order.start());
  if (order.has_read_log()) return Answer(order.read_log());
  if (!order.has_stop()) return;
  const auto found = running_.find(order.stop().id());
  if (found == running_.end()) return ReportUnstarted(order.stop().id(), "it does not run here");
  found->second.grace = FromProto(order.stop().grace());
  found->second.stop_at =
      std::min(found->second.stop_at, MonoNow() + FromProto(order.stop().after()));
}

void ClusterAgent::StartPart(const v1::StartPart& start) {
  const uint64_t id = start.part().id();
  if (running_.count(id) != 0) return;
  if (free_gpus_.size() < start.part().gpus())
    return ReportUnstarted(id, "the node has too few free GPUs");
  Running part;
  while (part.gpus.size() < start.part().gpus()) {
    part.gpus.push_back(*free_gpus_.begin());
    free_gpus_.erase(free_gpus_.begin());
  }
  part.grace = FromProto(start.spec().timeouts().stop_grace()) + kLauncherMargin;
  const absl::StatusOr<StartFrame> frame = PreparePart(options_.start, start, part.gpus);
  if (!frame.ok()) {
    free_gpus_.insert(part.gpus.begin(), part.gpus.end());
    RemovePart(options_.start, id);
    options_.log(absl::StrCat("job ", start.part().job(), ": ", frame.status().message()));
    return ReportUnstarted(id, std::string(frame.status().message()));
  }
  options_.log(absl::StrCat("job ", start.part().job(), ": starting its launcher for ",
                            start.part().workers(), " workers as ", start.user()));
  running_[id] = std::move(part);
  ToSupervisor(*frame);
}

void ClusterAgent::OnSignal(int signal) {
  if (leaving_) {
    end_ = absl::OkStatus();
    return;
  }
  options_.log(absl::StrCat("received signal ", signal, ", ending ", running_.size(),
                            " launchers with grace"));
  leaving_ = true;
  // From now on this node gets nothing, and jobs get others for it.
  v1::AgentReport report;
  report.set_leaving(true);
  if (up_) Send(std::move(report));
  up_ = false;
  renew_at_ = MonoTime::Never();
  for (auto& [id, part] : running_) part.stop_at = std::min(part.stop_at, MonoNow());
}

void ClusterAgent::OnFrame(const Frame& frame) {
  if (const auto* exited = std::get_if<ExitedFrame>(&frame)) {
    const auto found = running_.find(exited->generation);
    if (found == running_.end()) return;
    found->second.end = EndOfPart(*exited);
    found->second.stop_at = MonoTime::Never();
    // What it may have left goes too.
    ToSupervisor(StopFrame{exited->generation, 0});
  } else if (const auto* gone = std::get_if<AllGoneFrame>(&frame)) {
    const auto found = running_.find(gone->generation);
    if (found == running_.end()) return;
    free_gpus_.insert(found->second.gpus.begin(), found->second.gpus.end());
    v1::PartReport end = std::move(found->second.end);
    end.set_id(gone->generation);
    running_.erase(found);
    RemovePart(options_.start, gone->generation);
    Report(std::move(end));
  }
}

void ClusterAgent::OnTime() {
  const MonoTime now = MonoNow();
  for (auto& [id, part] : running_) {
    if (part.stop_at > now) continue;
    part.stop_at = MonoTime::Never();
    const int64_t grace_ms = std::min<int64_t>(absl::ToInt64Milliseconds(part.grace), UINT32_MAX);
    ToSupervisor(StopFrame{id, static_cast<uint32_t>(grace_ms)});
  }
  if (renew_at_ > now) return;
  renew_at_ = now + lease_ / 3;
  v1::NodeMessage renew;
  renew.set_incarnation(options_.incarnation);
  renew.mutable_renew();
  link_.Send(std::move(renew));
}

void ClusterAgent::ToSupervisor(const Frame& frame) {
  if (!supervisor_->Send(frame).ok()) {
    end_ = absl::InternalError("cadre-supervisor takes no orders; all launchers end");
  }
}

void ClusterAgent::Report(v1::PartReport end) {
  if (!up_) {
    const uint64_t id = end.id();
    unreported_[id] = std::move(end);
    return;
  }
  v1::AgentReport report;
  *report.mutable_ended() = std::move(end);
  Send(std::move(report));
}

void ClusterAgent::ReportUnstarted(uint64_t id, const std::string& text) {
  v1::PartReport end;
  end.set_id(id);
  end.set_text(text);
  Report(std::move(end));
}

void ClusterAgent::Send(v1::AgentReport report) {
  v1::NodeMessage message;
  message.set_incarnation(options_.incarnation);
  *message.mutable_agent() = std::move(report);
  link_.Send(std::move(message));
}

void ClusterAgent::Answer(const v1::ReadLog& read) {
  v1::AgentReport report;
  absl::StatusOr<v1::LogChunk> chunk = ReadLogFile(read, options_.start.root_too);
  if (chunk.ok()) {
    *report.mutable_log() = *std::move(chunk);
    // On other nodes there are files of the same numbers.
    report.mutable_log()->set_file(absl::StrCat(options_.node.node(), ":", report.log().file()));
  } else {
    report.mutable_log()->set_code(static_cast<int>(chunk.status().code()));
    report.mutable_log()->set_message(std::string(chunk.status().message()));
  }
  report.mutable_log()->set_call(read.call());
  Send(std::move(report));
}

}  // namespace

absl::Status RunClusterAgent(const ClusterAgentOptions& options,
                             std::unique_ptr<SupervisorClient> supervisor, ServerLink& link) {
  return ClusterAgent(options, std::move(supervisor), link).Run();
}

}  // namespace cadre
