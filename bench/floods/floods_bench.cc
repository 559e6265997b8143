// What floods cost the honest users of a server: Cadre's, beside Slurm's and etcd.
//
//   floods_bench [--seconds 60] [--only TEXT]... [--target Cadre|Slurm|etcd]... [--json FILE]
//                [--memory-limit MIB] [--cadre PROGRAM] [--list]
//
// Each flood has a fresh server, with an agent, a job whose lease must be renewed, and a queue. For
// a quarter of the time, 10 s at most, nothing else goes on; then the flood does. During both, jobs
// that do nothing are launched one after another, an honest caller asks on a connection that stands
// and another one on new connections.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "bench/floods/cadre_target.h"
#include "bench/floods/etcd_target.h"
#include "bench/floods/observation.h"
#include "bench/floods/slurm_target.h"
#include "bench/floods/target.h"
#include "nlohmann/json.hpp"
#include "tests/testing/http2_flood.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

constexpr char kSlurm[] = "Slurm";
constexpr absl::Duration kMostQuiet = absl::Seconds(10);
// Beyond the time of the flood, for the start and the end of a cluster.
constexpr absl::Duration kSlurmTimeout = absl::Minutes(5);

struct Asked {
  std::string self, cadre;
  int seconds = 60;
  double memory_mib = 4096;
  std::vector<std::string> only, targets;
  std::string json;
  bool list = false;
  // The one case of Slurm that this process runs, in namespaces of its own.
  std::string slurm_case;

  bool Wants(const std::string& target, const FloodCase& one) const {
    const std::string text = absl::StrCat(target, ": ", one.Text());
    const auto contained = [&](const std::string& part) { return absl::StrContains(text, part); };
    return (targets.empty() || std::count(targets.begin(), targets.end(), target) > 0) &&
           std::all_of(only.begin(), only.end(), contained);
  }
};

std::unique_ptr<Target> NewTarget(const Asked& asked, const std::string& name) {
  if (name == kSlurm) return std::make_unique<SlurmTarget>();
  if (name == "etcd") return std::make_unique<EtcdTarget>();
  return std::make_unique<CadreTarget>(asked.cadre);
}

nlohmann::json EntryOf(const std::string& target, const FloodCase& one) {
  return {{"flood", one.name},
          {"token", one.token},
          {"transport", one.transport},
          {"from", one.from},
          {"target", target}};
}

// Where memory runs out, the kernel takes the server and nothing else.
void TakeFirst(pid_t pid) { std::ofstream(absl::StrCat("/proc/", pid, "/oom_score_adj")) << 1000; }

void Flood(const Asked& asked, Target& target, const FloodCase& one, nlohmann::json* entry) {
  ObservationLimits limits;
  limits.memory_mib = asked.memory_mib;
  limits.duration = std::min(absl::Seconds(asked.seconds) / 4, kMostQuiet);
  (*entry)["quiet"] = ToJson(Observe(target, limits, [] {}));
  limits.duration = absl::Seconds(asked.seconds);
  if (!one.program.empty()) {
    ProgramFlood flood(one.program, one.programs);
    (*entry)["flooded"] = ToJson(Observe(target, limits, [&] { flood.Stop(); }));
    flood.Stop();
  } else {
    FloodOptions options = one.options;
    options.duration = limits.duration;
    Http2Flood flood(options);
    (*entry)["flooded"] = ToJson(Observe(target, limits, [&] { flood.Stop(); }));
    (*entry)["sent"] = ToJson(flood.Stop());
  }
  (*entry)["lost"] = target.Lost();
}

// The case with this place among the target's.
nlohmann::json Run(const Asked& asked, const std::string& name, size_t place) {
  const std::unique_ptr<Target> target = NewTarget(asked, name);
  nlohmann::json entry = EntryOf(name, target->Cases()[place]);
  if (const absl::Status started = target->Start(); !started.ok()) {
    entry["error"] = absl::StrCat(name, " does not start: ", started.message());
    return entry;
  }
  TakeFirst(target->pid());
  Flood(asked, *target, target->Cases()[place], &entry);
  return entry;
}

