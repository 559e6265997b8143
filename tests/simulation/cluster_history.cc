#include "tests/simulation/cluster_history.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/core/core.h"
#include "rpc/node_memory.h"
#include "tests/simulation/cluster_jobs.h"
#include "tests/simulation/node_shares.h"
#include "tests/simulation/plan.h"

namespace cadre::simulation {
namespace {

constexpr absl::Duration kTrouble = absl::Seconds(120);
constexpr uint64_t kGib = uint64_t{1} << 30;
// Every job has to end within this time after the faults have stopped.
constexpr absl::Duration kPeace = absl::Minutes(60);
// From the end of the last job until nothing is left: stop margin, grace and launcher's margin.
constexpr absl::Duration kAftermath = absl::Seconds(60);
// From the order to stop a batch job until its steps have ended, while the server runs: the longest
// grace of a step, the stop margin, and a moment.
constexpr absl::Duration kStepsEnd = absl::Seconds(5 + 10 + 1);
// From the loss of the node of a batch job's script until another one is to run it: a server that
// was restarted first waits for the agents.
constexpr absl::Duration kScriptPlaced = absl::Seconds(11);
// From the end of the faults until every machine has learned what it is to stop.
constexpr absl::Duration kAllReconnected = absl::Minutes(2);

bool Anybody(absl::string_view) { return true; }

class ClusterHistory final : public StreamServer {
 public:
  ClusterHistory(uint64_t seed, ClusterMutation mutation, bool keep_lines) : world_(seed) {
    if (keep_lines) world_.trace.KeepLines();
    const int machines = world_.random.Between(2, 5);
    plan_.nodes.resize(machines);
    plan_.odds.delay_min = absl::Microseconds(100);
    plan_.odds.delay_max = world_.random.Percent(30) ? absl::Seconds(1) : absl::Milliseconds(5);
    plan_.odds.retransmit = world_.random.Percent(30) ? 10 : 0;
    network_ = std::make_unique<Network>(world_, plan_);
    network_->set_server(this);
    for (int i = 0; i < machines; ++i) {
      NodeSize size;
      size.cpus = world_.random.Between(2, 8);
      size.gpus = world_.random.Between(0, 4);
      if (world_.random.Percent(80)) size.memory = world_.random.Between(4, 16) * kGib;
      machines_.push_back(std::make_unique<ClusterMachine>(
          world_, *network_, i, size, mutation,
          [this](const v1::StartPart& start, absl::Duration takes) { PlanSteps(start, takes); }));
    }
  }

  ClusterResult Run() {
    StartServer();
    for (const auto& machine : machines_) {
      world_.schedule.In(world_.random.Between(absl::ZeroDuration(), absl::Seconds(3)),
                         [&machine] { machine->StartAgent(); });
    }
    PlanUsers();
    PlanFaults();
    RunUntil(MonoTime() + kTrouble, [] { return false; });
    Heal();
    const bool ended = RunUntil(world_.now() + kPeace, [this] { return AllEnded(); });
    if (broken_.empty() && !ended) broken_ = absl::StrCat("not every job has ended: ", Waiting());
    const bool empty = RunUntil(world_.now() + kAftermath, [this] {
      return std::all_of(machines_.begin(), machines_.end(),
                         [](const auto& machine) { return machine->idle(); });
    });
    if (broken_.empty() && !empty) broken_ = "something runs on after every job has ended";
    return Result();
  }

  // --- StreamServer ---
  bool Listens() const override { return core_ != nullptr; }
  bool StandsStill() const override { return false; }
  void OnOpened(ConnectionId, int) override {}
  void OnMessage(ConnectionId id, const v1::NodeMessage& message) override {
    Step(NodeMessageReceived{StreamId{id}, message});
  }
  void OnClosed(ConnectionId id) override { Step(StreamClosed{StreamId{id}}); }

