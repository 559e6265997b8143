// How much of a job's work is left when workers are killed, one after the other: the steps it is
// further at the end, beside those of the same job undisturbed. Cadre and torchrun in one run.
//
//   bazel run //bench/goodput -- [--json FILE] [--minutes 5] [--kill-every 15] [--modes a,b]
//                                [--undisturbed-minutes 1] [--step-ms 50] [--seed 1] [--kill-nodes]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/goodput/trial.h"
#include "nlohmann/json.hpp"
#include "tests/testing/process.h"

namespace cadre::bench {
namespace {

constexpr int kSaveEvery = 20;
constexpr char kProgram[] = "bench/goodput/goodput_step";
constexpr char kScript[] = "bench/goodput/goodput_step.py";

struct Options {
  double minutes = 5;
  double undisturbed_minutes = 1;
  double kill_every = 15;  // seconds
  int step_ms = 50;
  unsigned seed = 1;
  bool kill_nodes = false;
  std::string json;
  std::vector<std::string> modes;
};

// One line of the table.
struct Mode {
  std::string name;
  std::string title;
  NodeCommand command;
};

std::vector<std::string> Concat(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<std::string> Worker(const std::vector<std::string>& program, const Options& options,
                                const std::string& dir) {
  return Concat(program, {"--dir", dir, "--step-ms", absl::StrCat(options.step_ms), "--save-every",
                          absl::StrCat(kSaveEvery)});
}

// With the flags that its users give.
NodeCommand Cadre(std::vector<std::string> flags, std::vector<std::string> program,
                  const Options& options) {
  return [flags = std::move(flags), program = std::move(program), &options](
             int node, int port, const std::string& dir) {
    return Concat(
        Concat({"launcher/cadre", "run", "--nnodes", absl::StrCat(kNodes), "--nproc-per-node",
                absl::StrCat(kWorkersPerNode), "--max-restarts", "1000", "--node-name",
                absl::StrCat("node", node), "--job-name", "goodput", "--log-dir", dir + "/logs",
                "--rdzv-endpoint", absl::StrCat("127.0.0.1:", port)},
               flags),
        Concat({"--"}, Worker(program, options, dir)));
  };
}

// Of CADRE_PYTHON_ENV where that names an environment (tools/python_env), else of this machine.
std::string OfPython(const std::string& program, const std::string& otherwise) {
  const char* const environment = std::getenv("CADRE_PYTHON_ENV");
  if (environment == nullptr || *environment == '\0') return otherwise;
  return absl::StrCat(environment, "/bin/", program);
}

NodeCommand Torchrun(std::vector<std::string> flags, const Options& options) {
  return [flags = std::move(flags), &options](int, int port, const std::string& dir) {
    return Concat(
        Concat(
            {OfPython("torchrun", "torchrun"), "--nnodes", absl::StrCat(kNodes), "--nproc_per_node",
             absl::StrCat(kWorkersPerNode), "--max_restarts", "1000", "--rdzv_backend", "c10d",
             "--rdzv_id", "goodput", "--rdzv_endpoint", absl::StrCat("127.0.0.1:", port),
             // Without these two Debian's torchrun fails: it does not read their defaults.
             "-r", "1", "-t", "1"},
            flags),
        Worker({kScript}, options, dir));
  };
}

bool IsInstalled(const std::string& program) {
  const auto process = RunToEnd({{"/bin/sh", "-c", "command -v " + program}, {}, "", false});
  return process.ok() && (*process)->Wait() == 0;
}

std::string Here(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal().string();
}

std::vector<Mode> AllModes(const Options& options) {
  const std::string python = OfPython("python", "/usr/bin/python3");
  // Where a script finds the module cadre.
  const std::vector<std::string> module = {
      "--env", absl::StrCat("PYTHONPATH=", Here("python")), "--env",
      absl::StrCat("CADRE_LIBRARY=", Here("tools/library/libcadre.so.0"))};
  std::vector<Mode> modes = {
      {"in-place", "Cadre, in place", Cadre({"--in-place"}, {kProgram}, options)},
      {"in-place-alone", "Cadre, in place, no standby",
       Cadre({"--in-place", "--set", "restart.standby=false"}, {kProgram}, options)},
      {"checkpoint", "Cadre, checkpoint", Cadre({}, {kProgram}, options)},
      {"checkpoint-standby", "Cadre, checkpoint, standby",
       Cadre({"--set", "restart.standby=true"}, {kProgram}, options)},
      {"python", "Cadre, the Python script", Cadre({}, {python, kScript}, options)},
      {"python-memory", "Cadre, the script with cadre.checkpoint in each step",
       Cadre(module, {python, kScript, "--memory", "replicated"}, options)},
      {"python-partner", "Cadre, likewise, each rank's own with its partner",
       Cadre(module, {python, kScript, "--memory", "own"}, options)},
  };
  // torchrun is started for two nodes: it has none in reserve.
  if (!options.kill_nodes && IsInstalled(OfPython("torchrun", "torchrun"))) {
    modes.push_back({"torchrun", "torchrun, the same script", Torchrun({}, options)});
    modes.push_back({"torchrun-fast", "torchrun, looking each 0.1 s",
                     Torchrun({"--monitor_interval", "0.1"}, options)});
  }
  return modes;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Figures {
  int64_t steps = 0;
  double expected_steps = 0;
  double goodput = 0;
  size_t kills = 0;
  // Kills after which no step came before the next.
  size_t without_step = 0;
  double redone = 0;  // mean, steps
  int64_t most_redone = 0;
  // Medians of seconds from the kill.
  double launcher = 0, main = 0, connected = 0, resumed = 0, stepped = 0;
};

Figures Judge(const TrialResult& disturbed, double expected_steps) {
  Figures figures;
  figures.steps = disturbed.steps;
  figures.expected_steps = expected_steps;
  figures.goodput = expected_steps > 0 ? disturbed.steps / expected_steps : 0;
  figures.kills = disturbed.recoveries.size();
  std::vector<double> launcher, main, connected, resumed, stepped;
  for (const absl::Duration part : disturbed.launcher_part) {
    launcher.push_back(absl::ToDoubleSeconds(part));
  }
  for (const Recovery& recovery : disturbed.recoveries) {
    if (recovery.to_first_step == absl::InfiniteDuration()) {
      ++figures.without_step;
      continue;
    }
    figures.redone += static_cast<double>(recovery.redone);
    figures.most_redone = std::max(figures.most_redone, recovery.redone);
    main.push_back(absl::ToDoubleSeconds(recovery.to_main));
    connected.push_back(absl::ToDoubleSeconds(recovery.to_connected));
    resumed.push_back(absl::ToDoubleSeconds(recovery.to_resumed));
    stepped.push_back(absl::ToDoubleSeconds(recovery.to_first_step));
  }
  if (!stepped.empty()) figures.redone /= static_cast<double>(stepped.size());
  figures.launcher = Median(launcher);
  figures.main = Median(main);
  figures.connected = Median(connected);
  figures.resumed = Median(resumed);
  figures.stepped = Median(stepped);
  return figures;
}

void PrintHead() {
  absl::PrintF("%-30s%8s%8s%9s%7s%8s%10s%8s%11s%9s%9s\n", "", "steps", "of", "goodput", "kills",
               "redone", "launcher", "main", "connected", "resumed", "stepped");
}

void Print(const Mode& mode, const Figures& f) {
  absl::PrintF("%-30s%8d%8.0f%8.1f%%%7d%8.1f%10s%8.2f%11.2f%9.2f%9.2f\n", mode.title, f.steps,
               f.expected_steps, 100 * f.goodput, f.kills, f.redone,
               f.launcher > 0 ? absl::StrFormat("%.3f", f.launcher) : "-", f.main, f.connected,
               f.resumed, f.stepped);
  if (f.without_step > 0)
    absl::PrintF("%30d kills without a step before the next\n", f.without_step);
  std::fflush(stdout);
}

nlohmann::json ToJson(const Mode& mode, const Figures& f) {
  return {{"mode", mode.name},
          {"title", mode.title},
          {"steps", f.steps},
          {"undisturbed_steps", f.expected_steps},
          {"goodput", f.goodput},
          {"kills", f.kills},
          {"kills_without_a_step_before_the_next", f.without_step},
          {"mean_steps_redone", f.redone},
          {"most_steps_redone", f.most_redone},
          {"median_seconds_from_the_kill",
           {{"launcher", f.launcher},
            {"main", f.main},
            {"connected", f.connected},
            {"resumed", f.resumed},
            {"stepped", f.stepped}}}};
}

int Run(const Options& options) {
  nlohmann::json rows = nlohmann::json::array();
  PrintHead();
  for (const Mode& mode : AllModes(options)) {
    if (!options.modes.empty() &&
        std::find(options.modes.begin(), options.modes.end(), mode.name) == options.modes.end()) {
      continue;
    }
    TrialOptions trial;
    trial.seed = options.seed;
    trial.length = absl::Minutes(options.undisturbed_minutes);
    const absl::StatusOr<TrialResult> undisturbed = RunTrial(mode.command, trial);
    trial.length = absl::Minutes(options.minutes);
    trial.kill_every = absl::Seconds(options.kill_every);
    trial.kill_nodes = options.kill_nodes;
    const absl::StatusOr<TrialResult> disturbed =
        undisturbed.ok() ? RunTrial(mode.command, trial) : undisturbed.status();
    if (!disturbed.ok()) {
      std::fprintf(stderr, "%s: %s\n", mode.title.c_str(), disturbed.status().ToString().c_str());
      return 1;
    }
    const double expected =
        static_cast<double>(undisturbed->steps) * options.minutes / options.undisturbed_minutes;
    const Figures figures = Judge(*disturbed, expected);
    Print(mode, figures);
    rows.push_back(ToJson(mode, figures));
  }
  std::printf(
      "steps: that the job was further. of: in the same time undisturbed. redone: steps per kill, "
      "mean. Medians in s\nfrom the kill: launcher (until all of the next generation run, by its "
      "timeline), main (the last process runs),\nconnected, resumed (checkpoint looked for), "
      "stepped (the first step ended).\n");
  if (options.json.empty()) return 0;
  std::ofstream file(options.json);
  file << nlohmann::json({{"minutes", options.minutes},
                          {"undisturbed_minutes", options.undisturbed_minutes},
                          {"kill_every_seconds", options.kill_every},
                          {"step_ms", options.step_ms},
                          {"kills_nodes", options.kill_nodes},
                          {"steps_between_checkpoints", kSaveEvery},
                          {"rows", rows}})
              .dump(2)
       << "\n";
  return file.good() ? 0 : 1;
}

}  // namespace
}  // namespace cadre::bench

int main(int argc, char** argv) {
  cadre::bench::Options options;
  CLI::App app("What is left of a job's work when its workers are killed.");
  app.add_option("--json", options.json, "write the figures there too");
  app.add_option("--minutes", options.minutes)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--undisturbed-minutes", options.undisturbed_minutes,
                 "how long steps are counted without kills")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--kill-every", options.kill_every, "seconds from one kill to the next")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--step-ms", options.step_ms)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_flag("--kill-nodes", options.kill_nodes,
               "a whole node each time, for which one in reserve takes part; only Cadre's modes");
  app.add_option("--modes", options.modes,
                 "only these: in-place, in-place-alone, checkpoint, checkpoint-standby, python, "
                 "python-memory, python-partner, torchrun, torchrun-fast")
      ->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  return cadre::bench::Run(options);
}
