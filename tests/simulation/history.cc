#include "tests/simulation/history.h"

#include <algorithm>
#include <csignal>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/simulation/network.h"
#include "tests/simulation/node.h"
#include "tests/simulation/outside_client.h"
#include "tests/simulation/server.h"

namespace cadre::simulation {
namespace {

// After the faults, every job is over within this: join_timeout, a run and what restarts are left,
// with their grace and backoff.
constexpr absl::Duration kLivenessLimit = absl::Minutes(10);
// A lease and more.
constexpr absl::Duration kIdleLimit = absl::Minutes(2);
// Far more than any history has; one that reaches it goes in circles.
constexpr uint64_t kEventsMax = 500000;

class History {
 public:
  History(const Plan& plan, Mutation mutation)
      : plan_(plan),
        world_(plan.seed),
        oracle_(world_, plan),
        network_(world_, plan),
        server_(world_, plan, mutation, network_, oracle_) {
    network_.set_server(&server_);
    for (size_t i = 0; i < plan.nodes.size(); ++i) {
      nodes_.push_back(std::make_unique<Node>(world_, plan_, static_cast<int>(i), network_, oracle_,
                                              [this](const GenerationKey& generation) {
                                                for (const auto& node : nodes_)
                                                  node->supervisor().PeerFailed(generation);
                                              }));
    }
  }

  HistoryResult Run(bool keep_lines) {
    if (keep_lines) world_.trace.Keep();
    Begin();
    RunUntil(MonoTime() + plan_.trouble, [] { return false; });
    EndFaults();
    const bool over = RunUntil(world_.now() + kLivenessLimit, [this] { return AllOver(); });
    if (!over && Sound()) oracle_.Break(absl::StrCat("I6: ", WhatIsLeft()));
    const bool idle = RunUntil(world_.now() + kIdleLimit, [this] { return server_.Idle(); });
    if (!idle && Sound()) oracle_.Break("I7: all have left, and the server waits for something");
    if (Sound()) CheckEnd();
    HistoryResult result;
    result.broken = oracle_.broken();
    result.hash = world_.trace.hash();
    result.events = world_.schedule.events();
    result.lasted = world_.now() - MonoTime();
    result.tally = oracle_.tally();
    result.lines = world_.trace.lines();
    return result;
  }

 private:
  void Begin() {
    server_.Start();
    for (size_t i = 0; i < nodes_.size(); ++i) {
      world_.schedule.In(plan_.nodes[i].comes_after, [this, i] { nodes_[i]->StartAgent(); });
    }
    for (const FaultAt& fault : plan_.faults) {
      world_.schedule.At(fault.at, [this, fault] { Apply(fault); });
    }
    // What it asks for is told apart by the number of its generation, which a server that has lost
    // its state gives again.
    if (plan_.Has(Fault::kStateLost)) return;
    for (const v1::JobSpec& spec : plan_.jobs) {
      clients_.push_back(
          std::make_unique<OutsideClient>(world_, plan_, network_, server_, oracle_, spec.name()));
      clients_.back()->Start();
    }
  }

