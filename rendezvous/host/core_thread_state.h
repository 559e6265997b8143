// What a CoreThread is made of: its queue, the thread that takes from it, and how others run the
// core in its place. For core_thread.cc alone.
#ifndef CADRE_RENDEZVOUS_HOST_CORE_THREAD_STATE_H_
#define CADRE_RENDEZVOUS_HOST_CORE_THREAD_STATE_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "rendezvous/host/commit_queue.h"
#include "rendezvous/host/commit_thread.h"
#include "rendezvous/host/core_thread.h"
#include "rpc/store_reply.h"

namespace cadre {

// The thread looks around at least this often, whatever the core asks for.
inline constexpr absl::Duration kLongestWait = absl::Minutes(1);
// So many tasks have their memory kept for those that come next.
inline constexpr size_t kTasksKept = 8 * kEventsPerCommit;

// steady_clock and MonoNow() both are CLOCK_MONOTONIC.
inline std::chrono::steady_clock::time_point ToSteady(MonoTime time) {
  return std::chrono::steady_clock::time_point(std::chrono::microseconds(time.micros()));
}

struct CoreThread::State {
  struct Errand {
    std::function<void(MonoTime)> run;
    // Called in its place when the thread has ended.
    std::function<void(const absl::Status&)> refuse;
  };
  // Either an event for the core, or something to run beside it.
  struct Task {
    Event event;
    std::unique_ptr<Errand> errand;
    // What the task counts against the limits; bookkeeping tasks count nothing, because there is at
    // most one for each stream and call.
    size_t bytes = 0;
  };
  struct Call {
    v1::StoreRequest request;
    std::function<void(const v1::StoreReply&)> done;
  };

  State(const CoreConfig& config, LogFunction log, OpenedLog durable)
      : core(config),
        log(std::move(log)),
        commits(std::move(durable.log), std::make_unique<CommitThread>(),
                {[this](Effects effects) { CarryOut(std::move(effects)); },
                 [this] { return core.Snapshot(); }, [this](const std::string& line) { Say(line); },
                 [this](absl::Duration took) { counters.CountCommit(took); }}) {
    for (const v1::Record& record : durable.records) core.Apply(record);
  }

  // --- on any thread ---

  // False when a limit is reached. Tasks without bytes always fit. Once the thread has ended nobody
  // looks at them.
  bool EnqueueLocked(Task task) {
    if (ended.has_value()) return true;
    if (task.bytes > 0) {
      if (queued_events >= kEventQueueLimit || queued_bytes + task.bytes > kEventQueueBytesLimit) {
        return false;
      }
      ++queued_events;
      queued_bytes += task.bytes;
    }
    queue.push_back(std::move(task));
    // The thread does not wait while there is something to do, and who has the core in its place
    // looks here when done.
    if (queue.size() == 1 && holder != Holder::kPoster) changed.notify_one();
    return true;
  }

  // Whether the caller has the core from now on: when nothing else is to be done with it. What is
  // posted then need not wait for the thread to wake up, which takes longer than most events do.
  bool EnterLocked() {
    if (holder != Holder::kNobody || stopping || !queue.empty()) return false;
    if (!can_save || !commits.trouble().ok() || commits.WantsCommit()) return false;
    holder = Holder::kPoster;
    return true;
  }

  absl::Status EnqueueSaidLocked(StreamId stream, v1::NodeMessage message) {
    Task task;
    task.bytes = message.ByteSizeLong() + 1;
    task.event = NodeSaid{stream, std::move(message)};
    if (EnqueueLocked(std::move(task))) return absl::OkStatus();
    return absl::ResourceExhaustedError("the server has too much to do; connect again later");
  }

  // Ends what EnterLocked began. Saving is left to the thread, since it takes long.
  void Leave() {
    FlushAll();
    const std::lock_guard<std::mutex> lock(mutex);
    holder = Holder::kNobody;
    if (HasWorkLocked() || NextDeadline() < wakes_at) changed.notify_one();
  }

