#include "agent/cluster/cluster_agent.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "agent/cluster/allocation_launcher.h"
#include "agent/cluster/allocations_directory.h"
#include "agent/cluster/core/cluster_core.h"
#include "agent/cluster/file_calls.h"
#include "agent/event_queue.h"
#include "agent/signal_reader.h"
#include "agent/workers/exit_report.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/status_macros.h"
#include "rpc/worker_end.h"

namespace cadre::agent {
namespace {

// The key of calls on the allocations' files and the user database, and their time limit.
constexpr char kAllocations[] = "allocations";
constexpr absl::Duration kAllocationLimit = absl::Seconds(10);
// The client waits for 8 s.
constexpr absl::Duration kLogLimit = absl::Seconds(5);
constexpr size_t kLogReadsMax = 256;
constexpr size_t kRemovalsMax = 4096;

// The limit of pending calls for allocations. Each allocation has at least one CPU, and while one
// is started the files of the allocation before may still have to be removed.
size_t AllocationCallsMax(const ClusterAgentOptions& options) {
  return size_t{2} * options.node.cpus();
}

ClusterCoreConfig CoreConfigOf(const ClusterAgentOptions& options) {
  return {options.node, options.incarnation, options.start.server, options.gpus};
}

// Connects the core to the link, the supervisor, signals and files. It decides nothing itself.
class ClusterAgent {
 public:
  ClusterAgent(const ClusterAgentOptions& options, std::unique_ptr<supervisor::Client> supervisor,
               ServerLink& link)
      : options_(options),
        supervisor_(std::move(supervisor)),
        link_(link),
        core_(CoreConfigOf(options)),
        allocation_calls_(AllocationCallsMax(options)) {}

  absl::Status Run();

 private:
  void Wait();
  void OnEvent(const AgentEvent& event);
  void OnFrame(const supervisor::Frame& frame);
  void Feed(ClusterEvent event);
  void FeedPending();
  void Execute(ClusterCommand command);
  void Remove(uint64_t id, const RetiredDirectory& retired);
  void LeaveFiles(uint64_t id);
  void Launch(StartLauncher command);
  void OnPrepared(uint64_t attempt, uint64_t allocation, const std::string& job,
                  absl::StatusOr<supervisor::StartFrame> frame);
  // Reports the allocation as not started if its start was still being prepared.
  void FailLaunch(uint64_t allocation, const absl::Status& why);
  void SendToSupervisor(const supervisor::Frame& frame);
  void ReadLog(v1::ReadLog read);
  void Answer(const v1::ReadLog& read, absl::StatusOr<v1::LogChunk> chunk);

