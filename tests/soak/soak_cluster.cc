#include "tests/soak/soak_cluster.h"

#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "gtest/gtest.h"
#include "tests/soak/census.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

constexpr char kWorker[] = "tests/soak/soak_worker";
constexpr char kToken[] = "0123456789abcdef0123456789abcdef";
// What lies between a death and the next life.
constexpr absl::Duration kAwayFor = absl::Milliseconds(500);
constexpr absl::Duration kEndTimeout = absl::Seconds(60);

}  // namespace

const char* NameOf(Fault fault) {
  switch (fault) {
    case Fault::kWorkerKilled:
      return "worker killed";
    case Fault::kWorkerStopped:
      return "worker stopped";
    case Fault::kLauncherKilled:
      return "launcher killed";
    case Fault::kServerKilled:
      return "server killed";
    case Fault::kSupervisorKilled:
      return "supervisor killed";
    case Fault::kConnectionDropped:
      return "connection dropped";
  }
  return "";
}

Cluster::Cluster(const ClusterOptions& options) : options_(options), port_(FreePort()) {
  environment_ = {{kSoakMark, options.mark},
                  {"XDG_RUNTIME_DIR", runtime_dir()},
                  {"XDG_CACHE_HOME", options.directory + "/cache"},
                  {"XDG_STATE_HOME", options.directory + "/home"}};
}

bool Cluster::Start() {
  for (const char* name : {"run", "steps", "cache", "home"}) {
    mkdir(absl::StrCat(options_.directory, "/", name).c_str(), 0700);
  }
  const std::string token = options_.directory + "/token";
  std::ofstream(token) << kToken << "\n";
  chmod(token.c_str(), 0600);
  if (!StartServer()) return false;
  for (int node = 0; node < kNodes; ++node) {
    nodes_[node].proxy = std::make_unique<TcpProxy>(port_);
    if (!StartLauncher(node)) return false;
  }
  return true;
}

bool Cluster::StartServer() {
  server_ = StartCadre({"server", "--port", absl::StrCat(port_), "--token-file",
                        options_.directory + "/token", "--state-dir", state_dir()},
                       environment_);
  if (server_ == nullptr) return false;
  const bool serves = server_->WaitForLine("serving at").has_value();
  EXPECT_TRUE(serves) << OutputOf(*server_);
  return serves;
}

bool Cluster::StartLauncher(int node) {
  const std::string& directory = options_.directory;
  // Restarts are what is wanted here: as many as there are faults, none of them late.
  const std::vector<std::string> arguments =
      absl::StrSplit(absl::StrCat("--token-file ", directory, "/token --job-name soak --log-dir ",
                                  directory, "/logs --nproc-per-node ", kWorkersPerNode,
                                  " --max-restarts 1000000 --set restart.backoff=10ms"
                                  " --set elastic.scale_up=immediately --set timeouts.progress=2s"
                                  " --set timeouts.stop_grace=2s -- ",
                                  kWorker, " ", directory, "/steps ", directory, "/done"),
                     ' ');
  nodes_[node].launcher = StartNode(nodes_[node].proxy->port(), absl::StrCat("1:", kNodes), node,
                                    arguments, environment_);
  nodes_[node].hit = false;
  return nodes_[node].launcher != nullptr;
}

void Cluster::Poll() {
  const MonoTime now = MonoNow();
  if (server_ != nullptr && server_->Wait(absl::ZeroDuration()).has_value()) {
    server_.reset();
    server_start_at_ = now + kAwayFor;
  }
  if (server_ == nullptr && now >= server_start_at_) StartServer();
  for (int i = 0; i < kNodes; ++i) {
    Node& node = nodes_[i];
    if (node.launcher != nullptr) {
      const std::optional<int> status = node.launcher->Wait(absl::ZeroDuration());
      if (!status.has_value()) continue;
      if (!node.hit) {
        ++unasked_ends_[*status];
        std::printf("%s: launcher of node%d ended with %d: %s\n", name().c_str(), i, *status,
                    node.launcher->standard_error().c_str());
      }
      node.launcher.reset();
      node.start_at = now + kAwayFor;
    }
    if (server_ != nullptr && now >= node.start_at) StartLauncher(i);
  }
}

std::optional<Cluster::Step> Cluster::StepOf(int rank) const {
  const std::string text = ReadFileOrEmpty(absl::StrCat(options_.directory, "/steps/rank_", rank));
  Step step;
  unsigned long long generation = 0;
  long long number = 0;
  if (std::sscanf(text.c_str(), "%llu %d %lld %d", &generation, &step.world, &number, &step.pid) !=
      4) {
    return std::nullopt;
  }
  step.generation = generation;
  step.step = number;
  return step;
}