  void Run(std::function<void(MonoTime)> run, std::function<void(const absl::Status&)> refuse) {
    Task task;
    task.errand = std::make_unique<Errand>(Errand{std::move(run), std::move(refuse)});
    std::optional<absl::Status> late;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      late = ended;
      if (!late.has_value()) EnqueueLocked(std::move(task));
    }
    if (late.has_value()) task.errand->refuse(*late);
  }

  // --- on the core thread ---

  void Loop() {
    std::vector<Task> batch;
    for (;;) {
      const bool last = AwaitWork(&batch);
      size_t handled = 0;
      for (Task& task : batch) {
        Handle(task);
        if (++handled % kEventsPerCommit != 0) continue;
        commits.CommitBeside(MonoNow());
        FlushAll();
      }
      // After the batch, because a Renew in it may be what a lease is waiting for.
      if (core.NextDeadline() <= MonoNow()) Step(Tick{});
      SaveBatch(last);
      TellWhetherItCanSave();
      FlushAll();
      log_reads.Expire(MonoNow());
      if (last) return log_reads.EndAll(absl::UnavailableError("the server goes away"));
    }
  }

  // Gives the core to whoever comes, until there is something that the thread must do or a deadline
  // has passed; takes it and the queue, in the place of the batch before. True: the thread is to
  // end.
  bool AwaitWork(std::vector<Task>* batch) {
    batch->clear();
    if (batch->capacity() > kTasksKept) batch->shrink_to_fit();
    std::unique_lock<std::mutex> lock(mutex);
    holder = Holder::kNobody;
    for (;;) {
      const MonoTime now = MonoNow();
      const bool free = holder == Holder::kNobody;
      // Who has the core wakes the thread when done.
      wakes_at = free ? NextDeadline() : MonoTime::Never();
      if (free && (HasWorkLocked() || wakes_at <= now)) break;
      changed.wait_until(lock, ToSteady(std::min(wakes_at, now + kLongestWait)));
    }
    holder = Holder::kThread;
    batch->swap(queue);
    queued_events = 0;
    queued_bytes = 0;
    return stopping;
  }

  // After a batch. With nothing else to do the thread waits for the disk: if it went on to take
  // events while that stands still, the core would count the time for orders that nobody is told.
  void SaveBatch(bool last) {
    const MonoTime now = MonoNow();
    if (!last && MoreWaits()) return commits.CommitBeside(now);
    // What comes meanwhile is then saved with what is held.
    if (!last && commits.is_saving()) return commits.AwaitSaved(now);
    commits.Commit(now);
  }

  bool MoreWaits() {
    const std::lock_guard<std::mutex> lock(mutex);
    return !queue.empty();
  }

  // These two: by who has the core, or while nobody has it.

  bool HasWorkLocked() const { return stopping || !queue.empty() || commits.WantsCommit(); }

  MonoTime NextDeadline() const {
    return std::min({core.NextDeadline(), commits.NextDeadline(), log_reads.NextDeadline()});
  }

  // --- by who has the core ---

  void TellWhetherItCanSave() {
    while (commits.trouble().ok() != can_save) {
      can_save = !can_save;
      Step(CanSave{can_save});
      commits.Commit(MonoNow());
    }
  }

  void Handle(Task& task) {
    if (task.errand != nullptr) {
      // It is not shown what may still be lost.
      commits.Commit(MonoNow());
      task.errand->run(MonoNow());
      return;
    }
    HandleEvent(task.event);
  }

  void HandleEvent(Event& event) {
    counters.Count(event);
    if (!commits.trouble().ok() && Refuse(&event)) return;
    // What a node says after the core has closed its stream is of no interest any more. What it
    // said before it left is, so the registry of open streams is not the one to ask.
    const auto* said = std::get_if<NodeSaid>(&event);
    if (said != nullptr && closed_by_core.count(said->stream) > 0) return;
    if (said != nullptr && said->message.agent().has_log()) {
      log_reads.Take(said->stream, said->message.agent().log());
    }
    if (const auto* closed = std::get_if<StreamClosed>(&event)) {
      closed_by_core.erase(closed->stream);
      log_reads.EndOfStream(closed->stream);
    }
    Step(event);
  }

