#include "tests/simulation/plan.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace cadre::simulation {
namespace {

constexpr int kFaultsMax = 8;
constexpr absl::Duration kTroubleMax = absl::Seconds(60);

v1::JobSpec MakeSpec(int number, Random& random) {
  v1::JobSpec spec;
  spec.set_name(absl::StrCat("job", number));
  spec.add_command("./train");
  const int min = random.Between(1, 3);
  spec.mutable_nodes()->set_min(min);
  spec.mutable_nodes()->set_max(random.Percent(40) ? min : random.Between(min, 4));
  spec.mutable_restart()->set_max(random.Below(4));
  spec.mutable_restart()->mutable_backoff_min()->set_nanos(500000000);
  spec.mutable_restart()->mutable_backoff_max()->set_seconds(4);
  if (random.Percent(20)) spec.mutable_restart()->mutable_window()->set_seconds(20);
  spec.mutable_rendezvous()->mutable_settle()->set_seconds(random.Between(1, 5));
  spec.mutable_rendezvous()->mutable_join_timeout()->set_seconds(random.Between(20, 40));
  spec.mutable_timeouts()->mutable_start()->set_seconds(random.Between(15, 30));
  spec.mutable_timeouts()->mutable_stop_grace()->set_seconds(random.Between(1, 4));
  if (random.Percent(15)) spec.mutable_timeouts()->mutable_total()->set_seconds(60);
  spec.mutable_timeouts()->mutable_progress()->set_seconds(5);
  if (random.Percent(25)) spec.mutable_elastic()->set_scale_up(v1::ElasticPolicy::IMMEDIATELY);
  if (spec.nodes().min() != spec.nodes().max() && spec.nodes().max() >= 2 && random.Percent(15)) {
    spec.mutable_elastic()->set_unit(2);
  }
  return spec;
}

void AddNodes(Plan& plan, Random& random) {
  for (size_t job = 0; job < plan.jobs.size(); ++job) {
    const int max = plan.jobs[job].nodes().max();
    const int count = std::max(1, max + random.Between(-1, 1));
    for (int i = 0; i < count; ++i) {
      NodePlan node;
      node.job = static_cast<int>(job);
      node.slots = random.Between(1, 2);
      if (random.Percent(10)) node.wanted_rank = random.Below(3);
      node.comes_after = random.Between(absl::ZeroDuration(), absl::Milliseconds(500));
      if (random.Percent(15)) {
        node.comes_after = random.Between(absl::ZeroDuration(), absl::Seconds(15));
      }
      plan.nodes.push_back(node);
    }
  }
}

Clock MakeClock(bool skewed, Random& random) {
  Clock clock;
  // Machines have been up for anything between a second and a year.
  const absl::Duration up = random.Between(absl::Seconds(1), absl::Hours(24 * 365));
  clock.offset_us = absl::ToInt64Microseconds(up);
  if (skewed) clock.drift_ppm = random.Between(-10000, 10000);
  return clock;
}

void AddClocks(Plan& plan, Random& random) {
  const bool skewed = random.Percent(30);
  plan.server_clock = MakeClock(skewed, random);
  for (NodePlan& node : plan.nodes) node.clock = MakeClock(skewed, random);
}

void AddOdds(Plan& plan, Random& random) {
  Odds& odds = plan.odds;
  odds.delay_min = absl::Microseconds(50);
  odds.delay_max = absl::Microseconds(500);
  odds.collateral = random.Below(100);
  odds.comes_back = random.Below(100);
  if (plan.faultless) return;
  if (random.Percent(25)) odds.delay_max = random.Between(absl::ZeroDuration(), absl::Seconds(1));
  if (random.Percent(25)) odds.retransmit = random.Below(50);
  if (random.Percent(30)) odds.call_lost = random.Below(50);
  if (random.Percent(30)) odds.call_twice = random.Below(50);
  if (random.Percent(10)) odds.crash_while_saving = random.Between(1, 10);
  if (random.Percent(40)) odds.worker_fails = random.Below(40);
  if (random.Percent(15)) odds.worker_hangs = random.Below(30);
  if (random.Percent(20)) odds.worker_ignores_sigterm = random.Below(100);
  if (random.Percent(5)) odds.worker_cannot_start = random.Below(30);
}

void AddFaults(Plan& plan, Random& random) {
  plan.trouble = random.Between(absl::Seconds(1), kTroubleMax);
  std::vector<Fault> chosen;
  // The two faults that end everything are rare, so that most histories continue.
  for (int kind = 0; kind < static_cast<int>(Fault::kCount); ++kind) {
    const Fault fault = static_cast<Fault>(kind);
    const bool ends = fault == Fault::kUserCancels || fault == Fault::kCtrlC;
    if (random.Percent(ends ? 3 : 25)) chosen.push_back(fault);
  }
  const int count = chosen.empty() ? 0 : random.Between(1, kFaultsMax);
  for (int i = 0; i < count; ++i) {
    FaultAt fault;
    fault.at = MonoTime() + random.Between(absl::ZeroDuration(), plan.trouble);
    fault.fault = chosen[random.Below(static_cast<int>(chosen.size()))];
    fault.node = random.Below(static_cast<int>(plan.nodes.size()));
    fault.lasts = random.Percent(60) ? random.Between(absl::ZeroDuration(), absl::Seconds(4))
                                     : random.Between(absl::ZeroDuration(), absl::Seconds(40));
    plan.faults.push_back(fault);
  }
}

}  // namespace