 private:
  void StartServer() {
    if (core_ != nullptr) return;
    core_ = std::make_unique<Core>(CoreConfig());
    for (const v1::Record& record : records_) core_->Apply(record);
    Expect(killed_with_.empty() || core_->DebugString() == killed_with_,
           "the server has another state than before it was killed");
    started_ = world_.now();
    timer_at_ = MonoTime::Never();
    Step(Tick{});
  }

  void KillServer(absl::Duration back_after) {
    if (core_ == nullptr) return;
    world_.Note(10, 0, [] { return "the server is killed"; });
    network_->DropServer();
    if (world_.random.Percent(30)) records_ = core_->Snapshot();
    killed_with_ = core_->DebugString();
    core_.reset();
    world_.schedule.In(back_after, [this] { StartServer(); });
  }

  void Step(const Event& event) {
    if (core_ == nullptr) return;
    const Effects effects = core_->Step(world_.now(), event);
    records_.insert(records_.end(), effects.append.begin(), effects.append.end());
    for (const SendToStream& send : effects.send) {
      network_->SendDown(send.stream.value, send.message);
    }
    for (const cadre::CloseStream& close : effects.close) {
      network_->CloseByServer(close.stream.value, close.status);
    }
    for (const cadre::Note& note : effects.notes) {
      world_.Note(11, 0, [&] { return absl::StrCat("server: ", note.job, ": ", note.text); });
    }
    const absl::Status holds = core_->CheckInvariants();
    Expect(holds.ok(), std::string(holds.message()));
    for (const v1::Record& record : effects.append) Follow(record);
    for (const int machine : std::exchange(changed_, {})) CheckMachine(machine);
    ArmTimer();
  }

  void Expect(bool holds, const std::string& what) {
    if (!holds && broken_.empty()) broken_ = what;
  }

  void ArmTimer() {
    const MonoTime due = core_->NextDeadline();
    if (due >= timer_at_) return;
    timer_at_ = std::max(due, world_.now() + absl::Microseconds(1));
    world_.schedule.At(timer_at_, [this, at = timer_at_] {
      if (core_ == nullptr || at != timer_at_) return;
      timer_at_ = MonoTime::Never();
      Step(Tick{});
    });
  }

  // --- what the records say of allocations ---

  struct Placed {
    v1::Part part;
    uint64_t job = 0;
    bool taken_back = false;
    bool ended = false;
  };

  uint64_t IdOf(const std::string& job) {
    const auto status = core_->StatusInList(world_.now(), job);
    return status.ok() ? status->submission() : 0;
  }

  void Follow(const v1::Record& record) {
    if (record.has_part_placed()) {
      const v1::Part& part = record.part_placed().part();
      Placed& placed = placed_[part.id()];
      placed = {part, IdOf(part.job())};
      if (part.within() != 0) CheckPlaceOfStep(placed);
      if (record.part_placed().leaves_queue()) CheckMayBegin(placed);
      if (submitted_.at(placed.job).spec.has_batch() && !part.holds()) CheckRunsOnce(placed);
      changed_.insert(MachineOf(part));
    } else if (record.has_part_taken_back()) {
      Placed& placed = placed_.at(record.part_taken_back().id());
      CheckTakenBack(placed);
      placed.taken_back = true;
      WatchScript(placed.job);
    } else if (record.has_part_ended()) {
      Placed& placed = placed_.at(record.part_ended().id());
      placed.ended = true;
      changed_.insert(MachineOf(placed.part));
      WatchScript(placed.job);
      if (placed.part.within() != 0) steps_outlived_ += placed_.at(placed.part.within()).ended;
    } else if (record.has_stop_ordered() || record.has_gathering_began() ||
               record.has_job_ended()) {
      const uint64_t id = IdOf(record.job());
      if (!submitted_.at(id).spec.has_batch()) return;
      WatchSteps(id, submitted_.rbegin()->first, world_.now());
      if (record.has_job_ended()) WatchLaunchersOfSteps(id, world_.now() + kAftermath);
    }
  }

  int MachineOf(const v1::Part& part) const {
    for (size_t i = 0; i < machines_.size(); ++i) {
      if (machines_[i]->Name() == part.node()) return static_cast<int>(i);
    }
    return 0;
  }