  void Apply(const FaultAt& fault) {
    if (world_.calm) return;
    world_.Note(50, static_cast<uint64_t>(fault.fault) << 8 | fault.node, [&] {
      return absl::StrCat("FAULT ", NameOf(fault.fault), " ", NameOfNode(fault.node), " for ",
                          absl::FormatDuration(fault.lasts));
    });
    Node& node = *nodes_[fault.node];
    switch (fault.fault) {
      case Fault::kReset:
        return network_.Reset(fault.node);
      case Fault::kCutUp:
        return network_.Cut(fault.node, true, false, fault.lasts);
      case Fault::kCutDown:
        return network_.Cut(fault.node, false, true, fault.lasts);
      case Fault::kCutBoth:
      case Fault::kClog:
        return network_.Cut(fault.node, true, true, fault.lasts);
      case Fault::kSwizzle:
        return Swizzle(fault.lasts);
      case Fault::kAgentKilled:
        return node.KillAgent(false, fault.lasts);
      case Fault::kAgentPaused:
        return node.PauseAgent(fault.lasts);
      case Fault::kSupervisorKilled:
        return node.KillSupervisor();
      case Fault::kNodeOff:
        return node.KillAgent(true, fault.lasts);
      case Fault::kServerKilled:
        return server_.Kill(fault.lasts, false);
      case Fault::kServerPaused:
        return server_.Pause(fault.lasts);
      case Fault::kStateLost:
        return server_.Kill(fault.lasts, true);
      case Fault::kDiskFull:
        return BreakDisk(absl::ResourceExhaustedError("no room on the disk"), fault.lasts);
      case Fault::kDiskFails:
        return BreakDisk(absl::UnavailableError("the disk fails"), fault.lasts);
      case Fault::kUserCancels:
        return server_.Cancel(plan_.jobs[plan_.nodes[fault.node].job].name());
      case Fault::kCtrlC:
        return node.Signal(SIGINT);
      case Fault::kCount:
        return;
    }
  }

  void Swizzle(absl::Duration lasts) {
    std::vector<int> order(nodes_.size());
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[world_.random.Below(static_cast<int>(i))]);
    }
    absl::Duration at;
    for (const int node : order) {
      at += world_.random.Between(absl::ZeroDuration(), absl::Milliseconds(500));
      const absl::Duration clogged = world_.random.Between(absl::ZeroDuration(), lasts);
      world_.schedule.In(at, [this, node, clogged] {
        if (!world_.calm) network_.Clog(node, clogged);
      });
    }
  }

  void BreakDisk(absl::Status state, absl::Duration lasts) {
    server_.SetDisk(std::move(state));
    world_.schedule.In(lasts, [this] { server_.SetDisk(absl::OkStatus()); });
  }

  void EndFaults() {
    world_.Note(51, 0, [] { return std::string("the faults are over"); });
    world_.calm = true;
    network_.Heal();
    server_.Heal();
    for (const auto& node : nodes_) node->Heal();
  }

  // False when the time has passed, or something is broken.
  template <typename Done>
  bool RunUntil(MonoTime until, const Done& done) {
    while (Sound()) {
      if (done()) return true;
      if (!world_.schedule.RunNext(until)) return false;
      if (world_.schedule.events() > kEventsMax) oracle_.Break("it goes in circles");
    }
    return false;
  }

  bool Sound() const { return oracle_.broken().empty(); }

  bool AllOver() const {
    return std::all_of(nodes_.begin(), nodes_.end(),
                       [](const auto& node) { return node->IsOver(); });
  }

  std::string WhatIsLeft() const {
    std::string left = "long after the faults";
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i]->IsOver()) absl::StrAppend(&left, ", agent ", NameOfNode(i), " still runs");
    }
    if (!server_.up()) return left + "; no server";
    for (const v1::JobSpec& spec : plan_.jobs) {
      const auto why = server_.core().Explain(server_.Local(), spec.name());
      absl::StrAppend(&left, "; ", spec.name(), ": ", why.ok() ? *why : why.status().ToString());
    }
    return left;
  }

  void CheckEnd() {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      RunUntil(nodes_[i]->supervisor().GoneBy(), [&] { return !oracle_.HasWorkers(i); });
      if (Sound() && oracle_.HasWorkers(i)) {
        oracle_.Break(absl::StrCat("I7: ", NameOfNode(i), " has workers after the end"));
      }
    }
    if (!server_.up()) return;
    for (const v1::JobStatus& job : server_.core().AllStatuses(server_.Local())) {
      if (!job.has_verdict()) oracle_.Break(absl::StrCat("I6: ", job.name(), " never ended"));
    }
  }

  const Plan& plan_;
  World world_;
  Oracle oracle_;
  Network network_;
  Server server_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<OutsideClient>> clients_;
};

}  // namespace

HistoryResult RunHistory(const Plan& plan, Mutation mutation, bool keep_lines) {
  return History(plan, mutation).Run(keep_lines);
}

}  // namespace cadre::simulation