  void Step(const Event& event) {
    const MonoTime now = MonoNow();
    Effects effects = core.Step(now, event);
    for (const v1::Record& record : effects.append) counters.Count(record);
    commits.Add(now, std::move(effects));
  }

  // For a caller that is to hear whether it is saved. `happened`: the core has taken it, so that it
  // is saved with all else once that is possible again.
  absl::Status StepNow(const Event& event, MonoTime now, bool* happened = nullptr) {
    commits.Commit(now);
    const bool can = commits.trouble().ok();
    if (happened != nullptr) *happened = can;
    if (can) Step(event);
    commits.Commit(now);
    return commits.trouble();
  }

  // Nothing can be saved: whether the event ends here. What a node says keeps its lease.
  bool Refuse(Event* event) {
    const absl::Status& why = commits.trouble();
    // Another server has the state; this one is about to be stopped.
    if (absl::IsAborted(why)) return true;
    if (const auto* called = std::get_if<StoreCalled>(event)) {
      Reply({called->call, StoreErrorReply(called->request, why)});
      return true;
    }
    auto* said = std::get_if<NodeSaid>(event);
    if (said == nullptr) return false;
    if (said->message.has_join()) {
      if (const auto outbox = TakeStream(said->stream)) {
        closed_by_core.insert(said->stream);
        outbox->Close(absl::UnavailableError(why.message()));
      }
      return true;
    }
    if (!said->message.has_store()) return false;
    v1::ServerMessage message;
    message.set_job(said->message.job());
    message.set_generation(said->message.generation());
    *message.mutable_store() = StoreErrorReply(said->message.store(), why);
    Send(said->stream, std::move(message));
    said->message.mutable_renew();
    return false;
  }

  void Say(const std::string& line) {
    if (log) log(line);
  }

  void Send(StreamId stream, v1::ServerMessage message) {
    auto found = unflushed.find(stream);
    if (found == unflushed.end()) {
      const std::lock_guard<std::mutex> lock(mutex);
      const auto open = streams.find(stream);
      if (open == streams.end()) return;
      found = unflushed.emplace(stream, open->second).first;
    }
    found->second->Send(std::move(message));
  }

  std::shared_ptr<Outbox> TakeStream(StreamId stream) {
    unflushed.erase(stream);
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = streams.find(stream);
    if (found == streams.end()) return nullptr;
    std::shared_ptr<Outbox> outbox = std::move(found->second);
    streams.erase(found);
    return outbox;
  }

  // All that one batch says to a stream goes out at once: a write costs more than a message.
  void FlushAll() {
    for (const auto& [stream, outbox] : unflushed) outbox->Flush();
    unflushed.clear();
  }

  // What the core asks for besides its records, in the order that core.h demands.
  void CarryOut(Effects effects) {
    for (SendToStream& send : effects.send) Send(send.stream, std::move(send.message));
    for (const ReplyToCall& reply : effects.reply) Reply(reply);
    for (const cadre::CloseStream& close : effects.close) {
      if (const auto outbox = TakeStream(close.stream)) {
        closed_by_core.insert(close.stream);
        outbox->Close(close.status);
      }
    }
    if (!log) return;
    for (const Note& note : effects.notes) {
      log(note.job.empty() ? note.text : absl::StrCat("job ", note.job, ": ", note.text));
    }
  }

