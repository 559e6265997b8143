#include "tests/simulation/run.h"

#include <atomic>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cadre::simulation {
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
      // All before the first broken one are run, so that it is the first, however threads go.
      if (seed >= end || seed > broken) break;
      if (seed % kToldEvery == 0) options.progress(seed);
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
    report.story = TellHistory(broken, options.mutation);
  }
  return report;
}

std::string TellHistory(uint64_t seed, Mutation mutation) {
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
