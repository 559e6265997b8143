#include "agent/cluster/cluster_agent.h"

#include <poll.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/cluster/core/cluster_core.h"
#include "agent/cluster/log_file.h"
#include "agent/cluster/part_end.h"
#include "agent/cluster/part_groups.h"
#include "agent/event_queue.h"
#include "agent/evidence/exit_report.h"
#include "agent/signal_reader.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "rpc/worker_end.h"

namespace cadre::agent {
namespace {

ClusterCoreConfig CoreConfigOf(const ClusterAgentOptions& options) {
  return {options.node, options.incarnation, options.start.server, options.gpus};
}

// Wires the core: link, supervisor, signals, files. No decisions.
class ClusterAgent {
 public:
  ClusterAgent(const ClusterAgentOptions& options, std::unique_ptr<supervisor::Client> supervisor,
               ServerLink& link)
      : options_(options),
        supervisor_(std::move(supervisor)),
        link_(link),
        core_(CoreConfigOf(options)) {}

  absl::Status Run();

 private:
  void Wait();
  void OnEvent(const AgentEvent& event);
  void OnFrame(const supervisor::Frame& frame);
  void Feed(ClusterEvent event);
  void Execute(ClusterCommand command);
  void Launch(const StartLauncher& command);
  void ToSupervisor(const supervisor::Frame& frame);
  void Answer(const v1::ReadLog& read);

