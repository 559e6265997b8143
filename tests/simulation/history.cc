#include "tests/simulation/history.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/simulation/network.h"
#include "tests/simulation/node.h"
#include "tests/simulation/server.h"

namespace cadre::simulation {
namespace {

// After the faults every job ends within this time: join_timeout, a run, and the remaining restarts
// with their grace and backoff.
constexpr absl::Duration kLivenessLimit = absl::Minutes(10);
// A lease and some margin.
constexpr absl::Duration kIdleLimit = absl::Minutes(2);
// Far more than any history has; a history that reaches it does not make progress.
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
    if (keep_lines) world_.trace.KeepLines();
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
    // The oracle tells the client's requests apart by the generation's number, and a server that
    // has lost its state uses the numbers again.
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

  // Returns false if the time has passed, or an invariant is broken.
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

namespace {

void Add(const Tally& from, Tally* to) {
  to->generations += from.generations;
  to->restarts += from.restarts;
  to->nodes_lost += from.nodes_lost;
  to->server_starts += from.server_starts;
  to->degraded_rounds += from.degraded_rounds;
  to->store_answers += from.store_answers;
  to->adoptions += from.adoptions;
  for (const auto& [outcome, count] : from.outcomes) to->outcomes[outcome] += count;
}

}  // namespace

RunReport RunMany(const RunOptions& options) {
  constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  const uint64_t end = options.first_seed + options.histories;
  std::atomic<uint64_t> next{options.first_seed};
  std::atomic<uint64_t> broken{kNone};
  std::mutex mutex;
  RunReport report;
  const auto work = [&] {
    RunReport mine;
    for (;;) {
      const uint64_t seed = next.fetch_add(1);
      // All seeds before the first broken one are run, so that the result does not depend on the
      // threads.
      if (seed >= end || seed > broken) break;
      if (seed % kProgressEvery == 0) options.progress(seed);
      const HistoryResult result = RunHistory(MakePlan(seed), options.mutation, false);
      ++mine.histories;
      mine.events += result.events;
      mine.virtual_time += result.lasted;
      Add(result.tally, &mine.tally);
      if (result.broken.empty()) continue;
      uint64_t earliest = broken;
      while (seed < earliest && !broken.compare_exchange_weak(earliest, seed)) {
      }
    }
    const std::lock_guard<std::mutex> lock(mutex);
    report.histories += mine.histories;
    report.events += mine.events;
    report.virtual_time += mine.virtual_time;
    Add(mine.tally, &report.tally);
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < options.threads; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  if (broken != kNone) {
    report.broken_seed = broken;
    report.story = HistoryText(broken, options.mutation);
  }
  return report;
}

std::string HistoryText(uint64_t seed, Mutation mutation) {
  const Plan plan = MakePlan(seed);
  const HistoryResult result = RunHistory(plan, mutation, true);
  std::string story = absl::StrCat(absl::StrJoin(result.lines, "\n"), "\n\nseed ", seed, ": ",
                                   result.broken.empty() ? "every promise held" : result.broken,
                                   "\nhash ", absl::Hex(result.hash), ", ", result.events,
                                   " events in ", absl::FormatDuration(result.lasted),
                                   "\nagain: bazel run //tests/simulation -- --seed=", seed);
  if (mutation != Mutation::kNone) absl::StrAppend(&story, " --mutation=", NameOf(mutation));
  return story + "\n";
}

}  // namespace cadre::simulation
