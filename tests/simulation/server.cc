#include "tests/simulation/server.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/host/state_compactor.h"
#include "rpc/store_reply.h"

namespace cadre::simulation {
namespace {

// The longest time between the arrival of a message and the core thread's turn.
constexpr absl::Duration kWakeDelayMax = absl::Microseconds(300);
// How long the core thread may run while the disk saves.
constexpr absl::Duration kBesideMax = absl::Milliseconds(5);
// How often, in percent, a batch of events is followed by more, and a batch has been saved.
constexpr int kMoreCame = 20, kIsSaved = 50;

// Replaces the thread that saves; when a save completes is random.
class LateSaver final : public host::BatchSaver {
 public:
  explicit LateSaver(World& world) : world_(world) {}

  void Begin(log::RecordLog& log, log::RecordRows records) override {
    log_ = &log;
    records_ = std::move(records);
  }
  std::optional<Outcome> Take(bool wait) override {
    if (!wait && !world_.random.Percent(kIsSaved)) return std::nullopt;
    Outcome outcome;
    outcome.status = log_->Append(records_);
    if (!outcome.status.ok()) outcome.records = std::move(records_);
    return outcome;
  }

 private:
  World& world_;
  log::RecordLog* log_ = nullptr;
  log::RecordRows records_;
};

}  // namespace

Server::Server(World& world, const Plan& plan, Mutation mutation, Network& network, Oracle& oracle)
    : world_(world),
      plan_(plan),
      mutation_(mutation),
      network_(network),
      oracle_(oracle),
      disk_(world, plan, mutation) {}

void Server::Start() {
  start_at_ = MonoTime::Never();
  log::OpenedLog opened = disk_.Open([this] { dying_ = true; });
  CoreConfig config = plan_.server;
  config.server_id = disk_.server_id();
  core_ = std::make_unique<Core>(config);
  host::CommitQueue::Host host;
  host.deliver = [this](const Effects& effects) { CarryOut(effects); };
  host.compactor = [] { return std::make_unique<host::StateCompactor>(); };
  host.saved = [](absl::Duration) {};
  host.log_line = [this](const std::string& line) {
    world_.Note(1, 0, [&] { return absl::StrCat("server: ", line); });
  };
  commits_ = std::make_unique<host::CommitQueue>(
      std::move(opened.log), std::make_unique<LateSaver>(world_), std::move(host));
  for (const v1::Record& record : opened.records) core_->Apply(record);
  ++life_;
  world_.Note(2, opened.records.size(), [&] {
    return absl::StrCat("server starts with ", opened.records.size(), " records, id ",
                        disk_.server_id() % 10000);
  });
  oracle_.ServerStarted(disk_.server_id(), *core_, Running());
  WakeAt(world_.now());
}

void Server::Kill(absl::Duration back_after, bool state_is_lost) {
  if (!up()) return;
  world_.Note(3, state_is_lost, [&] {
    return absl::StrCat("server killed", state_is_lost ? ", its state is lost" : "", ", back in ",
                        absl::FormatDuration(back_after));
  });
  oracle_.ServerDied(*core_, !unsaved_);
  commits_.reset();
  core_.reset();
  dying_ = unsaved_ = false;
  can_save_ = true;
  inbox_.clear();
  streams_.clear();
  closed_by_core_.clear();
  calls_.clear();
  wake_at_ = MonoTime::Never();
  Running();
  paused_until_ = world_.now();
  was_paused_ = false;
  disk_.LoseUnsynced();
  if (state_is_lost) disk_.LoseAll();
  network_.DropServer();
  start_at_ = world_.now() + back_after;
  world_.schedule.At(start_at_, [this, at = start_at_] {
    if (start_at_ == at) Start();
  });
}

void Server::Pause(absl::Duration lasts) {
  if (!up()) return;
  world_.Note(
      4, 0, [&] { return absl::StrCat("server stands still for ", absl::FormatDuration(lasts)); });
  Running();
  paused_until_ = std::max(paused_until_, world_.now() + lasts);
  was_paused_ = true;
}

absl::Duration Server::Running() {
  const MonoTime from = std::max(counted_until_, paused_until_);
  if (world_.now() > from) running_ += world_.now() - from;
  counted_until_ = world_.now();
  return running_;
}

void Server::Heal() {
  disk_.set_state(absl::OkStatus());
  paused_until_ = std::min(paused_until_, world_.now());
  if (up()) return WakeAt(world_.now());
  if (start_at_ != MonoTime::Never()) Start();
}

void Server::Cancel(const std::string& job) {
  if (up()) Post(JobCancelled{job, "a user's wish", 0});
}

void Server::Call(const v1::StoreRequest& request,
                  std::function<void(const v1::StoreReply&)> done) {
  if (!up()) return;
  const CallId call{++last_call_};
  calls_[call] = std::move(done);
  Post(StoreCalled{call, request});
}

void Server::OnOpened(ConnectionId id, int node) {
  world_.Note(5, id, [&] { return absl::StrCat("stream ", id, " of node ", node, " opens"); });
  streams_.insert(StreamId{id});
}

void Server::OnMessage(ConnectionId id, const v1::NodeMessage& message) {
  // After StreamClosed this event would bring back a node that has gone.
  if (!up() || streams_.count(StreamId{id}) == 0) return;
  oracle_.Arrived(StreamId{id}, world_.now());
  Post(NodeMessageReceived{StreamId{id}, message});
}

void Server::OnClosed(ConnectionId id) {
  if (!up()) return;
  streams_.erase(StreamId{id});
  Post(StreamClosed{StreamId{id}});
}

void Server::Post(Event event) {
  inbox_.push_back({world_.now(), std::move(event)});
  WakeAt(world_.now() + world_.random.Between(absl::ZeroDuration(), kWakeDelayMax));
}

void Server::WakeAt(MonoTime at) {
  if (at >= wake_at_) return;
  wake_at_ = at;
  world_.schedule.At(at, [this, at, life = life_] {
    if (life != life_ || wake_at_ != at || !up()) return;
    wake_at_ = MonoTime::Never();
    if (StandsStill()) return WakeAt(paused_until_);
    Wake();
  });
}

void Server::Wake() {
  // After a pause the core's own thread may be the first to run, before the threads that read.
  size_t batch = inbox_.size();
  if (std::exchange(was_paused_, false)) batch = world_.random.Below(static_cast<int>(batch) + 1);
  for (; batch > 0 && !Dying(); --batch) {
    Event event = std::move(inbox_.front().event);
    inbox_.pop_front();
    Handle(std::move(event));
  }
  if (!Dying() && core_->NextDeadline() <= Local()) Step(Tick{});
  if (!Dying()) SaveBatch();
  TellWhetherItCanSave();
  if (Dying()) {
    return Kill(world_.random.Between(absl::Milliseconds(50), absl::Seconds(3)), false);
  }
  unsaved_ = !commits_->save_error().ok() || commits_->WantsCommit();
  const MonoTime due = std::min(core_->NextDeadline(), commits_->NextDeadline());
  if (!inbox_.empty()) WakeAt(world_.now() + absl::Microseconds(1));
  if (due != MonoTime::Never()) {
    WakeAt(std::max(plan_.server_clock.World(due), world_.now() + absl::Microseconds(1)));
  }
}

void Server::SaveBatch() {
  if (!inbox_.empty() || world_.random.Percent(kMoreCame)) {
    commits_->CommitInBackground(Local());
  } else if (commits_->is_saving()) {
    commits_->AwaitSaved(Local());
  } else {
    commits_->Commit(Local());
  }
  if (!commits_->WantsCommit()) return;
  WakeAt(world_.now() + world_.random.Between(absl::Microseconds(1), kBesideMax));
}

void Server::TellWhetherItCanSave() {
  while (!Dying() && commits_->save_error().ok() != can_save_) {
    can_save_ = !can_save_;
    oracle_.ServerCanSave(can_save_, Running());
    if (mutation_ != Mutation::kHideFullDisk) Step(CanSave{can_save_});
    commits_->Commit(Local());
  }
}

void Server::Handle(Event event) {
  Mutate(&event);
  if (!commits_->save_error().ok() && Refuse(&event)) return;
  const auto* said = std::get_if<NodeMessageReceived>(&event);
  if (said != nullptr && closed_by_core_.count(said->stream) > 0) return;
  if (const auto* closed = std::get_if<StreamClosed>(&event)) {
    closed_by_core_.erase(closed->stream);
  }
  Step(event);
}

void Server::Step(const Event& event) {
  const MonoTime local = Local();
  unsaved_ = true;
  oracle_.BeforeStep(event);
  Effects effects = core_->Step(local, event);
  oracle_.AfterStep(*core_, event, effects, Running());
  commits_->Add(local, std::move(effects));
}

bool Server::Refuse(Event* event) {
  const absl::Status& why = commits_->save_error();
  if (const auto* called = std::get_if<StoreCalled>(event)) {
    Reply({called->call, rpc::StoreErrorReply(called->request, why)});
    return true;
  }
  auto* said = std::get_if<NodeMessageReceived>(event);
  if (said == nullptr) return false;
  if (said->message.has_join()) {
    if (streams_.erase(said->stream) > 0) {
      closed_by_core_.insert(said->stream);
      network_.CloseByServer(said->stream.value, absl::UnavailableError(why.message()));
    }
    return true;
  }
  if (!said->message.has_store()) return false;
  if (streams_.count(said->stream) > 0) {
    v1::ServerMessage message;
    message.set_job(said->message.job());
    message.set_generation(said->message.generation());
    message.set_server_id(said->message.server_id());
    *message.mutable_store() = rpc::StoreErrorReply(said->message.store(), why);
    network_.SendDown(said->stream.value, std::move(message));
  }
  said->message.mutable_renew();
  return false;
}

void Server::CarryOut(const Effects& effects) {
  for (const SendToStream& send : effects.send) {
    if (Dying()) return;
    if (streams_.count(send.stream) == 0) continue;
    oracle_.Sent(send);
    network_.SendDown(send.stream.value, send.message);
    dying_ = !world_.calm && world_.random.Percent(plan_.odds.crash_while_saving / 10);
  }
  for (const ReplyToCall& reply : effects.reply) {
    if (Dying()) return;
    Reply(reply);
  }
  for (const CloseStream& close : effects.close) {
    if (Dying()) return;
    if (streams_.erase(close.stream) == 0) continue;
    closed_by_core_.insert(close.stream);
    network_.CloseByServer(close.stream.value, close.status);
  }
}

void Server::Reply(const ReplyToCall& reply) {
  const auto found = calls_.find(reply.call);
  if (found == calls_.end()) return;
  const auto done = std::move(found->second);
  calls_.erase(found);
  done(reply.reply);
}

void Server::Mutate(Event* event) {
  if (mutation_ == Mutation::kNone) return;
  auto* said = std::get_if<NodeMessageReceived>(event);
  auto* called = std::get_if<StoreCalled>(event);
  if (mutation_ == Mutation::kSkipFence) {
    v1::StoreRequest* request = called != nullptr ? &called->request : nullptr;
    if (said != nullptr && said->message.has_store()) request = said->message.mutable_store();
    const absl::StatusOr<v1::JobStatus> job =
        core_->Status(Local(), request == nullptr ? "" : request->job());
    if (job.ok()) request->set_generation(job->generation());
  }
  if (mutation_ == Mutation::kSkipIncarnation && said != nullptr) {
    said->message.set_incarnation(1);
  }
}

bool Server::Idle() const {
  return up() && can_save_ && !commits_->WantsCommit() &&
         core_->NextDeadline() == MonoTime::Never();
}

namespace {

constexpr absl::Duration kRepeatAfter = absl::Milliseconds(700);
// How often a request is sent; after that its outcome stays unknown.
constexpr int kSentMax = 20;

}  // namespace

OutsideClient::OutsideClient(World& world, const Plan& plan, Network& network, Server& server,
                             Oracle& oracle, std::string job)
    : world_(world),
      plan_(plan),
      network_(network),
      server_(server),
      oracle_(oracle),
      job_(std::move(job)),
      client_(world.random.Next()) {}

void OutsideClient::Start() {
  world_.schedule.In(world_.random.Between(absl::Milliseconds(100), absl::Seconds(3)),
                     [this] { Next(); });
}

void OutsideClient::Next() {
  if (world_.calm) return;
  generation_ = oracle_.Newest(job_);
  if (generation_.number == 0) return Start();
  request_.set_job(job_);
  request_.set_generation(generation_.number);
  request_.set_client(client_);
  request_.set_request_id(request_.request_id() + 1);
  request_.mutable_add()->set_key("outside");
  request_.mutable_add()->set_delta(1);
  asked_ = oracle_.store().Asked(generation_, request_);
  waits_ = true;
  sent_ = 0;
  Send();
}

void OutsideClient::Send() {
  if (++sent_ > kSentMax) return Start();
  for (int copies = world_.random.Percent(plan_.odds.call_twice) ? 2 : 1; copies > 0; --copies) {
    if (world_.random.Percent(plan_.odds.call_lost)) continue;
    world_.schedule.In(network_.Delay(), [this, request = request_] {
      server_.Call(request, [this](const v1::StoreReply& reply) {
        if (world_.random.Percent(plan_.odds.call_lost)) return;
        world_.schedule.In(network_.Delay(), [this, reply] { OnReply(reply); });
      });
    });
  }
  world_.schedule.In(kRepeatAfter, [this, id = request_.request_id()] {
    if (waits_ && id == request_.request_id()) Send();
  });
}

void OutsideClient::OnReply(const v1::StoreReply& reply) {
  if (!waits_ || reply.request_id() != request_.request_id()) return;
  switch (static_cast<absl::StatusCode>(reply.code())) {
    case absl::StatusCode::kOk: {
      waits_ = false;
      const std::string wrong = oracle_.store().Answered(generation_, 0, asked_, request_, reply);
      if (!wrong.empty()) oracle_.Break(absl::StrCat("outside: ", generation_.Text(), ": ", wrong));
      return Start();
    }
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kNotFound:
      waits_ = false;
      return Start();
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
      return;  // the client sends it again
    default:
      oracle_.Break(absl::StrCat("outside: the store says ", reply.message()));
  }
}

namespace {

// How late records reach the disk after they were reported as saved, with kPersistAfterSending.
constexpr absl::Duration kLateBy = absl::Milliseconds(20);

// Returns the records of a log that lost the last generation of each job.
std::vector<v1::Record> WithoutLastGenerations(const std::vector<v1::Record>& records) {
  std::vector<v1::Record> kept;
  std::set<std::string> dropped;
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    if (record->has_generation_formed() && dropped.insert(record->job()).second) continue;
    kept.insert(kept.begin(), *record);
  }
  return kept;
}

}  // namespace

