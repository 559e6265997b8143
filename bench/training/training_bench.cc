// A training step with each way to average gradients: this repository's, c10d's reducer in C++,
// PyTorch's DistributedDataParallel. One run, one table, one JSON file. The same torch for all:
// Debian's, or PyPI's, for which c10d's reducer is left out.
//
//   bazel run [--config=torch_pypi] //bench/training -- [--json FILE] [--quick]
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "third_party/torch_python.h"

namespace cadre::bench {
namespace {

constexpr char kOwn[] = "OMP_NUM_THREADS=1 bench/training/training_step ";
const std::string kPython =
    absl::StrCat("OMP_NUM_THREADS=1 ", kTorchPython, " bench/training/ddp_step.py ");

struct Contestant {
  const char* title;
  std::string program;
  std::string engine;
  // Row of the same program without exchange, from which the exposed communication is computed.
  size_t baseline;
};

// "zeroes" and "drops": what a contestant does with the last step's gradients before the next.
const std::vector<Contestant> kAll = {
    {"C++, no exchange", kOwn, "local", 0},
    {"Python, no exchange", kPython, "local", 1},
    {"cadre, shared memory", kOwn, "cadre", 0},
    {"cadre, sockets", kOwn, "cadre-sockets", 0},
    {"c10d in C++, zeroes", kOwn, "c10d", 0},
    {"c10d in C++, drops", kOwn, "c10d-drop", 0},
    {"Python DDP, zeroes", kPython, "ddp", 1},
    {"Python DDP, drops", kPython, "ddp-drop", 1},
    {"DDP views, zeroes", kPython, "ddp-views", 1},
    {"DDP views, drops", kPython, "ddp-views-drop", 1},
};
constexpr size_t kOurs = 2;

std::vector<Contestant> WithThisTorch() {
  std::vector<Contestant> contestants;
  for (const Contestant& one : kAll) {
    if (kTorchIsDebians || !absl::StartsWith(one.engine, "c10d")) contestants.push_back(one);
  }
  return contestants;
}
const std::vector<Contestant> kContestants = WithThisTorch();

struct Milliseconds {
  // Of a step; 0: it failed or is not installed.
  double step = 0;
  // Of one processor.
  double processor = 0;
};

Milliseconds RunOnce(const std::string& command) {
  FILE* const output = popen(command.c_str(), "r");
  if (output == nullptr) return {};
  Milliseconds result;
  char line[256];
  while (fgets(line, sizeof(line), output) != nullptr) {
    Milliseconds read;
    if (sscanf(line, "%lf %lf", &read.step, &read.processor) == 2) result = read;
  }
  return pclose(output) == 0 ? result : Milliseconds();
}

// Round by round, so that a disturbance hits all; the best round of each counts. 0: it failed in
// all.
std::vector<Milliseconds> Best(const std::string& model, int ranks, int steps, int rounds) {
  std::vector<Milliseconds> best(kContestants.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < kContestants.size(); ++i) {
      const Milliseconds once =
          RunOnce(absl::StrCat(kContestants[i].program, model, " ", kContestants[i].engine, " ",
                               ranks, " ", steps, " 2>/dev/null"));
      if (once.step == 0) {
        fprintf(stderr, "%s failed with %s\n", kContestants[i].title, model.c_str());
        continue;
      }
      if (best[i].step == 0 || once.step < best[i].step) best[i].step = once.step;
      if (best[i].processor == 0 || once.processor < best[i].processor) {
        best[i].processor = once.processor;
      }
    }
  }
  return best;
}

std::string Factor(double ours, double theirs) {
  return ours > 0 && theirs > 0 ? absl::StrFormat("%.2f", ours / theirs) : "-";
}

nlohmann::json Measure(const std::string& model, int ranks, int steps, int rounds) {
  const std::vector<Milliseconds> best = Best(model, ranks, steps, rounds);
  printf("\n%s, %d ranks, one thread each: milliseconds per step\n", model.c_str(), ranks);
  printf("%24s%10s%10s%11s%10s%10s\n", "", "step", "exposed", "processor", "cadre/it", "of cpu");
  nlohmann::json rows = nlohmann::json::array();
  for (size_t i = 0; i < kContestants.size(); ++i) {
    const double alone = best[kContestants[i].baseline].step;
    if (best[i].step == 0 || alone == 0) {
      printf("%24s%10s\n", kContestants[i].title, "failed");
      continue;
    }
    const double exposed = best[i].step - alone;
    printf("%24s%10.1f%10.1f%11.1f%10s%10s\n", kContestants[i].title, best[i].step, exposed,
           best[i].processor, Factor(best[kOurs].step, best[i].step).c_str(),
           Factor(best[kOurs].processor, best[i].processor).c_str());
    rows.push_back({{"name", kContestants[i].title},
                    {"step_ms", best[i].step},
                    {"exposed_communication_ms", exposed},
                    {"processor_ms", best[i].processor}});
  }
  fflush(stdout);
  return {{"model", model}, {"ranks", ranks}, {"rows", rows}};
}

int Run(const std::string& json_file, bool quick) {
  std::ifstream load("/proc/loadavg");
  std::string average;
  load >> average;
  printf("load average %s, the torch of %s\n", average.c_str(), kTorchPython);
  std::ofstream file;
  if (!json_file.empty()) file.open(json_file);
  if (!file) {
    fprintf(stderr, "cannot write %s: name a file with --json\n", json_file.c_str());
    return 1;
  }
  nlohmann::json results = nlohmann::json::array();
  const int rounds = quick ? 1 : 3;
  results.push_back(Measure("mlp", 2, quick ? 10 : 20, rounds));
  results.push_back(Measure("mnist", 2, quick ? 20 : 60, rounds));
  results.push_back(Measure("resnet50", 2, quick ? 4 : 8, rounds));
  if (json_file.empty()) return 0;
  const nlohmann::json json = {
      {"load_average", average}, {"torch_of", kTorchPython}, {"results", results}};
  file << json.dump(2) << std::endl;
  if (file) return 0;
  fprintf(stderr, "cannot write %s\n", json_file.c_str());
  return 1;
}

}  // namespace
}  // namespace cadre::bench

int main(int argc, char** argv) {
  std::string json_file;
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json_file = argv[++i];
    } else {
      fprintf(stderr, "usage: training_bench [--json FILE] [--quick]\n");
      return 64;
    }
  }
  return cadre::bench::Run(json_file, quick);
}