  void Reply(const ReplyToCall& reply) {
    std::function<void(const v1::StoreReply&)> done;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      const auto found = calls.find(reply.call);
      if (found == calls.end()) return;
      done = std::move(found->second.done);
      calls.erase(found);
    }
    done(reply.reply);
  }

  // Under one number a job is made once, however often its caller asks because no answer came.
  absl::Status Submit(const JobSubmitted& submitted, const OwnerCheck& may, MonoTime now) {
    const std::string& name = submitted.spec->name();
    const absl::StatusOr<v1::JobStatus> before = core.Status(now, name);
    if (before.ok() && may && !may(before->user()).ok()) return core.RefuseName(name);
    bool taken = core.WasSubmitted(name, submitted.request_id);
    const absl::Status good =
        taken ? absl::OkStatus() : core.MaySubmit(*submitted.spec, submitted.user);
    if (!good.ok()) return good;
    const absl::Status saved = taken ? commits.trouble() : StepNow(submitted, now, &taken);
    if (saved.ok()) return saved;
    if (!taken) {
      return absl::Status(saved.code(),
                          absl::StrCat("job ", name, " was not taken: ", saved.message()));
    }
    return absl::Status(
        saved.code(),
        absl::StrCat(
            "job ", name, " may have been taken: ", saved.message(),
            "; it is when that is mended, unless the server is started anew before. 'cadre "
            "status ",
            name, "' says whether it was"));
  }

  // Logs are no part of the state: what is read passes the core by.
  void ReadLog(const v1::ReadLogRequest& request, const LogReads::Done& done,
               const OwnerCheck& may) {
    absl::StatusOr<Core::LogSource> source = core.FindLog(request);
    if (!source.ok()) return done(source.status());
    const absl::Status allowed = may ? may(source->read.user()) : absl::OkStatus();
    if (!allowed.ok()) return done(allowed);
    const absl::StatusOr<uint64_t> call =
        log_reads.Add(source->stream, source->ended, MonoNow(), done);
    if (!call.ok()) return done(call.status());
    v1::ServerMessage message;
    v1::ReadLog* read = message.mutable_agent()->mutable_read_log();
    *read = std::move(source->read);
    read->set_call(*call);
    read->set_standard_error(request.standard_error());
    read->set_offset(request.offset());
    read->set_tail(request.tail());
    read->set_limit(kLogChunkBytes);
    // To a stream that has just gone nothing is said, and its end ends the call.
    Send(source->stream, std::move(message));
  }

  // The thread has ended; nobody is left waiting.
  void CloseAll(const absl::Status& why) {
    std::map<StreamId, std::shared_ptr<Outbox>> open;
    std::map<CallId, Call> waiting;
    std::vector<Task> late;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      ended = why;
      open.swap(streams);
      waiting.swap(calls);
      late.swap(queue);
    }
    for (const auto& [id, outbox] : open) outbox->Close(why);
    for (const auto& [id, call] : waiting) {
      call.done(StoreErrorReply(call.request, why));
    }
    for (const Task& task : late) {
      if (task.errand != nullptr) task.errand->refuse(why);
    }
  }

  // Owned by who has the core.
  Core core;
  // Until their StreamClosed.
  std::set<StreamId> closed_by_core;
  // Something was sent to them since the last FlushAll.
  std::map<StreamId, std::shared_ptr<Outbox>> unflushed;
  const LogFunction log;
  Counters counters;
  CommitQueue commits;
  bool can_save = true;  // as the core was told
  LogReads log_reads;

  // Guards all below. Never held while something outside is called.
  std::mutex mutex;
  std::condition_variable changed;
  enum class Holder { kNobody, kThread, kPoster };
  // Who has the core. The thread, until it waits for the first time.
  Holder holder = Holder::kThread;
  // Until when the thread waits.
  MonoTime wakes_at;
  std::vector<Task> queue;
  size_t queued_events = 0;
  size_t queued_bytes = 0;
  bool stopping = false;
  // Why the thread has ended; unset as long as it has not.
  std::optional<absl::Status> ended;
  uint64_t last_stream = 0;
  uint64_t last_call = 0;
  std::map<StreamId, std::shared_ptr<Outbox>> streams;
  std::map<CallId, Call> calls;

  std::thread thread;
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_HOST_CORE_THREAD_STATE_H_