  void CheckPlaceOfStep(const Placed& step) {
    const Submitted& submitted = submitted_.at(step.job);
    const auto batch = placed_.find(step.part.within());
    const auto& asked = submitted.spec.slurm_step().nodes();
    Expect(batch != placed_.end() && !batch->second.ended && !batch->second.taken_back &&
               batch->second.part.node() == step.part.node() &&
               batch->second.job == submitted.within &&
               (asked.empty() ||
                std::find(asked.begin(), asked.end(), step.part.node()) != asked.end()),
           absl::StrCat("step ", step.part.job(), " may not run on ", step.part.node()));
  }

  // A job that leaves the queue is not held, and the jobs for which it waits have done what it
  // waits for.
  void CheckMayBegin(const Placed& placed) {
    const v1::JobSpec& spec = submitted_.at(placed.job).spec;
    const auto status = core_->StatusInList(world_.now(), placed.part.job());
    Expect(status.ok() && !status->held(), absl::StrCat("job ", placed.job, " is held and begins"));
    int met = 0;
    for (const v1::Dependency& dependency : spec.queue().dependencies()) {
      const v1::JobPhase phase =
          core_->StatusInList(world_.now(), NameOf(dependency.job()))->phase();
      const bool ended =
          phase == v1::SUCCEEDED || phase == v1::FAILED || phase == v1::CANCELLED_PHASE;
      met += dependency.kind() == v1::Dependency::AFTER       ? phase != v1::QUEUED
             : dependency.kind() == v1::Dependency::AFTER_ANY ? ended
             : dependency.kind() == v1::Dependency::AFTER_OK  ? phase == v1::SUCCEEDED
                                                              : ended && phase != v1::SUCCEEDED;
    }
    const int all = spec.queue().dependencies_size();
    Expect(all == 0 || (spec.queue().any_dependency() ? met > 0 : met == all),
           absl::StrCat("job ", placed.job, " begins before those on which it depends"));
    const auto& exclude = spec.placement().exclude();
    Expect(std::find(exclude.begin(), exclude.end(), placed.part.node()) == exclude.end(),
           absl::StrCat("job ", placed.job, " is on a node that it excludes"));
  }

  // A script is not begun anew while it ends on a node whose agent is there.
  void CheckRunsOnce(const Placed& placed) {
    std::set<std::string> connected;
    for (const v1::ClusterNodeStatus& node : core_->ClusterNodes()) {
      if (node.connected()) connected.insert(node.name());
    }
    for (const auto& [id, other] : placed_) {
      Expect(other.job != placed.job || other.ended || other.part.holds() ||
                 id == placed.part.id() || connected.count(other.part.node()) == 0,
             absl::StrCat("the script of job ", placed.job, " runs twice at a time"));
    }
  }

  // A batch job keeps its other nodes while its script runs, unless their agents leave.
  void CheckTakenBack(const Placed& placed) {
    if (!submitted_.at(placed.job).spec.has_batch() || !placed.part.holds()) return;
    for (const v1::ClusterNodeStatus& node : core_->ClusterNodes()) {
      if (node.name() == placed.part.node() && node.closing()) return;
    }
    const bool has_script = std::any_of(placed_.begin(), placed_.end(), [&](const auto& one) {
      return one.second.job == placed.job && !one.second.part.holds() && !one.second.taken_back &&
             !one.second.ended;
    });
    const auto status = core_->StatusInList(world_.now(), NameOf(placed.job));
    Expect(!has_script || !status.ok() || status->phase() != v1::RUNNING,
           absl::StrCat("batch job ", placed.job, " loses ", placed.part.node(),
                        " while its script runs"));
  }

  void CheckMachine(int machine) {
    std::vector<NodeShare> shares;
    for (const auto& [id, placed] : placed_) {
      if (placed.ended || MachineOf(placed.part) != machine) continue;
      NodeShare& share = shares.emplace_back();
      share.part = placed.part;
      share.overlaps = submitted_.at(placed.job).spec.slurm_step().overlap();
      if (placed.part.within() != 0) share.batch = placed_.at(placed.part.within()).part;
    }
    const std::string wrong = WhatIsGivenTwice(machines_[machine]->size(), shares);
    Expect(wrong.empty(), absl::StrCat("the server on ", machines_[machine]->Name(), ": ", wrong));
  }

