// How long launching and recovering take, beside torchrun and mpirun, in one run on one machine.
//
//   launch_bench [--runs 20] [--peer-runs 2] [--json FILE]
//
// Four questions: how long does a job of two empty workers take; how long from the second node's
// start until all of 2 x 2 workers run; from the kill of a worker until all of the next generation
// run; from the kill of a whole node of an elastic job until the survivors run again. Where nodes
// meet, Cadre does it twice: in clear text, and with a token that makes the server speak TLS.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/token.h"
#include "nlohmann/json.hpp"
#include "tests/testing/process.h"

namespace cadre {
namespace {

constexpr absl::Duration kCadreTimeout = absl::Seconds(20);
constexpr absl::Duration kPeerTimeout = absl::Seconds(40);

struct Programs {
  std::string cadre;
  std::string probe;
  std::string token_file;
};

// Milliseconds of each run; a run that never got there is left out.
using Samples = std::vector<double>;

double Median(Samples samples) {
  if (samples.empty()) return -1;
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

double MillisSince(MonoTime start) { return absl::ToDoubleMilliseconds(MonoNow() - start); }

// The number after `name=` in a probe's line, or -1.
int64_t Field(const std::string& line, const std::string& name) {
  for (absl::string_view word : absl::StrSplit(line, ' ')) {
    int64_t value = -1;
    if (absl::StartsWith(word, name + "=") &&
        absl::SimpleAtoi(word.substr(name.size() + 1), &value)) {
      return value;
    }
  }
  return -1;
}

MonoTime LatestStart(const std::vector<std::string>& lines) {
  int64_t latest = 0;
  for (const std::string& line : lines) latest = std::max(latest, Field(line, "at_ns"));
  return MonoTime::FromMicros(latest / 1000);
}

// Waits until something accepts connections on the port.
bool WaitListening(int port, absl::Duration timeout) {
  const MonoTime deadline = MonoNow() + timeout;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  while (MonoNow() < deadline) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool connected = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
    if (connected) return true;
    poll(nullptr, 0, 2);
  }
  return false;
}

// How one launcher is called on one node of several.
using NodeCommand =
    std::function<std::vector<std::string>(const std::string& nodes, int node, int port)>;

struct Launcher {
  std::string name;
  NodeCommand node_command;
  absl::Duration timeout;
};

// With `tls` nodes show a random token, from which the server's key comes.
Launcher Cadre(const Programs& programs, bool tls) {
  const std::vector<std::string> security =
      tls ? std::vector<std::string>{"--token-file", programs.token_file}
          : std::vector<std::string>{};
  return {tls ? "cadre_tls" : "cadre",
          [programs, security](const std::string& nodes, int node, int port) {
            std::vector<std::string> argv = {programs.cadre,
                                             "run",
                                             "--nnodes",
                                             nodes,
                                             "--nproc-per-node",
                                             "2",
                                             "--max-restarts",
                                             "3",
                                             "--node-name",
                                             absl::StrCat("node", node),
                                             "--set",
                                             "rendezvous.settle=1s",
                                             "--rdzv-endpoint",
                                             absl::StrCat("127.0.0.1:", port)};
            argv.insert(argv.end(), security.begin(), security.end());
            argv.insert(argv.end(), {"--", programs.probe});
            return argv;
          },
          kCadreTimeout};
}

Launcher Torchrun(const Programs& programs) {
  return {"torchrun",
          [programs](const std::string& nodes, int, int port) {
            return std::vector<std::string>{"torchrun",
                                            "--nnodes",
                                            nodes,
                                            "--nproc_per_node",
                                            "2",
                                            "--max_restarts",
                                            "3",
                                            "--rdzv_backend",
                                            "c10d",
                                            "--rdzv_id",
                                            "bench",
                                            "--rdzv_endpoint",
                                            absl::StrCat("127.0.0.1:", port),
                                            "--rdzv_conf",
                                            "last_call_timeout=1",
                                            "-r",
                                            "1",
                                            "-t",
                                            "1",
                                            "--no_python",
                                            programs.probe};
          },
          kPeerTimeout};
}

std::unique_ptr<Process> MustStart(const std::vector<std::string>& argv) {
  auto process = Process::Start({argv, {{"OMP_NUM_THREADS", "1"}}, "", false});
  if (!process.ok()) {
    std::cerr << process.status() << "\n";
    exit(1);
  }
  return *std::move(process);
}

// Starts nodes 0 to count-1; the first one is listening before the others start. Gives the time at
// which the last was started.
MonoTime StartNodes(const Launcher& launcher, const std::string& nodes, int count,
                    std::vector<std::unique_ptr<Process>>& processes) {
  const int port = FreePort();
  MonoTime last;
  for (int node = 0; node < count; ++node) {
    last = MonoNow();
    processes.push_back(MustStart(launcher.node_command(nodes, node, port)));
    if (node == 0) WaitListening(port, launcher.timeout);
  }
  return last;
}

// Two probe lines of each launcher, by rank; empty when they did not come in time.
std::vector<std::string> ProbeLines(const std::vector<std::unique_ptr<Process>>& processes,
                                    absl::Duration timeout) {
  std::vector<std::string> lines;
  for (const auto& process : processes) {
    std::vector<std::string> found = process->WaitForLines("probe rank=", 2, timeout);
    if (found.size() < 2) return {};
    lines.insert(lines.end(), found.begin(), found.end());
  }
  return lines;
}

// Ends the launchers politely, and the workers that a killed launcher left behind.
void EndAll(std::vector<std::unique_ptr<Process>>& processes,
            const std::vector<std::string>& lines) {
  for (const auto& process : processes) process->Kill(SIGTERM);
  for (const auto& process : processes) process->Wait(kPeerTimeout);
  for (const std::string& line : lines) {
    const pid_t pid = static_cast<pid_t>(Field(line, "pid"));
    if (absl::StrContains(ReadFileOrEmpty(absl::StrCat("/proc/", pid, "/comm")), "probe")) {
      kill(pid, SIGKILL);
    }
  }
}

std::optional<double> JoinMillis(const Launcher& launcher) {
  std::vector<std::unique_ptr<Process>> processes;
  const MonoTime started = StartNodes(launcher, "2", 2, processes);
  const std::vector<std::string> lines = ProbeLines(processes, launcher.timeout);
  EndAll(processes, lines);
  if (lines.empty()) return std::nullopt;
  return absl::ToDoubleMilliseconds(LatestStart(lines) - started);
}

std::optional<double> WorkerKillMillis(const Launcher& launcher) {
  std::vector<std::unique_ptr<Process>> processes;
  StartNodes(launcher, "2", 2, processes);
  const std::vector<std::string> first = ProbeLines(processes, launcher.timeout);
  if (first.empty()) return std::nullopt;
  const MonoTime killed = MonoNow();
  kill(static_cast<pid_t>(Field(first.back(), "pid")), SIGKILL);
  const std::vector<std::string> second = ProbeLines(processes, launcher.timeout);
  EndAll(processes, first);
  if (second.empty()) return std::nullopt;
  return absl::ToDoubleMilliseconds(LatestStart(second) - killed);
}

std::optional<double> NodeKillMillis(const Launcher& launcher) {
  std::vector<std::unique_ptr<Process>> processes;
  StartNodes(launcher, "2:3", 3, processes);
  const std::vector<std::string> first = ProbeLines(processes, launcher.timeout);
  if (first.empty()) return std::nullopt;
  // The last one: the first holds the rendezvous of both launchers.
  const MonoTime killed = MonoNow();
  processes.back()->Kill(SIGKILL);
  processes.pop_back();
  const std::vector<std::string> second = ProbeLines(processes, launcher.timeout);
  EndAll(processes, first);
  if (second.empty()) return std::nullopt;
  return absl::ToDoubleMilliseconds(LatestStart(second) - killed);
}

double RunMillis(const std::vector<std::string>& argv) {
  const MonoTime start = MonoNow();
  std::unique_ptr<Process> process = MustStart(argv);
  const std::optional<int> status = process->Wait(kPeerTimeout);
  if (status != 0) {
    std::cerr << argv[0] << " ended with " << status.value_or(-1) << "\n"
              << process->standard_error();
    exit(1);
  }
  return MillisSince(start);
}

bool IsInstalled(const std::string& program) {
  auto process = RunToEnd({{"/bin/sh", "-c", "command -v " + program}, {}, "", false});
  return process.ok() && (*process)->Wait() == 0;
}

struct Row {
  std::string question;
  std::map<std::string, Samples> by_launcher;
};

Row EmptyJob(const Programs& programs, int runs, int peer_runs) {
  Row row{"two empty workers on one node, start to end", {}};
  const std::vector<std::string> cadre = {programs.cadre,     "run", "--standalone",
                                          "--nproc-per-node", "2",   "/bin/true"};
  const std::vector<std::string> mpirun = {
      "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", "/bin/true"};
  const std::vector<std::string> torchrun = {
      "torchrun", "--standalone", "--nnodes", "1",           "--nproc_per_node", "2", "-r",
      "1",        "-t",           "1",        "--no_python", "/bin/true"};
  const bool has_mpirun = IsInstalled("mpirun"), has_torchrun = IsInstalled("torchrun");
  for (int i = 0; i < runs; ++i) {  // alternating, so that both see the same machine
    row.by_launcher["cadre"].push_back(RunMillis(cadre));
    if (has_mpirun) row.by_launcher["mpirun"].push_back(RunMillis(mpirun));
    if (has_torchrun && i < peer_runs) row.by_launcher["torchrun"].push_back(RunMillis(torchrun));
  }
  return row;
}

Row Ask(const std::string& question, const Programs& programs, int runs, int peer_runs,
        std::optional<double> (*measure)(const Launcher&)) {
  Row row{question, {}};
  for (int i = 0; i < runs; ++i) {
    for (const bool tls : {false, true}) {
      const Launcher cadre = Cadre(programs, tls);
      if (auto ms = measure(cadre)) row.by_launcher[cadre.name].push_back(*ms);
    }
  }
  if (peer_runs == 0 || !IsInstalled("torchrun")) return row;
  row.by_launcher["torchrun"];
  for (int i = 0; i < peer_runs; ++i) {
    if (auto ms = measure(Torchrun(programs))) row.by_launcher["torchrun"].push_back(*ms);
  }
  return row;
}

void Print(const std::vector<Row>& rows) {
  absl::PrintF("%-58s %12s %12s %12s %12s %8s\n", "median, ms", "cadre", "cadre_tls", "mpirun",
               "torchrun", "ratio");
  for (const Row& row : rows) {
    absl::PrintF("%-58s", row.question);
    double best_peer = -1;
    for (const char* name : {"cadre", "cadre_tls", "mpirun", "torchrun"}) {
      const auto found = row.by_launcher.find(name);
      if (found == row.by_launcher.end()) {
        absl::PrintF(" %12s", "-");
      } else if (found->second.empty()) {
        absl::PrintF(" %12s", "never");
      } else {
        const double median = Median(found->second);
        absl::PrintF(" %12.1f", median);
        const bool peer = !absl::StartsWith(name, "cadre");
        if (peer && (best_peer < 0 || median < best_peer)) best_peer = median;
      }
    }
    const auto cadre = row.by_launcher.find("cadre");
    if (best_peer > 0 && cadre != row.by_launcher.end() && !cadre->second.empty()) {
      absl::PrintF(" %8.3f", Median(cadre->second) / best_peer);
    }
    absl::PrintF("\n");
  }
  absl::PrintF("ratio: Cadre's median to the best peer's. never: not within %s.\n",
               absl::FormatDuration(kPeerTimeout));
}

void WriteJson(const std::vector<Row>& rows, const std::string& path) {
  nlohmann::json json = nlohmann::json::array();
  for (const Row& row : rows) {
    nlohmann::json entry = {{"question", row.question}};
    for (const auto& [name, samples] : row.by_launcher) {
      entry["ms"][name] = {{"median", Median(samples)}, {"samples", samples}};
    }
    json.push_back(entry);
  }
  std::ofstream(path) << json.dump(2) << "\n";
}

std::string Beside(const char* self, const std::string& path) {
  const std::string directory = std::string(self).substr(0, std::string(self).rfind('/'));
  return absl::StrCat(directory, "/../../", path);
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  int runs = 20, peer_runs = 2;
  std::string json;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    bool good = true;
    if (flag == "--runs") {
      good = absl::SimpleAtoi(argv[i + 1], &runs) && runs > 0;
    } else if (flag == "--peer-runs") {
      good = absl::SimpleAtoi(argv[i + 1], &peer_runs) && peer_runs >= 0;
    } else if (flag == "--json") {
      json = argv[i + 1];
    } else {
      good = false;
    }
    if (!good) {
      fprintf(stderr, "launch_bench: bad option %s %s; [--runs N] [--peer-runs N] [--json FILE]\n",
              argv[i], argv[i + 1]);
      return 64;
    }
  }
  const std::string directory = cadre::MakeTempDir("launch");
  const std::string token_file = directory + "/token";
  if (const absl::Status made = cadre::WriteTokenFile(token_file, cadre::RandomToken());
      !made.ok()) {
    std::cerr << made << "\n";
    return 1;
  }
  const cadre::Programs programs = {cadre::Beside(argv[0], "launcher/cadre"),
                                    cadre::Beside(argv[0], "tests/testing/probe"), token_file};
  std::vector<cadre::Row> rows;
  rows.push_back(cadre::EmptyJob(programs, runs, peer_runs));
  rows.push_back(cadre::Ask("2 nodes x 2 workers: second launcher's start to all running", programs,
                            runs, peer_runs, cadre::JoinMillis));
  rows.push_back(cadre::Ask("kill -9 of a worker to all of the next generation running", programs,
                            runs, peer_runs, cadre::WorkerKillMillis));
  rows.push_back(cadre::Ask("kill -9 of 1 of 3 launchers (2:3) to the survivors running", programs,
                            runs, peer_runs, cadre::NodeKillMillis));
  std::filesystem::remove_all(directory);
  cadre::Print(rows);
  if (!json.empty()) cadre::WriteJson(rows, json);
  return 0;
}
