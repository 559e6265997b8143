#include "bench/scale/rendezvous_load.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "bench/scale/marks.h"
#include "bench/scale/process_cost.h"
#include "bench/scale/running_job.h"

namespace cadre {
namespace {

FleetOptions FleetOf(const LoadOptions& options) {
  FleetOptions fleet;
  fleet.server = options.server;
  fleet.job = kLoadJob;
  fleet.agents = options.agents;
  fleet.slots = options.slots;
  return fleet;
}

nlohmann::json Spread(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {{"p50", Percentile(samples, 0.5)},
          {"p99", Percentile(samples, 0.99)},
          {"max", samples.back()},
          {"samples", samples.size()}};
}

void Append(const std::vector<double>& more, std::vector<double>* samples) {
  samples->insert(samples->end(), more.begin(), more.end());
}

// A rank's request on its node's stream, which waits.
v1::NodeMessage StoreMessage(uint32_t rank, uint64_t request_id) {
  v1::NodeMessage message;
  v1::StoreRequest* request = message.mutable_store();
  request->set_job(kLoadJob);
  request->set_generation(1);
  request->set_rank(static_cast<int32_t>(rank));
  request->set_client(rank + 1);
  request->set_request_id(request_id);
  request->set_wait_ms(60000);
  return message;
}

// One mark for each rank whose first request was answered.
Fleet::Observer MarkAnswers(Marks* answered, std::atomic<int>* refused) {
  return [answered, refused](size_t, const v1::ServerMessage& message) {
    if (!message.has_store() || message.store().request_id() != 1) return;
    if (message.store().code() != 0) ++*refused;
    answered->Mark(message.store().client() - 1);
  };
}

absl::Status Refused(int ranks) {
  if (ranks == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(ranks, " ranks were refused"));
}

// One failure of a running job, as its agents see it.
struct Round {
  explicit Round(size_t agents) : stopped(agents), assigned(agents), running(agents) {}
  Marks stopped, assigned, running;
};

}  // namespace

absl::StatusOr<nlohmann::json> MeasureJoin(const LoadOptions& options) {
  ASSIGN_OR_RETURN(const auto job,
                   RunningJob::Start(options.server, options.agents, options.slots));
  return nlohmann::json{{"joined_ms", job->joined_ms()},
                        {"assigned_ms", job->assigned_ms()},
                        {"all_running_ms", job->running_ms()}};
}

absl::StatusOr<nlohmann::json> MeasureBareJoin(const LoadOptions& options) {
  Marks answered(options.agents);
  Fleet fleet(FleetOf(options),
              [&](size_t agent, const v1::ServerMessage&) { answered.Mark(agent); });
  const MonoTime start = MonoNow();
  fleet.Connect();
  if (!answered.WaitForAll(kLoadPatience)) return LateError("joined", answered, fleet);
  return nlohmann::json{{"joined_ms", answered.LastMillisSince(start)}};
}

absl::StatusOr<nlohmann::json> MeasureBroadcast(const LoadOptions& options) {
  std::deque<Round> rounds;  // outlive the job, whose streams use them
  ASSIGN_OR_RETURN(const auto job,
                   RunningJob::Start(options.server, options.agents, options.slots));
  std::vector<double> stop, again;
  for (int i = 0; i < options.rounds; ++i) {
    const uint64_t generation = static_cast<uint64_t>(i) + 1;
    Round& round = rounds.emplace_back(options.agents);
    job->Observe(
        [&round, generation, world = job->world()](size_t agent, const v1::ServerMessage& message) {
          if (message.has_stop() && message.generation() == generation) round.stopped.Mark(agent);
          if (message.generation() != generation + 1) return;
          if (message.has_assign()) round.assigned.Mark(agent);
          if (message.has_status() && message.status().workers_running() == world) {
            round.running.Mark(agent);
          }
        });
    v1::NodeMessage failed;
    failed.mutable_worker_exited()->mutable_exit()->set_exit_code(1);
    failed.mutable_worker_exited()->set_cause(v1::CRASH);
    const MonoTime start = MonoNow();
    job->fleet().Send(static_cast<size_t>(i) % options.agents, std::move(failed));
    for (const auto& [what, marks] :
         {std::pair("stopped", &round.stopped), std::pair("assigned again", &round.assigned),
          std::pair("running again", &round.running)}) {
      if (!marks->WaitForAll(kLoadPatience)) return LateError(what, *marks, job->fleet());
    }
    Append(round.stopped.SortedMillisSince(start), &stop);
    again.push_back(round.assigned.LastMillisSince(start));
  }
  return nlohmann::json{{"stop_ms", Spread(stop)}, {"all_assigned_again_ms", Spread(again)}};
}

absl::StatusOr<nlohmann::json> MeasureBareBroadcast(const LoadOptions& options) {
  Marks answered(options.agents);
  std::deque<Marks> rounds;
  std::atomic<Marks*> stopped{nullptr};
  Fleet fleet(FleetOf(options), [&](size_t agent, const v1::ServerMessage& message) {
    answered.Mark(agent);
    if (message.has_stop()) stopped.load()->Mark(agent);
  });
  fleet.Connect();
  if (!answered.WaitForAll(kLoadPatience)) return LateError("joined", answered, fleet);
  std::vector<double> stop;
  for (int round = 0; round < options.rounds; ++round) {
    Marks& marks = rounds.emplace_back(options.agents);
    stopped = &marks;
    v1::NodeMessage cancel;
    cancel.mutable_cancel()->set_reason("rank 0 (local rank 0) on node0 exited with status 1");
    const MonoTime start = MonoNow();
    fleet.Send(static_cast<size_t>(round) % options.agents, std::move(cancel));
    if (!marks.WaitForAll(kLoadPatience)) return LateError("told", marks, fleet);
    Append(marks.SortedMillisSince(start), &stop);
  }
  return nlohmann::json{{"stop_ms", Spread(stop)}};
}

absl::StatusOr<nlohmann::json> MeasureIds(const LoadOptions& options) {
  const uint32_t world = static_cast<uint32_t>(options.agents) * options.slots;
  Marks answered(world);
  std::atomic<int> refused{0};
  ASSIGN_OR_RETURN(const auto job,
                   RunningJob::Start(options.server, options.agents, options.slots));
  job->Observe(MarkAnswers(&answered, &refused));
  const MonoTime first = MonoNow();
  for (uint32_t rank = 0; rank < world; ++rank) {
    v1::NodeMessage get = StoreMessage(rank, 1);
    get.mutable_store()->mutable_get_id()->set_communicator("world");
    job->fleet().Send(rank / options.slots, std::move(get));
    if (rank != world / 2) continue;
    v1::NodeMessage publish = StoreMessage(0, 2);
    publish.mutable_store()->mutable_publish_id()->set_communicator("world");
    publish.mutable_store()->mutable_publish_id()->set_id(std::string(128, 'i'));
    job->fleet().Send(0, std::move(publish));
  }
  const MonoTime last = MonoNow();
  if (!answered.WaitForAll(kLoadPatience)) return LateError("answered", answered, job->fleet());
  RETURN_IF_ERROR(Refused(refused));
  return nlohmann::json{{"ranks", world},
                        {"from_first_request_ms", answered.LastMillisSince(first)},
                        {"from_last_request_ms", answered.LastMillisSince(last)}};
}

absl::StatusOr<nlohmann::json> MeasureJoinAndBarrier(const LoadOptions& options) {
  const uint32_t world = static_cast<uint32_t>(options.agents) * options.slots;
  Marks left(world);
  std::atomic<int> refused{0};
  const Fleet::Observer mark = MarkAnswers(&left, &refused);
  Fleet* all = nullptr;
  Fleet fleet(FleetOf(options), [&](size_t agent, const v1::ServerMessage& message) {
    mark(agent, message);
    if (!message.has_assign()) return;
    for (uint32_t i = 0; i < message.assign().local_world_size(); ++i) {
      v1::NodeMessage enter = StoreMessage(message.assign().first_rank() + i, 1);
      enter.mutable_store()->mutable_barrier()->set_name("start");
      all->Send(agent, std::move(enter));
    }
  });
  all = &fleet;
  const MonoTime start = MonoNow();
  fleet.Connect();
  if (!left.WaitForAll(kLoadPatience)) return LateError("through the barrier", left, fleet);
  RETURN_IF_ERROR(Refused(refused));
  return nlohmann::json{{"ranks", world}, {"ms", left.LastMillisSince(start)}};
}

absl::StatusOr<nlohmann::json> MeasureIdle(const LoadOptions& options, int process) {
  ASSIGN_OR_RETURN(const auto job,
                   RunningJob::Start(options.server, options.agents, options.slots));
  // Joining is over, and each has renewed once.
  absl::SleepFor(kRenewInterval);
  ASSIGN_OR_RETURN(const ProcessCost before, CostOf(process));
  const MonoTime start = MonoNow();
  absl::SleepFor(options.span);
  ASSIGN_OR_RETURN(const ProcessCost after, CostOf(process));
  const absl::Duration passed = MonoNow() - start;
  const std::string broken = job->fleet().broken();
  if (!broken.empty()) return absl::InternalError(broken);
  return nlohmann::json{
      {"resident_mib", static_cast<double>(after.resident_bytes) / (1 << 20)},
      {"peak_mib", static_cast<double>(after.peak_bytes) / (1 << 20)},
      {"threads", after.threads},
      {"core_percent", 100 * absl::FDivDuration(after.processor - before.processor, passed)}};
}

}  // namespace cadre
