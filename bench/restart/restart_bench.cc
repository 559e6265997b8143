// From the death of a worker of a PyTorch program to its successor's first all-reduce: Cadre warm,
// Cadre plain and torchrun in one run, with the PyTorch of tools/python_env.
//
//   CADRE_PYTHON_ENV=$(tools/python_env) bazel run //bench/restart -- [--kills 5] [--rounds 2]
//                                                                     [--settle 12] [--peer 1]
//                                                                     [--json FILE]
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/process.h"

namespace cadre::bench {
namespace {

constexpr char kScript[] = "bench/restart/all_reduce.py";
constexpr int kRanks = 2;
constexpr int kLookMs = 2;
constexpr absl::Duration kTimeout = absl::Minutes(2);
// Restarts that follow one another faster are put off.
constexpr absl::Duration kBetweenKills = absl::Seconds(3);

struct Options {
  int kills = 5;
  int rounds = 2;
  double settle = 12;  // seconds from the first all-reduce to the first kill
  bool peer = true;    // torchrun too
  std::string json;
};

struct Figures {
  std::vector<double> first_starts;  // seconds
  std::vector<double> restarts;
};

struct Sum {
  double at = 0;
  pid_t pid = 0;
};

// What this rank has written, whole lines only.
std::vector<Sum> SumsOf(const std::string& folder, int rank) {
  std::vector<Sum> sums;
  std::vector<std::string> lines =
      absl::StrSplit(ReadFileOrEmpty(absl::StrCat(folder, "/rank_", rank)), '\n');
  lines.pop_back();
  for (const std::string& line : lines) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ');
    Sum sum;
    if (fields.size() == 2 && absl::SimpleAtod(fields[0], &sum.at) &&
        absl::SimpleAtoi(fields[1], &sum.pid)) {
      sums.push_back(sum);
    }
  }
  return sums;
}

void Pass(Process& launcher, absl::Duration time) {
  for (const MonoTime end = MonoNow() + time; MonoNow() < end;) {
    launcher.Wait(absl::ZeroDuration());
    poll(nullptr, 0, kLookMs);
  }
}

// When all ranks had finished a sum in processes other than these; nullopt: they did not.
std::optional<double> AwaitSums(Process& launcher, const std::string& folder,
                                const std::set<pid_t>& before) {
  for (const MonoTime end = MonoNow() + kTimeout; MonoNow() < end;) {
    double last = 0;
    int ranks = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      for (const Sum& sum : SumsOf(folder, rank)) {
        if (before.count(sum.pid) != 0) continue;
        last = std::max(last, sum.at);
        ++ranks;
        break;
      }
    }
    if (ranks == kRanks) return last;
    Pass(launcher, absl::Milliseconds(kLookMs));
  }
  return std::nullopt;
}

double Now() { return static_cast<double>(MonoNow().micros()) / 1e6; }

bool Measure(std::vector<std::string> command, const Options& options, Figures& figures) {
  const std::string folder = MakeTempDir("restart");
  command.push_back(folder);
  const double begin = Now();
  auto launcher = Process::Start({command, {}, "", false});
  if (!launcher.ok()) return false;
  std::optional<double> done = AwaitSums(**launcher, folder, {});
  if (done.has_value()) figures.first_starts.push_back(*done - begin);
  Pass(**launcher, absl::Seconds(options.settle));
  for (int i = 0; i < options.kills && done.has_value(); ++i) {
    std::set<pid_t> before;
    for (int rank = 0; rank < kRanks; ++rank) {
      for (const Sum& sum : SumsOf(folder, rank)) before.insert(sum.pid);
    }
    const double killed = Now();
    kill(SumsOf(folder, kRanks - 1).back().pid, SIGKILL);
    done = AwaitSums(**launcher, folder, before);
    if (done.has_value()) figures.restarts.push_back(*done - killed);
    Pass(**launcher, kBetweenKills);
  }
  (*launcher)->Kill(SIGTERM);
  (*launcher)->Wait(kTimeout);
  if (!done.has_value()) std::fprintf(stderr, "%s", (*launcher)->standard_error().c_str());
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return done.has_value();
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("From a worker's death to the next all-reduce");
  app.add_option("--kills", options.kills);
  app.add_option("--rounds", options.rounds);
  app.add_option("--settle", options.settle);
  app.add_option("--peer", options.peer);
  app.add_option("--json", options.json);
  CLI11_PARSE(app, argc, argv);
  const char* environment = std::getenv("CADRE_PYTHON_ENV");
  if (environment == nullptr) {
    std::fprintf(stderr, "CADRE_PYTHON_ENV is not set: see tools/python_env\n");
    return 64;
  }
  const std::string bin = absl::StrCat(environment, "/bin/");
  const std::string ranks = absl::StrCat(kRanks);
  const auto cadre = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> command = {
        "launcher/cadre", "run", "--standalone", "--nproc-per-node", ranks,
        "--max-restarts", "99",  "--log-dir",    MakeTempDir("logs")};
    command.insert(command.end(), flags.begin(), flags.end());
    command.insert(command.end(), {"--", bin + "python", "-u", kScript});
    return command;
  };
  std::vector<std::pair<std::string, std::vector<std::string>>> modes = {
      {"Cadre, warm", cadre({})}, {"Cadre, plain", cadre({"--set", "restart.warm=false"})}};
  if (options.peer) {
    modes.push_back({"torchrun",
                     {bin + "torchrun", "--standalone", "--nproc-per-node", ranks, "--max-restarts",
                      "99", kScript}});
  }
  std::map<std::string, Figures> figures;
  // The first start of all reads PyTorch from the disk.
  Figures unmeasured;
  Options once;
  once.settle = once.kills = 0;
  bool good = Measure(modes.back().second, once, unmeasured);
  for (int round = 0; round < options.rounds; ++round) {
    std::reverse(modes.begin(), modes.end());
    for (const auto& [name, command] : modes) {
      good = Measure(command, options, figures[name]) && good;
    }
  }
  nlohmann::json all;
  std::printf("%-14s %12s %12s %12s %8s\n", "", "first start", "restart", "slowest", "kills");
  for (const auto& [name, of] : figures) {
    const double slowest =
        of.restarts.empty() ? 0 : *std::max_element(of.restarts.begin(), of.restarts.end());
    std::printf("%-14s %10.2f s %10.3f s %10.3f s %8zu\n", name.c_str(), Median(of.first_starts),
                Median(of.restarts), slowest, of.restarts.size());
    all[name] = {{"first_start_s", of.first_starts}, {"restart_s", of.restarts}};
  }
  if (!options.json.empty()) std::ofstream(options.json) << all.dump(2) << "\n";
  return good ? 0 : 1;
}

}  // namespace
}  // namespace cadre::bench

int main(int argc, char** argv) { return cadre::bench::Main(argc, argv); }
