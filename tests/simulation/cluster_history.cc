#include "tests/simulation/cluster_history.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/core/core.h"
#include "tests/simulation/plan.h"

namespace cadre::simulation {
namespace {

constexpr absl::Duration kTrouble = absl::Seconds(120);
// After it every job has to end within this.
constexpr absl::Duration kPeace = absl::Minutes(60);
// From the end of the last job until nothing is left: stop margin, grace and launcher's margin.
constexpr absl::Duration kAftermath = absl::Seconds(60);

class ClusterHistory final : public StreamServer {
 public:
  ClusterHistory(uint64_t seed, ClusterMutation mutation, bool keep_lines) : world_(seed) {
    if (keep_lines) world_.trace.Keep();
    const int machines = world_.random.Between(2, 5);
    plan_.nodes.resize(machines);
    plan_.odds.delay_min = absl::Microseconds(100);
    plan_.odds.delay_max = world_.random.Percent(30) ? absl::Seconds(1) : absl::Milliseconds(5);
    plan_.odds.retransmit = world_.random.Percent(30) ? 10 : 0;
    network_ = std::make_unique<Network>(world_, plan_);
    network_->set_server(this);
    for (int i = 0; i < machines; ++i) {
      MachinePlan plan;
      plan.cpus = world_.random.Between(2, 8);
      plan.gpus = world_.random.Between(0, 4);
      machines_.push_back(std::make_unique<ClusterMachine>(world_, *network_, i, plan, mutation));
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
    Step(NodeSaid{StreamId{id}, message});
  }
  void OnClosed(ConnectionId id) override { Step(StreamClosed{StreamId{id}}); }

 private:
  void StartServer() {
    if (core_ != nullptr) return;
    core_ = std::make_unique<Core>(CoreConfig());
    for (const v1::Record& record : records_) core_->Apply(record);
    timer_at_ = MonoTime::Never();
    Step(Tick{});
  }

  void KillServer(absl::Duration back_after) {
    if (core_ == nullptr) return;
    world_.Note(10, 0, [] { return "the server is killed"; });
    network_->DropServer();
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
    if (!holds.ok() && broken_.empty()) broken_ = std::string(holds.message());
    ArmTimer();
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

  v1::JobSpec DrawJob(int number) {
    v1::JobSpec spec;
    spec.set_name(absl::StrCat("j", number));
    spec.add_command("./train");
    const int most = static_cast<int>(machines_.size());
    spec.mutable_nodes()->set_min(world_.random.Between(1, most));
    spec.mutable_nodes()->set_max(spec.nodes().min());
    if (world_.random.Percent(40)) {
      spec.mutable_nodes()->set_max(world_.random.Between(spec.nodes().min(), most));
      spec.mutable_elastic()->set_scale_up(v1::ElasticPolicy::IMMEDIATELY);
    }
    spec.mutable_workers_per_node()->set_kind(v1::WorkersPerNode::COUNT);
    spec.mutable_workers_per_node()->set_count(world_.random.Between(1, 2));
    if (world_.random.Percent(40)) spec.mutable_resources()->set_gpus_per_worker(1);
    spec.mutable_timeouts()->mutable_stop_grace()->set_seconds(world_.random.Between(1, 5));
    spec.mutable_rendezvous()->mutable_join_timeout()->set_seconds(300);
    spec.mutable_restart()->set_max(world_.random.Between(0, 5));
    spec.set_priority(world_.random.Between(0, 2));
    return spec;
  }

  void PlanUsers() {
    const int jobs = world_.random.Between(3, 10);
    for (int i = 0; i < jobs; ++i) {
      const v1::JobSpec spec = DrawJob(world_.random.Below(jobs));
      world_.schedule.In(world_.random.Between(absl::ZeroDuration(), kTrouble), [this, spec] {
        if (core_ == nullptr || !core_->MaySubmit(spec, "ann").ok()) return;
        Step(JobSubmitted{spec, "ann", ""});
        submitted_[spec.name()] = spec;
      });
      if (!world_.random.Percent(30)) continue;
      world_.schedule.In(world_.random.Between(absl::ZeroDuration(), kTrouble), [this, spec] {
        Step(JobCancelled{spec.name(), "no need"});
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
    // Each history has its own selection, since what is always there hides what it alone shows.
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
      // One that fits nowhere waits for ever, and says so.
      return job.phase() == v1::QUEUED && !FitsSomewhere(submitted_.at(job.name())) &&
             !core_->Explain(world_.now(), job.name()).value_or("").empty();
    });
  }

  // Only what the machines have counts, not who has it now. A worker takes a CPU.
  bool FitsSomewhere(const v1::JobSpec& spec) const {
    const uint32_t workers = spec.workers_per_node().count();
    const uint32_t gpus = workers * spec.resources().gpus_per_worker();
    const auto large_enough =
        std::count_if(machines_.begin(), machines_.end(), [&](const auto& machine) {
          return machine->plan().cpus >= workers && machine->plan().gpus >= gpus;
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

  // False: time ran out.
  bool RunUntil(MonoTime end, const std::function<bool()>& holds) {
    for (MonoTime look = world_.now(); broken_.empty();) {
      // Asking costs more than an event.
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
    for (const auto& [name, spec] : submitted_) {
      if (!core_->Status(world_.now(), name).ok() && result.broken.empty()) {
        result.broken = absl::StrCat("job ", name, " is lost");
      }
    }
    return result;
  }

  World world_;
  Plan plan_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<Core> core_;
  std::vector<v1::Record> records_;
  std::vector<std::unique_ptr<ClusterMachine>> machines_;
  // As they were last accepted, by name.
  std::map<std::string, v1::JobSpec> submitted_;
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