  const ClusterAgentOptions& options_;
  std::unique_ptr<supervisor::Client> supervisor_;
  ServerLink& link_;
  std::unique_ptr<EventQueue> queue_;
  std::unique_ptr<SignalReader> signals_;
  ClusterCore core_;
  PartGroups groups_;
  std::deque<ClusterEvent> own_events_;  // what carrying out a command led to
  std::optional<absl::Status> end_;
};

absl::Status ClusterAgent::Run() {
  ASSIGN_OR_RETURN(queue_, EventQueue::Make([this](const AgentEvent& event) { OnEvent(event); }));
  ASSIGN_OR_RETURN(signals_, SignalReader::Make());
  EventQueue* queue = queue_.get();
  link_.Start({[queue] { queue->Push(LinkUp{}); },
               [queue](v1::ServerMessage message) { queue->Push(ServerSaid{std::move(message)}); },
               [queue](absl::Status status) { queue->Push(LinkDown{std::move(status)}); }});
  while (!end_.has_value()) {
    Wait();
    queue_->HandleAll();
    if (queue_->overflowed()) end_ = absl::InternalError("the agent does not keep up");
    for (const int signal : signals_->Read()) Feed(SignalReceived{signal});
    absl::StatusOr<std::vector<supervisor::Frame>> frames = supervisor_->Read();
    if (!frames.ok() || (supervisor_->WantsWrite() && !supervisor_->Flush().ok())) {
      end_ = absl::InternalError("cadre-supervisor is gone, and all launchers with it");
      break;
    }
    for (const supervisor::Frame& frame : *frames) OnFrame(frame);
    if (core_.NextDeadline() > MonoNow()) continue;
    const std::string stopped = supervisor_->ContinueIfStopped();
    if (!stopped.empty()) options_.log(stopped);
    Feed(AgentTick{});
  }
  link_.Stop();
  return *end_;
}

void ClusterAgent::Wait() {
  const short supervisor_events = POLLIN | (supervisor_->WantsWrite() ? POLLOUT : 0);
  pollfd fds[] = {{queue_->fd(), POLLIN, 0},
                  {signals_->fd(), POLLIN, 0},
                  {supervisor_->fd(), supervisor_events, 0}};
  const MonoTime deadline = core_.NextDeadline();
  timespec timeout = {};
  if (deadline != MonoTime::Never()) {
    timeout = absl::ToTimespec(std::max(deadline - MonoNow(), absl::ZeroDuration()));
  }
  ppoll(fds, std::size(fds), deadline == MonoTime::Never() ? nullptr : &timeout, nullptr);
}

void ClusterAgent::OnEvent(const AgentEvent& event) {
  if (const auto* up = std::get_if<LinkUp>(&event)) return Feed(*up);
  if (const auto* down = std::get_if<LinkDown>(&event)) return Feed(*down);
  if (const auto* said = std::get_if<ServerSaid>(&event)) return Feed(*said);
}

void ClusterAgent::OnFrame(const supervisor::Frame& frame) {
  if (const auto* exited = std::get_if<supervisor::ExitedFrame>(&frame)) {
    const std::optional<uint64_t> part = groups_.PartOf(exited->group);
    if (part.has_value()) Feed(LauncherEnded{*part, EndOfPart(*exited)});
  } else if (const auto* gone = std::get_if<supervisor::AllGoneFrame>(&frame)) {
    const std::optional<uint64_t> part = groups_.PartOf(gone->group);
    if (!part.has_value()) return;
    groups_.Remove(*part);
    Feed(PartGone{*part});
  } else if (const auto* remains = std::get_if<supervisor::RemainsFrame>(&frame)) {
    const std::optional<uint64_t> part = groups_.PartOf(remains->group);
    if (part.has_value()) Feed(PartRemains{*part, rpc::WhatRemains(RemainsOf(*remains, 0))});
  }
}

void ClusterAgent::Feed(ClusterEvent event) {
  own_events_.push_back(std::move(event));
  while (!own_events_.empty() && !end_.has_value()) {
    const ClusterEvent next = std::move(own_events_.front());
    own_events_.pop_front();
    for (ClusterCommand& command : core_.Step(MonoNow(), next)) Execute(std::move(command));
  }
}

void ClusterAgent::Execute(ClusterCommand command) {
  if (auto* send = std::get_if<SendUp>(&command)) return link_.Send(std::move(send->message));
  if (const auto* start = std::get_if<StartLauncher>(&command)) return Launch(*start);
  if (const auto* stop = std::get_if<StopLauncher>(&command)) {
    const std::optional<uint64_t> group = groups_.GroupOf(stop->id);
    if (!group.has_value()) return;  // it could not be started, which the core is about to hear
    const int64_t grace_ms = std::min<int64_t>(absl::ToInt64Milliseconds(stop->grace), UINT32_MAX);
    return ToSupervisor(supervisor::StopFrame{*group, static_cast<uint32_t>(grace_ms)});
  }
  if (const auto* files = std::get_if<RemoveFiles>(&command)) {
    return RemovePart(options_.start, files->id);
  }
  if (const auto* log = std::get_if<AnswerLog>(&command)) return Answer(log->read);
  if (const auto* say = std::get_if<Say>(&command)) return options_.log(say->line);
  end_ = std::get<EndAgent>(command).status;
}

void ClusterAgent::Launch(const StartLauncher& command) {
  const v1::Part& part = command.start.part();
  absl::StatusOr<supervisor::StartFrame> frame =
      PreparePart(options_.start, command.start, command.gpus, command.server_id);
  if (frame.ok()) {
    frame->group = groups_.Add(part.id());
    return ToSupervisor(*frame);
  }
  options_.log(absl::StrCat("job ", part.job(), ": ", frame.status().message()));
  own_events_.push_back(LauncherFailed{part.id(), std::string(frame.status().message())});
}

void ClusterAgent::ToSupervisor(const supervisor::Frame& frame) {
  if (!supervisor_->Send(frame).ok()) {
    end_ = absl::InternalError("cadre-supervisor takes no orders; all launchers end");
  }
}

void ClusterAgent::Answer(const v1::ReadLog& read) {
  v1::NodeMessage message;
  message.set_incarnation(options_.incarnation);
  v1::LogChunk* log = message.mutable_agent()->mutable_log();
  absl::StatusOr<v1::LogChunk> chunk = ReadLogFile(read, options_.start.root_too);
  if (chunk.ok()) {
    *log = *std::move(chunk);
    // On other nodes there are files of the same numbers.
    log->set_file(absl::StrCat(options_.node.node(), ":", log->file()));
  } else {
    log->set_code(static_cast<int>(chunk.status().code()));
    log->set_message(std::string(chunk.status().message()));
  }
  log->set_call(read.call());
  link_.Send(std::move(message));
}

}  // namespace

absl::Status RunClusterAgent(const ClusterAgentOptions& options,
                             std::unique_ptr<supervisor::Client> supervisor, ServerLink& link) {
  return ClusterAgent(options, std::move(supervisor), link).Run();
}

}  // namespace cadre::agent