pid_t Cluster::WorkerPid(int rank) const {
  const std::optional<Step> step = StepOf(rank);
  if (!step.has_value()) return 0;
  for (const ProcessEntry& process : MarkedProcesses(options_.mark)) {
    if (process.pid == step->pid && process.role == Role::kWorker) return process.pid;
  }
  return 0;
}

pid_t Cluster::launcher_pid(int node) const {
  return nodes_[node].launcher == nullptr ? 0 : nodes_[node].launcher->pid();
}

pid_t Cluster::supervisor_pid(int node) const {
  const pid_t launcher = launcher_pid(node);
  if (launcher == 0) return 0;
  for (const ProcessEntry& process : MarkedProcesses(options_.mark)) {
    if (process.role == Role::kSupervisor && process.parent == launcher) return process.pid;
  }
  return 0;
}

std::string Cluster::Inject(Fault fault, std::mt19937& random) {
  const int rank = static_cast<int>(random() % kWorkers);
  // The first node of a cluster that is to live long keeps its launcher.
  const int node = options_.long_lived ? kNodes - 1 : static_cast<int>(random() % kNodes);
  switch (fault) {
    case Fault::kWorkerKilled:
    case Fault::kWorkerStopped: {
      const pid_t pid = WorkerPid(rank);
      if (pid == 0 || kill(pid, fault == Fault::kWorkerKilled ? SIGKILL : SIGSTOP) != 0) return "";
      return absl::StrCat(name(), ": ", NameOf(fault), ", rank ", rank);
    }
    case Fault::kConnectionDropped: {
      const int any = static_cast<int>(random() % kNodes);
      nodes_[any].proxy->Reset();
      return absl::StrCat(name(), ": ", NameOf(fault), ", node", any);
    }
    case Fault::kServerKilled:
      if (options_.long_lived || server_ == nullptr) return "";
      server_->Kill(SIGKILL);
      return absl::StrCat(name(), ": ", NameOf(fault));
    case Fault::kLauncherKilled:
    case Fault::kSupervisorKilled:
      return Kill(fault, node);
  }
  return "";
}

std::string Cluster::Kill(Fault fault, int node) {
  if (nodes_[node].launcher == nullptr) return "";
  if (fault == Fault::kLauncherKilled) {
    nodes_[node].launcher->Kill(SIGKILL);
  } else {
    const pid_t supervisor = supervisor_pid(node);
    if (supervisor == 0 || kill(supervisor, SIGKILL) != 0) return "";
  }
  nodes_[node].hit = true;
  return absl::StrCat(name(), ": ", NameOf(fault), ", node", node);
}

bool Cluster::HasMoved() {
  bool moved = true;
  uint64_t generation = 0;
  for (int rank = 0; rank < kWorkers; ++rank) {
    const std::optional<Step> step = StepOf(rank);
    if (!step.has_value() || step->world != kWorkers) return false;
    if (rank == 0) generation = step->generation;
    if (step->generation != generation) return false;
    moved = moved && generation == generation_ && step->step > last_steps_[rank];
    last_steps_[rank] = step->step;
  }
  generation_ = generation;
  return moved;
}

std::string Cluster::WorkersText() const {
  std::string text = name();
  for (int rank = 0; rank < kWorkers; ++rank) {
    absl::StrAppend(&text, rank == 0 ? ": " : "; ",
                    ReadFileOrEmpty(absl::StrCat(options_.directory, "/steps/rank_", rank)));
    while (absl::EndsWith(text, "\n")) text.pop_back();
  }
  return text;
}

std::vector<std::string> Cluster::End() {
  std::vector<std::string> wrong;
  std::ofstream(options_.directory + "/done") << "now\n";
  for (int i = 0; i < kNodes; ++i) {
    if (nodes_[i].launcher == nullptr) {
      wrong.push_back(absl::StrCat(name(), ": node", i, " has no launcher at the end"));
      continue;
    }
    const std::optional<int> status = nodes_[i].launcher->Wait(kEndTimeout);
    if (status == 0) continue;
    wrong.push_back(
        absl::StrCat(name(), ": launcher of node", i,
                     status.has_value() ? absl::StrCat(" ended with ", *status) : " does not end",
                     ": ", nodes_[i].launcher->standard_error()));
  }
  if (server_ == nullptr) {
    wrong.push_back(name() + ": there is no server at the end");
    return wrong;
  }
  server_->Kill(SIGTERM);
  const std::optional<int> status = server_->Wait(kEndTimeout);
  if (status != 0) {
    wrong.push_back(absl::StrCat(name(), ": the server ended with ", status.value_or(-1), ": ",
                                 server_->standard_error()));
  }
  return wrong;
}

}  // namespace cadre