class Disk::Log final : public log::RecordLog {
 public:
  Log(Disk& disk, std::function<void()> crash) : disk_(disk), crash_(std::move(crash)) {}

  uint64_t server_id() const override { return disk_.server_id_; }
  bool has_one_owner() const override { return true; }
  absl::Status Append(const log::RecordRows& records) override {
    return disk_.Append(records.Decoded(), crash_);
  }
  bool WantsCompaction() const override { return disk_.appended_ > disk_.plan_.compact_after; }
  absl::Status Compact(log::Compactor& compactor, const std::atomic<bool>&) override {
    for (const v1::Record& record : disk_.durable_) compactor.Add(record);
    for (const v1::Record& record : disk_.unsynced_) compactor.Add(record);
    return disk_.Compact(compactor.Take().Decoded());
  }

 private:
  Disk& disk_;
  const std::function<void()> crash_;
};

Disk::Disk(World& world, const Plan& plan, Mutation mutation)
    : world_(world), plan_(plan), mutation_(mutation), server_id_(world.random.Next()) {}

log::OpenedLog Disk::Open(std::function<void()> crash) {
  log::OpenedLog opened;
  opened.log = std::make_unique<Log>(*this, std::move(crash));
  opened.records =
      mutation_ == Mutation::kReuseGeneration ? WithoutLastGenerations(durable_) : durable_;
  // A server that lacks records continues from those it has, as a real log that lost them would.
  durable_ = opened.records;
  return opened;
}