  const ClusterAgentOptions& options_;
  std::unique_ptr<supervisor::Client> supervisor_;
  ServerLink& link_;
  std::unique_ptr<EventQueue> queue_;
  std::unique_ptr<SignalReader> signals_;
  ClusterCore core_;
  uint64_t stream_ = 0;  // the link's stream that the core knows of
  AllocationGroups groups_;
  FileCalls allocation_calls_;
  // A queue of its own, so that users' log reads do not delay allocations.
  FileCalls log_reads_{kLogReadsMax};
  // A queue of its own, so that removing files of users' jobs does not delay allocations. Keyed by
  // user.
  FileCalls removals_{kRemovalsMax};
  // Allocations whose files are being written, each with the number of its attempt.
  std::map<uint64_t, uint64_t> preparing_;
  uint64_t attempts_ = 0;
  std::deque<ClusterEvent> pending_events_;  // events caused by executing commands
  std::optional<absl::Status> end_;
};

absl::Status ClusterAgent::Run() {
  ASSIGN_OR_RETURN(queue_, EventQueue::Make([this](const AgentEvent& event) { OnEvent(event); }));
  ASSIGN_OR_RETURN(signals_, SignalReader::Make());
  EventQueue* queue = queue_.get();
  link_.Start({[queue](uint64_t stream) { queue->Push(LinkUp{stream}); },
               [queue](v1::ServerMessage message) {
                 queue->Push(ServerMessageReceived{std::move(message)});
               },
               [queue](absl::Status status) { queue->Push(LinkDown{std::move(status)}); }});
  while (!end_.has_value()) {
    Wait();
    queue_->HandleAll();
    if (queue_->overflowed())
      end_ = absl::InternalError("the agent does not keep up with the server's messages");
    for (const int signal : signals_->Read()) Feed(SignalReceived{signal});
    absl::StatusOr<std::vector<supervisor::Frame>> frames = supervisor_->Read();
    if (!frames.ok() || (supervisor_->WantsWrite() && !supervisor_->Flush().ok())) {
      end_ = absl::InternalError("cadre-supervisor has ended, and all launchers with it");
      break;
    }
    for (const supervisor::Frame& frame : *frames) OnFrame(frame);
    for (FileCalls* calls : {&allocation_calls_, &log_reads_, &removals_}) calls->Handle(MonoNow());
    FeedPending();
    if (core_.NextDeadline() > MonoNow()) continue;
    const std::string stopped = supervisor_->ContinueIfStopped();
    if (!stopped.empty()) options_.log(stopped);
    Feed(AgentTick{});
  }
  // Sends what the core has sent last: the ends of launchers, and that this node leaves.
  link_.Stop();
  for (FileCalls* calls : {&allocation_calls_, &log_reads_, &removals_}) calls->Drain();
  return *end_;
}

void ClusterAgent::Wait() {
  const short supervisor_events = POLLIN | (supervisor_->WantsWrite() ? POLLOUT : 0);
  pollfd fds[] = {{queue_->fd(), POLLIN, 0},
                  {signals_->fd(), POLLIN, 0},
                  {supervisor_->fd(), supervisor_events, 0},
                  {allocation_calls_.fd(), POLLIN, 0},
                  {log_reads_.fd(), POLLIN, 0},
                  {removals_.fd(), POLLIN, 0}};
  const MonoTime deadline =
      std::min({core_.NextDeadline(), allocation_calls_.NextDeadline(), log_reads_.NextDeadline()});
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
  if (const auto* received = std::get_if<ServerMessageReceived>(&event)) return Feed(*received);
}

void ClusterAgent::OnFrame(const supervisor::Frame& frame) {
  if (const auto* exited = std::get_if<supervisor::ExitedFrame>(&frame)) {
    const std::optional<uint64_t> allocation = groups_.AllocationOf(exited->group);
    if (allocation.has_value()) Feed(LauncherEnded{*allocation, DescribeLauncherEnd(*exited)});
  } else if (const auto* gone = std::get_if<supervisor::AllGoneFrame>(&frame)) {
    const std::optional<uint64_t> allocation = groups_.AllocationOf(gone->group);
    if (!allocation.has_value()) return;
    groups_.Remove(*allocation);
    Feed(AllocationGone{*allocation});
  } else if (const auto* remains = std::get_if<supervisor::RemainsFrame>(&frame)) {
    const std::optional<uint64_t> allocation = groups_.AllocationOf(remains->group);
    if (allocation.has_value())
      Feed(AllocationUnkillable{*allocation,
                                rpc::UnkillableText(UnkillableProcessesOf(*remains, 0))});
  }
}

void ClusterAgent::Feed(ClusterEvent event) {
  pending_events_.push_back(std::move(event));
  FeedPending();
}

void ClusterAgent::FeedPending() {
  while (!pending_events_.empty() && !end_.has_value()) {
    const ClusterEvent next = std::move(pending_events_.front());
    pending_events_.pop_front();
    for (ClusterCommand& command : core_.Step(MonoNow(), next)) Execute(std::move(command));
  }
}

void ClusterAgent::Execute(ClusterCommand command) {
  if (auto* send = std::get_if<SendToServer>(&command))
    return link_.Send(stream_, std::move(send->message));
  if (auto* start = std::get_if<StartLauncher>(&command)) return Launch(std::move(*start));
  if (const auto* stop = std::get_if<StopLauncher>(&command)) {
    const std::optional<uint64_t> group = groups_.GroupOf(stop->id);
    if (!group.has_value())
      return FailLaunch(stop->id, absl::CancelledError("it was stopped before it was started"));
    const int64_t grace_ms = std::min<int64_t>(absl::ToInt64Milliseconds(stop->grace), UINT32_MAX);
    return SendToSupervisor(supervisor::StopFrame{*group, static_cast<uint32_t>(grace_ms)});
  }
  if (const auto* files = std::get_if<RemoveFiles>(&command)) {
    const auto retire = [this, options = options_.start, id = files->id]() -> FileCalls::Then {
      return [this, id, retired = RetireDirectory(options, id)] { Remove(id, retired); };
    };
    if (!allocation_calls_.Start(kAllocations, {retire, nullptr, kAllocationLimit}, MonoNow()))
      LeaveFiles(files->id);
    return;
  }
  if (auto* log = std::get_if<AnswerLog>(&command)) return ReadLog(std::move(log->read));
  if (const auto* say = std::get_if<Say>(&command)) return options_.log(say->line);
  end_ = std::get<EndAgent>(command).status;
}

// The removal queue has a key per user, so that no user waits for the files of other users' jobs.
void ClusterAgent::Remove(uint64_t id, const RetiredDirectory& retired) {
  if (retired.path.empty()) return;
  const auto remove = [this, id, path = retired.path]() -> FileCalls::Then {
    if (RemoveAsOwners(path)) return nullptr;
    return [this, id] { LeaveFiles(id); };
  };
  const FileCalls::Call call = {remove, nullptr, absl::InfiniteDuration()};
  if (!removals_.Start(absl::StrCat("user ", retired.uid), call, MonoNow())) LeaveFiles(id);
}

void ClusterAgent::LeaveFiles(uint64_t id) {
  options_.log(absl::StrCat("files of allocation ", id,
                            " could not be removed; the next agent on this node removes them"));
}

void ClusterAgent::Launch(StartLauncher command) {
  const uint64_t allocation = command.start.part().id();
  const std::string job = command.start.part().job();
  const uint64_t attempt = preparing_[allocation] = ++attempts_;
  const auto done = [this, attempt, allocation, job](absl::StatusOr<supervisor::StartFrame> frame) {
    OnPrepared(attempt, allocation, job, std::move(frame));
  };
  const auto prepare = [done, options = options_.start,
                        command = std::move(command)]() -> FileCalls::Then {
    return [done, frame = PrepareLauncher(options, command.start, command.gpus,
                                          command.server_id)] { done(frame); };
  };
  const auto late = [done] {
    done(absl::DeadlineExceededError(
        "its files cannot be made: the file system or the user database does not answer"));
  };
  if (!allocation_calls_.Start(kAllocations, {prepare, late, kAllocationLimit}, MonoNow())) {
    done(absl::ResourceExhaustedError("too many launchers are being started at once"));
  }
}

void ClusterAgent::OnPrepared(uint64_t attempt, uint64_t allocation, const std::string& job,
                              absl::StatusOr<supervisor::StartFrame> frame) {
  const auto found = preparing_.find(allocation);
  if (found == preparing_.end() || found->second != attempt) return;
  if (!frame.ok()) {
    options_.log(absl::StrCat("job ", job, ": ", frame.status().message()));
    return FailLaunch(allocation, frame.status());
  }
  preparing_.erase(found);
  frame->group = groups_.Add(allocation);
  SendToSupervisor(*frame);
}

void ClusterAgent::FailLaunch(uint64_t allocation, const absl::Status& why) {
  if (preparing_.erase(allocation) == 0) return;
  pending_events_.push_back(
      LauncherFailed{allocation, std::string(why.message()), BlameForUnstarted(why.code())});
}

void ClusterAgent::SendToSupervisor(const supervisor::Frame& frame) {
  if (!supervisor_->Send(frame).ok()) {
    end_ = absl::InternalError("cadre-supervisor accepts no orders; all launchers end");
  }
}

void ClusterAgent::ReadLog(v1::ReadLog read) {
  // Keyed by user, so that users do not wait for one another's file systems.
  const std::string key = absl::StrCat("user ", read.user());
  const std::string where = read.dir();
  const auto late = [this, read, where] {
    Answer(read, absl::DeadlineExceededError(
                     absl::StrCat("the file system of ", where, " does not answer")));
  };
  if (log_reads_.IsHung(key, MonoNow())) return late();
  const auto work = [this, read, root_too = options_.start.root_too]() -> FileCalls::Then {
    return [this, read, chunk = ReadLogFile(read, root_too)] { Answer(read, chunk); };
  };
  if (log_reads_.Start(key, {work, late, kLogLimit}, MonoNow())) return;
  Answer(read, absl::ResourceExhaustedError(
                   "this node's agent reads too many logs at once; try again later"));
}

void ClusterAgent::Answer(const v1::ReadLog& read, absl::StatusOr<v1::LogChunk> chunk) {
  v1::NodeMessage message;
  message.set_incarnation(options_.incarnation);
  v1::LogChunk* log = message.mutable_agent()->mutable_log();
  if (chunk.ok()) {
    *log = *std::move(chunk);
    // Other nodes may have files with the same device and inode numbers.
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