  // --- the end of batch jobs and their steps ---

  // Called when the batch job is being stopped, begins again or has ended. Checks that its steps up
  // to `last` end in time. A server that was restarted gives them as much time again.
  void WatchSteps(uint64_t batch, uint64_t last, MonoTime since) {
    world_.schedule.At(since + kStepsEnd, [this, batch, last, since] {
      if (core_ == nullptr || started_ > since) {
        return WatchSteps(batch, last, core_ == nullptr ? world_.now() : started_);
      }
      for (const auto& [id, submitted] : submitted_) {
        if (submitted.within != batch || id > last) continue;
        const auto status = core_->StatusInList(world_.now(), NameOf(id));
        Expect(status.ok() && status->has_verdict(),
               absl::StrCat("step ", NameOf(id), " goes on without its batch job"));
      }
    });
  }

  // Checks that a batch job does not only hold nodes for steps, of which there are none without its
  // script.
  void WatchScript(uint64_t batch) {
    if (!submitted_.at(batch).spec.has_batch()) return;
    world_.schedule.In(kScriptPlaced, [this, batch] {
      if (core_ == nullptr || world_.now() < started_ + kScriptPlaced) return WatchScript(batch);
      bool holds = false, runs = false;
      for (const auto& [id, placed] : placed_) {
        if (placed.job != batch || placed.taken_back || placed.ended) continue;
        (placed.part.holds() ? holds : runs) = true;
      }
      Expect(runs || !holds, absl::StrCat("batch job ", batch, " holds nodes without its script"));
    });
  }

  // Checks that nothing of the steps runs any more. While there are faults, machines may not have
  // learned that they are to stop.
  void WatchLaunchersOfSteps(uint64_t batch, MonoTime at) {
    const MonoTime calm = MonoTime() + kTrouble + kAllReconnected;
    world_.schedule.At(std::max(at, calm), [this, batch] {
      for (const auto& [id, placed] : placed_) {
        if (submitted_.at(placed.job).within != batch) continue;
        Expect(!machines_[MachineOf(placed.part)]->Runs(id),
               absl::StrCat("part ", id, " of step ", placed.part.job(),
                            " runs on after its batch job has ended"));
      }
    });
  }

  // --- users ---

  struct Submitted {
    v1::JobSpec spec;
    std::string user;
    // The name that it is to be found by, beside its own one.
    std::string wanted;
    // Of a step: the id of its batch job, and its number there.
    uint64_t within = 0;
    uint32_t step = 0;
    // Of a batch job.
    uint32_t steps = 0;
  };

  std::string NameOf(uint64_t id) const { return core_->NameOf(absl::StrCat(id), Anybody); }

  // Whether the name is `wanted`, or has been made from it.
  static bool IsNameFor(const std::string& name, const std::string& wanted, uint64_t id) {
    return name == wanted || absl::StartsWith(name, absl::StrCat(wanted, "-", id));
  }

  // Returns the id of the job; 0 if it is refused.
  uint64_t Submit(const v1::JobSpec& spec, const std::string& user, uint64_t within) {
    const std::string batch = within == 0 ? "" : absl::StrCat(within);
    if (core_ == nullptr || !core_->MaySubmit(spec, user, batch).ok()) return 0;
    const uint64_t id = submitted_.empty() ? 1 : submitted_.rbegin()->first + 1;
    Submitted& submitted = submitted_[id];
    submitted = {spec, user, spec.name(), within};
    if (within != 0) {
      submitted.step = submitted_.at(within).steps++;
      submitted.wanted = absl::StrCat(NameOf(within), "-s", submitted.step);
    }
    Step(JobSubmitted{spec, user, "", batch});
    const std::string* name = core_->LastSubmitted();
    Expect(name != nullptr && IdOf(*name) == id && IsNameFor(*name, submitted.wanted, id),
           absl::StrCat("job ", id, " has no name that is made from ", submitted.wanted));
    return id;
  }

