// Simulated histories from the command line:
//
//   bazel run //tests/simulation -- --histories=1000000 [--first_seed=N] [--threads=N]
//   bazel run //tests/simulation -- --seed=N [--mutation=skip_fence]      one, with its events
#include <cstdio>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/exit_codes.h"
#include "tests/simulation/history.h"

namespace cadre::simulation {
namespace {

constexpr int kExitUsage = 64;

struct Flags {
  RunOptions run;
  std::optional<uint64_t> seed;
};

bool ParseFlag(absl::string_view argument, Flags* flags) {
  uint64_t seed = 0;
  if (absl::ConsumePrefix(&argument, "--histories=")) {
    return absl::SimpleAtoi(argument, &flags->run.histories);
  }
  if (absl::ConsumePrefix(&argument, "--first_seed=")) {
    return absl::SimpleAtoi(argument, &flags->run.first_seed);
  }
  if (absl::ConsumePrefix(&argument, "--threads=")) {
    return absl::SimpleAtoi(argument, &flags->run.threads) && flags->run.threads > 0;
  }
  if (absl::ConsumePrefix(&argument, "--seed=")) {
    if (!absl::SimpleAtoi(argument, &seed)) return false;
    flags->seed = seed;
    return true;
  }
  if (!absl::ConsumePrefix(&argument, "--mutation=")) return false;
  for (const Mutation mutation : kMutations) {
    if (argument != NameOf(mutation)) continue;
    flags->run.mutation = mutation;
    return true;
  }
  return false;
}

void Print(const RunReport& report, absl::Duration took) {
  const Tally& tally = report.tally;
  std::string outcomes;
  for (const auto& [outcome, count] : tally.outcomes) {
    absl::StrAppend(&outcomes, " ", v1::JobPhase_Name(outcome), " ", count);
  }
  std::printf(
      "%llu histories, %llu events, %.0f h of virtual time in %.1f s\n"
      "jobs:%s\ngenerations %llu, restarts %llu, of survivors %llu, nodes lost %llu, "
      "server starts %llu, store answers %llu, adoptions %llu\n",
      static_cast<unsigned long long>(report.histories),
      static_cast<unsigned long long>(report.events), absl::ToDoubleHours(report.virtual_time),
      absl::ToDoubleSeconds(took), outcomes.c_str(),
      static_cast<unsigned long long>(tally.generations),
      static_cast<unsigned long long>(tally.restarts),
      static_cast<unsigned long long>(tally.degraded_rounds),
      static_cast<unsigned long long>(tally.nodes_lost),
      static_cast<unsigned long long>(tally.server_starts),
      static_cast<unsigned long long>(tally.store_answers),
      static_cast<unsigned long long>(tally.adoptions));
}

int Main(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    if (ParseFlag(argv[i], &flags)) continue;
    std::fprintf(stderr,
                 "simulation: cannot use %s; known are --histories=N, --first_seed=N, "
                 "--threads=N, --seed=N, --mutation=NAME\n",
                 argv[i]);
    return kExitUsage;
  }
  if (flags.seed.has_value()) {
    std::fputs(HistoryText(*flags.seed, flags.run.mutation).c_str(), stdout);
    return 0;
  }
  const absl::Time start = absl::Now();
  flags.run.progress = [start](uint64_t seed) {
    std::fprintf(stderr, "history %llu after %.0f s\n", static_cast<unsigned long long>(seed),
                 absl::ToDoubleSeconds(absl::Now() - start));
  };
  const RunReport report = RunMany(flags.run);
  Print(report, absl::Now() - start);
  if (!report.broken_seed.has_value()) return 0;
  std::fputs(report.story.c_str(), stdout);
  return 1;
}

}  // namespace
}  // namespace cadre::simulation

int main(int argc, char** argv) { return cadre::simulation::Main(argc, argv); }
