// All-reduces of float32 between processes of this machine: this repository's backends, Open MPI,
// PyTorch's Gloo, and the bare loop that bounds them all. One run, one table, one JSON file.
//
//   bazel run -c opt //bench/collectives -- [--json FILE] [--quick] [--no-peers] [--ranks 2]
#include <stdio.h>

#include <fstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/collectives/cadre_all_reduce.h"
#include "bench/collectives/contestants.h"
#include "bench/collectives/schedule.h"
#include "nlohmann/json.hpp"

namespace cadre {
namespace {

constexpr int kPasses = 3;
constexpr char kFolder[] = "bench/collectives/";
// Columns that others are compared with, and their place.
enum Column { kBound = 0, kInPlace = 1, kOpenMpi = 3, kTorch = 5 };

std::vector<Contestant> RunOnce(int ranks, const std::vector<Measurement>& schedule,
                                bool with_peers) {
  const std::string text = ToText(schedule);
  const auto cadre = [&](Backend backend) {
    return InChild(schedule.size(), [&] { return RunCadre(backend, ranks, schedule); });
  };
  const std::string mpi = absl::StrCat("mpirun --allow-run-as-root --oversubscribe -np ", ranks,
                                       " ", kFolder, "mpi_all_reduce ", text, " 2>/dev/null");
  const std::string torch =
      absl::StrCat("OMP_NUM_THREADS=1 /usr/bin/python3 ", kFolder, "torch_gloo_all_reduce.py ",
                   ranks, " ", text, " 2>/dev/null");
  // The bound takes turns with what it bounds.
  const size_t sizes = schedule.size();
  std::vector<double> in_place =
      InChild(2 * sizes, [&] { return RunCadre(Backend::kSharedMemory, ranks, schedule, true); });
  std::vector<double> bound;
  if (!in_place.empty()) {
    bound.assign(in_place.begin() + sizes, in_place.end());
    in_place.resize(sizes);
  }
  const auto program = [&](const std::string& command) {
    return with_peers ? RunProgram(command, schedule) : std::vector<double>();
  };
  return {
      {"bare loop", bound},
      {"cadre shared", in_place},
      {"cadre staged", cadre(Backend::kSharedMemoryStaged)},
      {"open mpi", program(mpi)},
      {"cadre sockets", cadre(Backend::kSockets)},
      {"torch gloo", program(torch)},
  };
}

// How many times as long as in place that takes.
std::string TimesInPlace(const std::vector<double>& at, Column column) {
  if (at[column] == 0 || at[kInPlace] == 0) return "-";
  return absl::StrFormat("%.2f", at[column] / at[kInPlace]);
}

void Print(int ranks, const std::vector<Measurement>& schedule,
           const std::vector<Contestant>& contestants, const std::string& load) {
  printf("\n%d ranks, microseconds per all-reduce (best median), load average before %s\n", ranks,
         load.c_str());
  printf("%10s", "");
  for (const Contestant& one : contestants) printf("%14s", one.name.c_str());
  printf("%10s%10s%10s\n", "/bound", "x mpi", "x torch");
  for (size_t i = 0; i < schedule.size(); ++i) {
    printf("%10s", MessageSizeText(schedule[i].bytes).c_str());
    std::vector<double> at;
    for (const Contestant& one : contestants) {
      // None: it was not measured, or failed.
      at.push_back(one.microseconds.empty() ? 0 : one.microseconds[i]);
      printf("%14s", at.back() == 0 ? "-" : absl::StrFormat("%.2f", at.back()).c_str());
    }
    printf("%10s%10s%10s\n", TimesInPlace(at, kBound).c_str(), TimesInPlace(at, kOpenMpi).c_str(),
           TimesInPlace(at, kTorch).c_str());
  }
  fflush(stdout);
}

int Main(int argc, char** argv) {
  std::string path;
  bool quick = false, without_peers = false;
  std::vector<int> worlds = {2, 4};
  CLI::App app("All-reduces of float32 between processes of this machine.");
  app.add_option("--json", path, "write the figures there; collectives.json if not given");
  app.add_flag("--quick", quick, "up to 1 MiB, few rounds");
  app.add_flag("--no-peers", without_peers, "only this repository and the bound");
  app.add_option("--ranks", worlds, "how many ranks; 2 and 4 if not given")
      ->check(CLI::IsMember({2, 4}));
  CLI11_PARSE(app, argc, argv);
  if (path.empty()) path = BesideCaller("collectives.json");
  std::ofstream file(path);
  if (!file) {
    fprintf(stderr, "cannot write %s: name a file with --json\n", path.c_str());
    return 1;
  }
  const std::vector<Measurement> schedule = Schedule(quick);
  const int passes = quick ? 1 : kPasses;
  nlohmann::json json = nlohmann::json::array();
  for (const int ranks : worlds) {
    const std::string load = LoadAverage();
    const std::vector<Contestant> contestants =
        BestOf(passes, [&] { return RunOnce(ranks, schedule, !without_peers); });
    Print(ranks, schedule, contestants, load);
    for (const Contestant& one : contestants) {
      for (size_t i = 0; i < one.microseconds.size(); ++i) {
        json.push_back({{"ranks", ranks},
                        {"contestant", one.name},
                        {"bytes", schedule[i].bytes},
                        {"microseconds", one.microseconds[i]},
                        {"load_average", load}});
      }
    }
  }
  file << json.dump(2) << std::endl;
  if (!file) {
    fprintf(stderr, "cannot write %s\n", path.c_str());
    return 1;
  }
  printf("\nwritten: %s\n", path.c_str());
  return 0;
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) { return cadre::Main(argc, argv); }