  // Cancels it by its id, or the newest of its name.
  void PlanCancel(uint64_t id, absl::Duration soon) {
    world_.schedule.In(world_.random.Between(absl::ZeroDuration(), soon), [this, id] {
      if (core_ == nullptr) return;
      const std::string text =
          world_.random.Percent(70) ? absl::StrCat(id) : submitted_.at(id).wanted;
      Step(JobCancelled{core_->NameOf(text, Anybody), "no need"});
    });
  }

  // Its user puts it back into the queue, or holds it for a while, or does both.
  void PlanRequeue(uint64_t id) {
    const bool hold = world_.random.Percent(30);
    world_.schedule.In(world_.random.Between(absl::ZeroDuration(), kTrouble), [this, id, hold] {
      if (core_ == nullptr || !core_->MayRequeue(NameOf(id)).ok()) return;
      Step(JobRequeued{NameOf(id), "by its user", hold});
      ++requeued_;
    });
    world_.schedule.In(kTrouble, [this, id] { Release(id); });
  }

  void Release(uint64_t id) {
    v1::JobUpdate update;
    update.set_held(false);
    if (core_ == nullptr) {
      world_.schedule.In(absl::Seconds(1), [this, id] { Release(id); });
    } else if (core_->MayUpdate(NameOf(id), update, false).ok()) {
      Step(JobUpdated{NameOf(id), update});
    }
  }

  void PlanStep(uint64_t batch, absl::Duration in) {
    world_.schedule.In(in, [this, batch] {
      const Submitted& job = submitted_.at(batch);
      const int machines = static_cast<int>(machines_.size());
      const uint64_t id = Submit(DrawStep(world_.random, job.spec, machines), job.user, batch);
      if (id == 0) return;
      ++steps_;
      steps_waited_ += core_->StatusInList(world_.now(), NameOf(id))->phase() == v1::QUEUED;
      if (world_.random.Percent(20)) PlanCancel(id, absl::Seconds(30));
    });
  }

  // The script of a batch job begins steps while it runs, some of them at its very end.
  void PlanSteps(const v1::StartPart& start, absl::Duration takes) {
    for (int i = world_.random.Below(8); i > 0; --i) {
      PlanStep(start.job_id(), world_.random.Between(absl::ZeroDuration(), takes * 1.1));
    }
  }

  void PlanUsers() {
    const int jobs = world_.random.Between(3, 10);
    const int machines = static_cast<int>(machines_.size());
    for (int i = 0; i < jobs; ++i) {
      const v1::JobSpec spec = DrawClusterJob(world_.random, jobs, machines);
      const std::string user = world_.random.Percent(80) ? "ann" : "bob";
      const bool cancelled = world_.random.Percent(30);
      // A step that is no child of the script may begin before it and between its restarts.
      const bool has_step = spec.has_batch() && world_.random.Percent(30);
      const absl::Duration at = world_.random.Between(absl::ZeroDuration(), kTrouble);
      world_.schedule.In(at, [this, spec = spec, user, cancelled, has_step, machines]() mutable {
        DrawQueueOptions(world_.random, submitted_.empty() ? 0 : submitted_.rbegin()->first,
                         machines, &spec);
        const uint64_t id = Submit(spec, user, 0);
        if (id == 0) return;
        batch_jobs_ += spec.has_batch();
        if (cancelled) PlanCancel(id, kTrouble);
        if (spec.queue().held() || world_.random.Percent(20)) PlanRequeue(id);
        if (has_step) {
          PlanStep(id, world_.random.Between(absl::ZeroDuration(), absl::Minutes(1)));
        }
      });
    }
    for (int i = world_.random.Below(4); i > 0; --i) {
      const std::string node = machines_[Machine()]->Name();
      const absl::Duration at = world_.random.Between(absl::ZeroDuration(), kTrouble);
      world_.schedule.In(at, [this, node] { Step(NodeDrained{node, true, "fan"}); });
      drained_.insert(node);
    }
  }

