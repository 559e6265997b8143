#include "bench/goodput/trial.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tests/testing/process.h"

namespace cadre::bench {
namespace {

constexpr absl::Duration kFirstStepWithin = absl::Minutes(2);
constexpr absl::Duration kEndWithin = absl::Seconds(40);
constexpr int kTickMs = 5;

class Trial {
 public:
  Trial(const NodeCommand& command, const TrialOptions& options)
      : command_(command),
        options_(options),
        directory_(MakeTempDir("goodput")),
        random_(options.seed) {}
  ~Trial() {
    EndAll();
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  absl::StatusOr<TrialResult> Run();

 private:
  absl::Status Start();
  absl::Status StartNode();
  // The moment of the first step.
  absl::StatusOr<MonoTime> AwaitFirstStep();
  // Reads what the launchers say meanwhile.
  void WaitUntil(MonoTime moment);
  absl::Status KillOne();
  absl::Status KillNode();
  void KillWorker();
  // Whether this process still is a worker of this trial.
  bool IsOurs(pid_t pid) const;
  void EndAll();
  std::vector<absl::Duration> LauncherPart() const;

  const NodeCommand& command_;
  const TrialOptions options_;
  const std::string directory_;
  std::minstd_rand random_;
  const int port_ = FreePort();
  std::vector<std::unique_ptr<Process>> launchers_;  // in the order in which they were started
  int started_ = 0;
  std::vector<MonoTime> kills_;
};

// Waits until something accepts connections on the port.
void AwaitListening(int port, absl::Duration timeout) {
  const MonoTime deadline = MonoNow() + timeout;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  bool connected = false;
  while (!connected && MonoNow() < deadline) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    connected = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
    if (!connected) poll(nullptr, 0, kTickMs);
  }
}

// The process and all that come from it; parents come first.
std::vector<pid_t> Family(pid_t process) {
  std::vector<pid_t> family = {process};
  for (size_t i = 0; i < family.size(); ++i) {
    const std::string children =
        ReadFileOrEmpty(absl::StrCat("/proc/", family[i], "/task/", family[i], "/children"));
    for (const absl::string_view word : absl::StrSplit(children, ' ', absl::SkipWhitespace())) {
      pid_t child = 0;
      if (absl::SimpleAtoi(word, &child)) family.push_back(child);
    }
  }
  return family;
}

absl::Status Trial::StartNode() {
  ASSIGN_OR_RETURN(auto launcher, Process::Start({command_(started_++, port_, directory_),
                                                  {{"OMP_NUM_THREADS", "1"}},
                                                  "",
                                                  /*terminal=*/false}));
  launchers_.push_back(std::move(launcher));
  return absl::OkStatus();
}

absl::Status Trial::Start() {
  for (int node = 0; node < kNodes; ++node) {
    RETURN_IF_ERROR(StartNode());
    if (node == 0) AwaitListening(port_, kFirstStepWithin);
  }
  return absl::OkStatus();
}

void Trial::WaitUntil(MonoTime moment) {
  while (MonoNow() < moment) {
    for (const auto& launcher : launchers_) launcher->Wait(absl::ZeroDuration());
    poll(nullptr, 0, kTickMs);
  }
}

absl::StatusOr<MonoTime> Trial::AwaitFirstStep() {
  const MonoTime deadline = MonoNow() + kFirstStepWithin;
  while (MonoNow() < deadline) {
    const std::vector<FinishedStep> steps = ReadSteps(directory_);
    if (!steps.empty()) return steps.front().at;
    WaitUntil(MonoNow() + absl::Milliseconds(kTickMs));
  }
  for (const auto& launcher : launchers_) {
    std::fprintf(stderr, "%s%s", launcher->standard_output().c_str(),
                 launcher->standard_error().c_str());
  }
  return absl::UnavailableError(
      absl::StrCat("no step within ", absl::FormatDuration(kFirstStepWithin)));
}

bool Trial::IsOurs(pid_t pid) const {
  return IsAlive(pid) &&
         absl::StrContains(ReadFileOrEmpty(absl::StrCat("/proc/", pid, "/cmdline")), directory_);
}

absl::Status Trial::KillOne() {
  // Where nobody lives, the last kill is not over: this one costs nothing.
  kills_.push_back(MonoNow());
  if (options_.kill_nodes) return KillNode();
  KillWorker();
  return absl::OkStatus();
}

absl::Status Trial::KillNode() {
  // Never the first, which serves the rendezvous; the last is the one in reserve.
  const auto node = launchers_.begin() + 1;
  for (const pid_t pid : Family((*node)->pid())) kill(pid, SIGKILL);
  launchers_.erase(node);
  return StartNode();
}

void Trial::KillWorker() {
  // The process that had each rank last.
  std::map<int, pid_t> ranks;
  for (const WorkerEvent& event : ReadEvents(directory_)) ranks[event.rank] = event.pid;
  const int first = static_cast<int>(random_() % (kNodes * kWorkersPerNode));
  for (int i = 0; i < kNodes * kWorkersPerNode; ++i) {
    const auto rank = ranks.find((first + i) % (kNodes * kWorkersPerNode));
    if (rank == ranks.end() || !IsOurs(rank->second)) continue;
    kill(rank->second, SIGKILL);
    break;
  }
}

std::vector<absl::Duration> Trial::LauncherPart() const {
  std::vector<absl::Duration> parts;
  const nlohmann::json timeline =
      nlohmann::json::parse(ReadFileOrEmpty(directory_ + "/logs/goodput/timeline.json"),
                            /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!timeline.is_object() || !timeline.contains("recoveries")) return parts;
  for (const nlohmann::json& recovery : timeline["recoveries"]) {
    int64_t us = 0;
    if (absl::SimpleAtoi(recovery.value("total_us", ""), &us)) {
      parts.push_back(absl::Microseconds(us));
    }
  }
  return parts;
}

void Trial::EndAll() {
  for (const auto& launcher : launchers_) launcher->Kill(SIGTERM);
  for (const auto& launcher : launchers_) {
    if (!launcher->Wait(kEndWithin).has_value()) launcher->Kill(SIGKILL);
  }
  // Processes that a launcher left behind.
  for (const WorkerEvent& event : ReadEvents(directory_)) {
    if (IsOurs(event.pid)) kill(event.pid, SIGKILL);
  }
}

absl::StatusOr<TrialResult> Trial::Run() {
  RETURN_IF_ERROR(Start());
  ASSIGN_OR_RETURN(const MonoTime begin, AwaitFirstStep());
  if (options_.kill_nodes) RETURN_IF_ERROR(StartNode());
  const MonoTime end = begin + options_.length;
  for (MonoTime next = begin + options_.kill_every; next < end; next = next + options_.kill_every) {
    WaitUntil(next);
    RETURN_IF_ERROR(KillOne());
  }
  WaitUntil(end);
  const std::vector<FinishedStep> steps = ReadSteps(directory_);
  const std::vector<WorkerEvent> events = ReadEvents(directory_);
  EndAll();
  TrialResult result;
  result.steps = FurthestStep(steps, end) - FurthestStep(steps, begin);
  for (size_t i = 0; i < kills_.size(); ++i) {
    const MonoTime until = i + 1 < kills_.size() ? kills_[i + 1] : end;
    result.recoveries.push_back(RecoveryFrom(kills_[i], until, steps, events));
  }
  result.launcher_part = LauncherPart();
  return result;
}

}  // namespace

absl::StatusOr<TrialResult> RunTrial(const NodeCommand& command, const TrialOptions& options) {
  return Trial(command, options).Run();
}

}  // namespace cadre::bench