// In a process of its own, whose namespaces end with the cluster.
nlohmann::json RunSlurm(const Asked& asked, const FloodCase& one) {
  nlohmann::json entry = EntryOf(kSlurm, one);
  const std::string directory = MakeTempDir("floods");
  const std::string file = directory + "/figures.json";
  const auto run =
      RunToEnd({{asked.self, "--slurm-case", one.Text(), "--seconds", absl::StrCat(asked.seconds),
                 "--memory-limit", absl::StrCat(asked.memory_mib), "--json", file},
                {},
                "",
                false},
               absl::Seconds(asked.seconds) + kSlurmTimeout);
  const nlohmann::json figures =
      nlohmann::json::parse(ReadFileOrEmpty(file), nullptr, /*allow_exceptions=*/false);
  if (!figures.is_discarded()) {
    entry = figures;
  } else {
    entry["error"] = run.ok() ? (*run)->standard_error() : std::string(run.status().message());
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  return entry;
}

int RunSlurmCase(const Asked& asked) {
  const std::vector<FloodCase> cases = SlurmTarget().Cases();
  for (size_t i = 0; i < cases.size(); ++i) {
    if (cases[i].Text() != asked.slurm_case) continue;
    std::ofstream(asked.json) << Run(asked, kSlurm, i).dump();
    return 0;
  }
  return 64;
}

void RaiseOpenFiles() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int RunAll(const Asked& asked) {
  nlohmann::json entries = nlohmann::json::array();
  if (!asked.list) PrintHead();
  for (const char* name : {"Cadre", "etcd", kSlurm}) {
    const std::vector<FloodCase> cases = NewTarget(asked, name)->Cases();
    for (size_t i = 0; i < cases.size(); ++i) {
      if (!asked.Wants(name, cases[i])) continue;
      if (asked.list) {
        std::cout << name << ": " << cases[i].Text() << "\n";
        continue;
      }
      entries.push_back(name == std::string(kSlurm) ? RunSlurm(asked, cases[i])
                                                    : Run(asked, name, i));
      PrintLine(entries.back());
      fflush(stdout);
      // After each, because all of them take hours.
      if (!asked.json.empty()) std::ofstream(asked.json) << entries.dump(2) << "\n";
    }
  }
  if (!asked.list) PrintTable(entries);
  return 0;
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  cadre::Asked asked;
  asked.self = argv[0];
  asked.cadre = std::filesystem::absolute(std::filesystem::path(argv[0]).parent_path() /
                                          "../../launcher/cadre")
                    .lexically_normal();
  CLI::App app{"What floods cost the honest users of a server."};
  app.add_option("--seconds", asked.seconds, "Of each flood.")->check(CLI::Range(1, 3600));
  app.add_option("--only", asked.only, "Floods whose line in --list contains this; all of them.");
  app.add_option("--target", asked.targets, "Cadre, etcd, Slurm; any of them.");
  app.add_option("--json", asked.json, "Where to write the figures.");
  app.add_option("--memory-limit", asked.memory_mib, "A flood ends where the server has more MiB.");
  app.add_option("--cadre", asked.cadre, "Another build's program, to compare with.")
      ->check(CLI::ExistingFile);
  app.add_flag("--list", asked.list, "Print the floods, and run none.");
  app.add_option("--slurm-case", asked.slurm_case)->group("");
  CLI11_PARSE(app, argc, argv);
  if (asked.slurm_case.empty() && access(asked.cadre.c_str(), X_OK) != 0) {
    std::cerr << "floods_bench: there is no program " << asked.cadre << "; name one with --cadre\n";
    return 64;
  }
  signal(SIGPIPE, SIG_IGN);
  cadre::RaiseOpenFiles();
  if (asked.slurm_case.empty()) return cadre::RunAll(asked);
  return cadre::RunAmongThemselves([&] { return cadre::RunSlurmCase(asked); });
}