  int Machine() { return world_.random.Below(static_cast<int>(machines_.size())); }

  void PlanFaults() {
    // Each history has its own selection of faults, since a fault that is always present hides what
    // others would show.
    std::vector<std::function<void(absl::Duration lasts)>> faults;
    const auto may = [&](std::function<void(absl::Duration)> fault) {
      if (world_.random.Percent(50)) faults.push_back(std::move(fault));
    };
    may([this](absl::Duration) { network_->Reset(Machine()); });
    may([this](absl::Duration lasts) { network_->Cut(Machine(), true, false, lasts); });
    may([this](absl::Duration lasts) { network_->Cut(Machine(), false, true, lasts); });
    may([this](absl::Duration lasts) { network_->Clog(Machine(), lasts); });
    may([this](absl::Duration lasts) {
      ++agents_lost_;
      machines_[Machine()]->KillAgent(lasts);
    });
    may([this](absl::Duration lasts) { machines_[Machine()]->EndAgent(lasts); });
    may([this](absl::Duration lasts) { KillServer(lasts); });
    if (faults.empty()) return;
    for (int i = world_.random.Below(25); i > 0; --i) {
      const auto fault = faults[world_.random.Below(static_cast<int>(faults.size()))];
      const absl::Duration lasts =
          world_.random.Percent(60) ? world_.random.Between(absl::Milliseconds(1), absl::Seconds(2))
                                    : world_.random.Between(absl::Seconds(2), absl::Seconds(40));
      world_.schedule.In(world_.random.Between(absl::ZeroDuration(), kTrouble),
                         [fault, lasts] { fault(lasts); });
    }
  }

  void Heal() {
    world_.calm = true;
    network_->Heal();
    StartServer();
    for (const auto& machine : machines_) machine->Heal();
    for (const std::string& node : drained_) Step(NodeDrained{node, false, ""});
  }

  bool AllEnded() {
    if (core_ == nullptr) return false;
    const auto jobs = core_->AllStatuses(world_.now());
    return std::all_of(jobs.begin(), jobs.end(), [this](const v1::JobStatus& job) {
      if (job.has_verdict()) return true;
      // A job that fits nowhere stays queued for ever, and Explain() gives the reason. A step does
      // not, as its batch job has nodes or ends.
      return job.phase() == v1::QUEUED && job.step_of() == 0 && WaitsForEver(job.submission()) &&
             !core_->Explain(world_.now(), job.name()).value_or("").empty();
    });
  }

  // Whether the job fits nowhere, or depends on one that does not.
  bool WaitsForEver(uint64_t id) const {
    const v1::JobSpec& spec = submitted_.at(id).spec;
    const auto& dependencies = spec.queue().dependencies();
    return !FitsSomewhere(spec) ||
           std::any_of(dependencies.begin(), dependencies.end(), [this](const auto& dependency) {
             const auto status = core_->StatusInList(world_.now(), NameOf(dependency.job()));
             return status.ok() && status->phase() == v1::QUEUED && WaitsForEver(dependency.job());
           });
  }

  // Whether the machines are large enough, whatever is allocated now. A worker takes a CPU at
  // least.
  bool FitsSomewhere(const v1::JobSpec& spec) const {
    const uint32_t workers = spec.workers_per_node().count();
    const uint32_t cpus = workers * std::max(spec.resources().cpus_per_worker(), 1u);
    const uint32_t gpus = workers * spec.resources().gpus_per_worker();
    const uint64_t memory = rpc::JobMemory(spec.resources().memory_per_worker(), workers);
    const auto large_enough =
        std::count_if(machines_.begin(), machines_.end(), [&](const auto& machine) {
          const NodeSize& size = machine->size();
          const auto& exclude = spec.placement().exclude();
          return std::find(exclude.begin(), exclude.end(), machine->Name()) == exclude.end() &&
                 size.cpus >= cpus && size.gpus >= gpus &&
                 (size.memory == 0 || size.memory >= memory);
        });
    return static_cast<uint32_t>(large_enough) >= spec.nodes().min();
  }