void Disk::LoseAll() {
  durable_.clear();
  unsynced_.clear();
  appended_ = 0;
  server_id_ = world_.random.Next();
}

absl::Status Disk::Append(const std::vector<v1::Record>& records,
                          const std::function<void()>& crash) {
  if (!state_.ok()) return state_;
  const bool crashes = !world_.calm && world_.random.Percent(plan_.odds.crash_while_saving);
  const bool before = crashes && world_.random.Percent(50);
  if (before) {
    crash();
    return absl::UnavailableError("the process died");
  }
  appended_ += records.size();
  if (mutation_ == Mutation::kPersistAfterSending) {
    unsynced_.insert(unsynced_.end(), records.begin(), records.end());
    world_.schedule.In(kLateBy, [this] { Sync(); });
  } else {
    durable_.insert(durable_.end(), records.begin(), records.end());
  }
  if (crashes) crash();
  return absl::OkStatus();
}

void Disk::Sync() {
  durable_.insert(durable_.end(), unsynced_.begin(), unsynced_.end());
  unsynced_.clear();
}

absl::Status Disk::Compact(const std::vector<v1::Record>& snapshot) {
  if (!state_.ok()) return state_;
  durable_ = snapshot;
  unsynced_.clear();
  appended_ = 0;
  return absl::OkStatus();
}

}  // namespace cadre::simulation
