#include "agent/cluster/cluster_agent.h"

#include <poll.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/cluster/core/cluster_core.h"
#include "agent/cluster/file_calls.h"
#include "agent/cluster/log_file.h"
#include "agent/cluster/part_end.h"
#include "agent/cluster/part_groups.h"
#include "agent/cluster/part_removal.h"
#include "agent/event_queue.h"
#include "agent/exit_report.h"
#include "agent/signal_reader.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "rpc/worker_end.h"

namespace cadre::agent {
namespace {

// The parts' files and the user database.
constexpr char kParts[] = "parts";
constexpr absl::Duration kPartLimit = absl::Seconds(10);
// Whoever asks waits for 8 s.
constexpr absl::Duration kLogLimit = absl::Seconds(5);
constexpr size_t kLogReadsMax = 256;
constexpr size_t kRemovalsMax = 4096;

// Of the work for parts: each has a CPU at least, and while one is started the files of the one
// before it may still have to be removed.
size_t PartCallsMax(const ClusterAgentOptions& options) { return size_t{2} * options.node.cpus(); }

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
        core_(CoreConfigOf(options)),
        part_calls_(PartCallsMax(options)) {}

  absl::Status Run();

 private:
  void Wait();
  void OnEvent(const AgentEvent& event);
  void OnFrame(const supervisor::Frame& frame);
  void Feed(ClusterEvent event);
  void FeedOwn();
  void Execute(ClusterCommand command);
  void Remove(uint64_t id, const AsidePart& aside);
  void LeaveFiles(uint64_t id);
  void Launch(StartLauncher command);
  void OnPrepared(uint64_t attempt, uint64_t part, const std::string& job,
                  absl::StatusOr<supervisor::StartFrame> frame);
  // Its start was not over.
  void Unlaunch(uint64_t part, const absl::Status& why);
  void ToSupervisor(const supervisor::Frame& frame);
  void ReadFor(v1::ReadLog read);
  void Answer(const v1::ReadLog& read, absl::StatusOr<v1::LogChunk> chunk);