  std::string Waiting() {
    std::string text;
    for (const v1::JobStatus& job : core_->AllStatuses(world_.now())) {
      if (!job.has_verdict()) {
        absl::StrAppend(&text, job.name(), ": ",
                        core_->Explain(world_.now(), job.name()).value_or(""), "; ");
      }
    }
    return text;
  }

  // Returns false if time ran out.
  bool RunUntil(MonoTime end, const std::function<bool()>& holds) {
    for (MonoTime look = world_.now(); broken_.empty();) {
      // The check costs more than an event, so it runs once a second.
      if (world_.now() >= look) {
        if (holds()) return true;
        look = world_.now() + absl::Seconds(1);
      }
      if (!world_.schedule.RunNext(end)) return false;
      for (const auto& machine : machines_) {
        if (broken_.empty()) broken_ = machine->broken();
      }
    }
    return false;
  }

  ClusterResult Result() {
    ClusterResult result;
    result.broken = broken_;
    result.hash = world_.trace.hash();
    result.events = world_.schedule.events();
    result.agents_lost = agents_lost_;
    result.lines = world_.trace.lines();
    if (core_ == nullptr) return result;
    for (const v1::JobStatus& job : core_->AllStatuses(world_.now())) {
      result.succeeded += job.phase() == v1::SUCCEEDED;
      result.failed += job.phase() == v1::FAILED;
      result.cancelled += job.phase() == v1::CANCELLED_PHASE;
    }
    result.batch_jobs = batch_jobs_;
    result.requeued = requeued_;
    result.steps = steps_;
    result.steps_waited = steps_waited_;
    result.steps_outlived = steps_outlived_;
    if (result.broken.empty()) result.broken = WhatIsLost();
    return result;
  }

  // Returns the first job that is not found as it was submitted; empty if all are.
  std::string WhatIsLost() const {
    std::map<std::string, uint64_t> newest;
    for (const auto& [id, submitted] : submitted_) {
      newest[submitted.wanted] = id;
      const auto status = core_->Status(world_.now(), NameOf(id));
      if (!status.ok() || status->submission() != id) return absl::StrCat("job ", id, " is lost");
      if (!IsNameFor(status->name(), submitted.wanted, id) || status->user() != submitted.user ||
          (status->submitted_name().empty() ? status->name() : status->submitted_name()) !=
              submitted.wanted) {
        return absl::StrCat("job ", id, " is not ", submitted.wanted, " of ", submitted.user);
      }
      if (submitted.within == 0) continue;
      const std::string step = absl::StrCat(submitted.within, ".", submitted.step);
      if (core_->NameOf(step, Anybody) != status->name()) {
        return absl::StrCat("step ", step, " is lost");
      }
    }
    for (const auto& [name, id] : newest) {
      if (core_->NameOf(name, Anybody) != NameOf(id)) {
        return absl::StrCat(name, " does not mean job ", id, ", the newest");
      }
    }
    return "";
  }

  World world_;
  Plan plan_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<Core> core_;
  std::vector<v1::Record> records_;
  std::vector<std::unique_ptr<ClusterMachine>> machines_;
  std::map<uint64_t, Submitted> submitted_;
  // All allocations, and the machines whose allocations have changed in the step.
  std::map<uint64_t, Placed> placed_;
  std::set<int> changed_;
  // The state of the server that was killed last, and when the one that runs was started.
  std::string killed_with_;
  MonoTime started_;
  int batch_jobs_ = 0, requeued_ = 0, steps_ = 0, steps_waited_ = 0, steps_outlived_ = 0;
  std::set<std::string> drained_;
  MonoTime timer_at_ = MonoTime::Never();
  int agents_lost_ = 0;
  std::string broken_;
};

}  // namespace

ClusterResult RunClusterHistory(uint64_t seed, ClusterMutation mutation, bool keep_lines) {
  return ClusterHistory(seed, mutation, keep_lines).Run();
}

}  // namespace cadre::simulation
