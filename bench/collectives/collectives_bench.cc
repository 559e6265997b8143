// All-reduces of float32 between processes of this machine: this repository's backends, Open MPI,
// PyTorch's Gloo, and the bare loop that bounds them all. One run, one table, one JSON file.
//
//   bazel run -c opt //bench/collectives -- [--json FILE] [--quick] [--no-peers] [--ranks 2]
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/collectives/cadre_all_reduce.h"
#include "bench/collectives/schedule.h"
#include "nlohmann/json.hpp"

namespace cadre {
namespace {

constexpr int kPasses = 3;
constexpr char kFolder[] = "bench/collectives/";
// Columns that others are compared with, and their place.
enum Column { kBound = 0, kInPlace = 1, kOpenMpi = 3, kTorch = 5 };

// Each contestant in a process of its own: what it starts, threads above all, ends with it.
template <typename Run>
std::vector<double> InChild(size_t measurements, const Run& run) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) perror("fork");
  if (child == 0) {
    const std::vector<double> results = run();
    const ssize_t bytes = static_cast<ssize_t>(results.size() * sizeof(double));
    _exit(write(ends[1], results.data(), bytes) == bytes ? 0 : 1);
  }
  close(ends[1]);
  std::vector<double> results(measurements);
  const ssize_t wanted = static_cast<ssize_t>(measurements * sizeof(double));
  const bool complete = read(ends[0], results.data(), wanted) == wanted;
  close(ends[0]);
  if (child > 0) waitpid(child, nullptr, 0);
  if (!complete) results.clear();
  return results;
}

// A program's output of "BYTES MICROSECONDS" lines.
std::vector<double> RunProgram(const std::string& command,
                               const std::vector<Measurement>& schedule) {
  FILE* const output = popen(command.c_str(), "r");
  if (output == nullptr) return {};
  std::map<size_t, double> results;
  char line[256];
  while (fgets(line, sizeof(line), output) != nullptr) {
    size_t bytes = 0;
    double microseconds = 0;
    if (sscanf(line, "%zu %lf", &bytes, &microseconds) == 2) results[bytes] = microseconds;
  }
  if (pclose(output) != 0) return {};
  std::vector<double> ordered;
  for (const Measurement& one : schedule) {
    const auto found = results.find(one.bytes);
    if (found == results.end()) return {};
    ordered.push_back(found->second);
  }
  return ordered;
}

std::string SizeText(size_t bytes) {
  return bytes < (1 << 20) ? absl::StrCat(bytes >> 10, " KiB") : absl::StrCat(bytes >> 20, " MiB");
}

struct Contestant {
  std::string name;
  std::vector<double> microseconds;
};

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
    std::vector<double> results;
    if (with_peers) results = RunProgram(command, schedule);
    if (with_peers && results.empty()) fprintf(stderr, "failed: %s\n", command.c_str());
    return results;
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

// Pass by pass, so that a disturbance hits all; the best pass of each counts.
std::vector<Contestant> Run(int ranks, const std::vector<Measurement>& schedule, bool with_peers,
                            int passes) {
  std::vector<Contestant> best = RunOnce(ranks, schedule, with_peers);
  for (int pass = 1; pass < passes; ++pass) {
    const std::vector<Contestant> again = RunOnce(ranks, schedule, with_peers);
    for (size_t i = 0; i < best.size(); ++i) {
      if (best[i].microseconds.empty()) best[i] = again[i];
      for (size_t k = 0; k < again[i].microseconds.size(); ++k) {
        best[i].microseconds[k] = std::min(best[i].microseconds[k], again[i].microseconds[k]);
      }
    }
  }
  return best;
}

std::string LoadAverage() {
  std::ifstream file("/proc/loadavg");
  std::string one;
  file >> one;
  return one;
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
    printf("%10s", SizeText(schedule[i].bytes).c_str());
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
  if (path.empty()) {
    const char* const folder = getenv("BUILD_WORKING_DIRECTORY");
    path = absl::StrCat(folder == nullptr ? "." : folder, "/collectives.json");
  }
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
    const std::vector<Contestant> contestants = Run(ranks, schedule, !without_peers, passes);
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