  const ClusterAgentOptions& options_;
  std::unique_ptr<supervisor::Client> supervisor_;
  ServerLink& link_;
  std::unique_ptr<EventQueue> queue_;
  std::unique_ptr<SignalReader> signals_;
  ClusterCore core_;
  uint64_t stream_ = 0;  // that the core knows of
  PartGroups groups_;
  FileCalls part_calls_;
  // Users' reading takes no place from parts.
  FileCalls log_reads_{kLogReadsMax};
  // Nor does removing what jobs left, by user.
  FileCalls removals_{kRemovalsMax};
  // Parts whose files are on their way, each with the number of its attempt.
  std::map<uint64_t, uint64_t> preparing_;
  uint64_t attempts_ = 0;
  std::deque<ClusterEvent> own_events_;  // what carrying out a command led to
  std::optional<absl::Status> end_;
};

absl::Status ClusterAgent::Run() {
  ASSIGN_OR_RETURN(queue_, EventQueue::Make([this](const AgentEvent& event) { OnEvent(event); }));
  ASSIGN_OR_RETURN(signals_, SignalReader::Make());
  EventQueue* queue = queue_.get();
  link_.Start({[queue](uint64_t stream) { queue->Push(LinkUp{stream}); },
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
    for (FileCalls* calls : {&part_calls_, &log_reads_, &removals_}) calls->Handle(MonoNow());
    FeedOwn();
    if (core_.NextDeadline() > MonoNow()) continue;
    const std::string stopped = supervisor_->ContinueIfStopped();
    if (!stopped.empty()) options_.log(stopped);
    Feed(AgentTick{});
  }
  link_.Stop();
  for (FileCalls* calls : {&part_calls_, &log_reads_, &removals_}) calls->Drain();
  return *end_;
}

void ClusterAgent::Wait() {
  const short supervisor_events = POLLIN | (supervisor_->WantsWrite() ? POLLOUT : 0);
  pollfd fds[] = {{queue_->fd(), POLLIN, 0},
                  {signals_->fd(), POLLIN, 0},
                  {supervisor_->fd(), supervisor_events, 0},
                  {part_calls_.fd(), POLLIN, 0},
                  {log_reads_.fd(), POLLIN, 0},
                  {removals_.fd(), POLLIN, 0}};
  const MonoTime deadline =
      std::min({core_.NextDeadline(), part_calls_.NextDeadline(), log_reads_.NextDeadline()});
  timespec timeout = {};
  if (deadline != MonoTime::Never()) {
    timeout = absl::ToTimespec(std::max(deadline - MonoNow(), absl::ZeroDuration()));
  }
  ppoll(fds, std::size(fds), deadline == MonoTime::Never() ? nullptr : &timeout, nullptr);
}

void ClusterAgent::OnEvent(const AgentEvent& event) {
  if (const auto* up = std::get_if<LinkUp>(&event)) {
    stream_ = up->stream;
    return Feed(*up);
  }
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
  FeedOwn();
}

void ClusterAgent::FeedOwn() {
  while (!own_events_.empty() && !end_.has_value()) {
    const ClusterEvent next = std::move(own_events_.front());
    own_events_.pop_front();
    for (ClusterCommand& command : core_.Step(MonoNow(), next)) Execute(std::move(command));
  }
}

void ClusterAgent::Execute(ClusterCommand command) {
  if (auto* send = std::get_if<SendUp>(&command))
    return link_.Send(stream_, std::move(send->message));
  if (auto* start = std::get_if<StartLauncher>(&command)) return Launch(std::move(*start));
  if (const auto* stop = std::get_if<StopLauncher>(&command)) {
    const std::optional<uint64_t> group = groups_.GroupOf(stop->id);
    if (!group.has_value())
      return Unlaunch(stop->id, absl::CancelledError("it was ended before it began"));
    const int64_t grace_ms = std::min<int64_t>(absl::ToInt64Milliseconds(stop->grace), UINT32_MAX);
    return ToSupervisor(supervisor::StopFrame{*group, static_cast<uint32_t>(grace_ms)});
  }
  if (const auto* files = std::get_if<RemoveFiles>(&command)) {
    const auto set_aside = [this, options = options_.start, id = files->id]() -> FileCalls::Then {
      return [this, id, aside = SetAsidePart(options, id)] { Remove(id, aside); };
    };
    if (!part_calls_.Start(kParts, {set_aside, nullptr, kPartLimit}, MonoNow()))
      LeaveFiles(files->id);
    return;
  }
  if (auto* log = std::get_if<AnswerLog>(&command)) return ReadFor(std::move(log->read));
  if (const auto* say = std::get_if<Say>(&command)) return options_.log(say->line);
  end_ = std::get<EndAgent>(command).status;
}

// Users do not wait for what other users' jobs left.
void ClusterAgent::Remove(uint64_t id, const AsidePart& aside) {
  if (aside.path.empty()) return;
  const auto remove = [this, id, path = aside.path]() -> FileCalls::Then {
    if (RemoveAsOwners(path)) return nullptr;
    return [this, id] { LeaveFiles(id); };
  };
  const FileCalls::Call call = {remove, nullptr, absl::InfiniteDuration()};
  if (!removals_.Start(absl::StrCat("user ", aside.uid), call, MonoNow())) LeaveFiles(id);
}

void ClusterAgent::LeaveFiles(uint64_t id) {
  options_.log(absl::StrCat("files of part ", id, " are left until an agent starts anew"));
}

void ClusterAgent::Launch(StartLauncher command) {
  const uint64_t part = command.start.part().id();
  const std::string job = command.start.part().job();
  const uint64_t attempt = preparing_[part] = ++attempts_;
  const auto done = [this, attempt, part, job](absl::StatusOr<supervisor::StartFrame> frame) {
    OnPrepared(attempt, part, job, std::move(frame));
  };
  const auto prepare = [done, options = options_.start,
                        command = std::move(command)]() -> FileCalls::Then {
    return [done, frame = PreparePart(options, command.start, command.gpus, command.server_id)] {
      done(frame);
    };
  };
  const auto late = [done] {
    done(absl::DeadlineExceededError(
        "its files cannot be made: the file system or the user database does not answer"));
  };
  if (!part_calls_.Start(kParts, {prepare, late, kPartLimit}, MonoNow())) {
    done(absl::ResourceExhaustedError("too many launchers are to be started at once"));
  }
}

void ClusterAgent::OnPrepared(uint64_t attempt, uint64_t part, const std::string& job,
                              absl::StatusOr<supervisor::StartFrame> frame) {
  const auto found = preparing_.find(part);
  if (found == preparing_.end() || found->second != attempt) return;
  if (!frame.ok()) {
    options_.log(absl::StrCat("job ", job, ": ", frame.status().message()));
    return Unlaunch(part, frame.status());
  }
  preparing_.erase(found);
  frame->group = groups_.Add(part);
  ToSupervisor(*frame);
}

void ClusterAgent::Unlaunch(uint64_t part, const absl::Status& why) {
  if (preparing_.erase(part) == 0) return;
  own_events_.push_back(
      LauncherFailed{part, std::string(why.message()), BlameForUnstarted(why.code())});
}

void ClusterAgent::ToSupervisor(const supervisor::Frame& frame) {
  if (!supervisor_->Send(frame).ok()) {
    end_ = absl::InternalError("cadre-supervisor takes no orders; all launchers end");
  }
}

void ClusterAgent::ReadFor(v1::ReadLog read) {
  // Users do not wait for one another's file systems.
  const std::string key = absl::StrCat("user ", read.user());
  const std::string where = read.dir();
  const auto late = [this, read, where] {
    Answer(read, absl::DeadlineExceededError(
                     absl::StrCat("the file system of ", where, " does not answer")));
  };
  if (log_reads_.StandsStill(key, MonoNow())) return late();
  const auto work = [this, read, root_too = options_.start.root_too]() -> FileCalls::Then {
    return [this, read, chunk = ReadLogFile(read, root_too)] { Answer(read, chunk); };
  };
  if (log_reads_.Start(key, {work, late, kLogLimit}, MonoNow())) return;
  Answer(read, absl::ResourceExhaustedError("too many logs are read here at once"));
}

void ClusterAgent::Answer(const v1::ReadLog& read, absl::StatusOr<v1::LogChunk> chunk) {
  v1::NodeMessage message;
  message.set_incarnation(options_.incarnation);
  v1::LogChunk* log = message.mutable_agent()->mutable_log();
  if (chunk.ok()) {
    *log = *std::move(chunk);
    // On other nodes there are files of the same numbers.
    log->set_file(absl::StrCat(options_.node.node(), ":", log->file()));
  } else {
    log->set_code(static_cast<int>(chunk.status().code()));
    log->set_message(std::string(chunk.status().message()));
  }
  log->set_call(read.call());
  link_.Send(stream_, std::move(message));
}

}  // namespace

absl::Status RunClusterAgent(const ClusterAgentOptions& options,
                             std::unique_ptr<supervisor::Client> supervisor, ServerLink& link) {
  return ClusterAgent(options, std::move(supervisor), link).Run();
}

}  // namespace cadre::agent