bool Plan::Has(Fault fault) const {
  return std::any_of(faults.begin(), faults.end(),
                     [fault](const FaultAt& at) { return at.fault == fault; });
}

Plan MakePlan(uint64_t seed) {
  Random random(seed * 0x2545f4914f6cdd1d + 1);
  Plan plan;
  plan.seed = seed;
  plan.faultless = random.Percent(5);
  const int jobs = random.Percent(10) ? 2 : 1;
  for (int job = 0; job < jobs; ++job) plan.jobs.push_back(MakeSpec(job, random));
  // These are drawn from their own generator, so that the seeds of all other histories keep their
  // meaning.
  Random apart(seed * 0x9e3779b97f4a7c15 + 2);
  for (v1::JobSpec& spec : plan.jobs) spec.mutable_restart()->set_in_place(apart.Percent(30));
  AddNodes(plan, random);
  // In-place recovery and adoption exclude each other.
  const absl::Duration adopt_timeout = absl::Seconds(apart.Between(1, 30));
  const bool adopts = apart.Percent(60);
  for (NodePlan& node : plan.nodes) {
    if (adopts && !plan.jobs[node.job].restart().in_place()) node.adopt_timeout = adopt_timeout;
  }
  AddClocks(plan, random);
  AddOdds(plan, random);
  plan.server.lease = absl::Seconds(random.Percent(50) ? 10 : 4);
  plan.orphan_timeout = absl::Seconds(random.Between(10, 60));
  plan.worker_runs_at_most = absl::Seconds(random.Percent(50) ? 5 : 25);
  plan.compact_after = random.Between(20, 200);
  plan.trouble = absl::Seconds(1);
  if (!plan.faultless) AddFaults(plan, random);
  return plan;
}

const char* NameOf(Fault fault) {
  static constexpr const char* kNames[] = {
      "reset",         "cut_up",        "cut_down",     "cut_both",          "clog",
      "swizzle",       "agent_killed",  "agent_paused", "supervisor_killed", "node_off",
      "server_killed", "server_paused", "state_lost",   "disk_full",         "disk_fails",
      "user_cancels",  "ctrl_c"};
  static_assert(std::size(kNames) == static_cast<size_t>(Fault::kCount));
  return kNames[static_cast<int>(fault)];
}

const char* NameOf(Mutation mutation) {
  switch (mutation) {
    case Mutation::kNone:
      return "none";
    case Mutation::kSkipFence:
      return "skip_fence";
    case Mutation::kPersistAfterSending:
      return "persist_after_sending";
    case Mutation::kReuseGeneration:
      return "reuse_generation";
    case Mutation::kSkipIncarnation:
      return "skip_incarnation";
    case Mutation::kHideFullDisk:
      return "hide_full_disk";
  }
  return "";
}

}  // namespace cadre::simulation
