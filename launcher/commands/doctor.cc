// cadre doctor: looks at this machine and says what to fix.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/client.h"
#include "agent/supervisor/processes/containable.h"
#include "agent/workers/cpus.h"
#include "agent/workers/gpus.h"
#include "agent/workers/python/warm_trial.h"
#include "base/exit_codes.h"
#include "base/user_directory.h"
#include "launcher/commands/commands.h"
#include "launcher/display/table.h"
#include "launcher/environment/python.h"
#include "nlohmann/json.hpp"

namespace cadre::launcher {
namespace {

constexpr rlim_t kWantedFiles = 4096;
constexpr int kSupervisorMillis = 2000;

struct Finding {
  std::string what;
  // "ok", "note" (works, but less well) or "fix".
  std::string verdict;
  std::string text;
};

// The supervisor's first words; empty when there are none in time.
std::optional<supervisor::ReadyFrame> FirstWords(supervisor::Client& supervisor) {
  pollfd readable = {supervisor.fd(), POLLIN, 0};
  if (poll(&readable, 1, kSupervisorMillis) != 1) return std::nullopt;
  const absl::StatusOr<std::vector<supervisor::Frame>> frames = supervisor.Read();
  if (!frames.ok() || frames->empty()) return std::nullopt;
  const auto* ready = std::get_if<supervisor::ReadyFrame>(&frames->front());
  return ready == nullptr ? std::nullopt : std::optional<supervisor::ReadyFrame>(*ready);
}

std::vector<Finding> Supervisor() {
  const auto supervisor = supervisor::Client::Start();
  if (!supervisor.ok()) return {{"supervisor", "fix", std::string(supervisor.status().message())}};
  const std::optional<supervisor::ReadyFrame> ready = FirstWords(**supervisor);
  if (!ready.has_value()) {
    return {{"supervisor", "fix",
             "starts, but says nothing; are cadre and cadre-supervisor of the "
             "same version?"}};
  }
  std::vector<Finding> findings = {
      {"supervisor", "ok", absl::StrCat("starts (pid ", (*supervisor)->pid(), ")")}};
  if (ready->cgroup.empty()) {
    findings.push_back({"cgroup v2", "note",
                        absl::StrCat(ready->degraded,
                                     "; workers are contained by session only. Try "
                                     "systemd-run --user --scope -p Delegate=yes")});
  } else {
    findings.push_back({"cgroup v2", "ok", "workers get one of their own"});
  }
  return findings;
}

// What an agent that is started here, as root, holds submitted jobs to.
std::vector<Finding> Containment() {
  const supervisor::Containable found = supervisor::WhatCanBeContained();
  const auto finding = [](const char* what, const std::string& why_not, const char* held) {
    return why_not.empty() ? Finding{what, "ok", absl::StrCat("an agent of root ", held)}
                           : Finding{what, "note", absl::StrCat("not contained: ", why_not)};
  };
  return {finding("memory of jobs", found.memory, "holds jobs to their memory_per_worker"),
          finding("processes of jobs", found.pids, "bounds those of each job"),
          finding("GPUs of jobs", found.devices, "lets jobs open no GPUs but their own")};
}

Finding OwnDirectory() {
  const absl::StatusOr<std::string> own = RuntimeDirectory();
  if (!own.ok()) return {"runtime directory", "fix", std::string(own.status().message())};
  return {"runtime directory", "ok", *own};
}

Finding Gpus() {
  const agent::GpuList found = agent::FindGpus();
  if (found.gpus.empty()) return {"GPUs", "note", absl::StrCat("none: ", found.reason)};
  return {"GPUs", "ok", absl::StrCat(found.gpus.size(), " (", found.gpus[0].name, ")")};
}

Finding Cpus() {
  const absl::StatusOr<std::vector<agent::CpuCore>> cores = agent::FindCores();
  if (!cores.ok()) return {"CPUs", "fix", std::string(cores.status().message())};
  return {"CPUs", "ok", absl::StrCat(cores->size(), " cores usable")};
}

Finding Nccl() {
  for (const char* name : {"libnccl.so.2", "libnccl.so", "/usr/local/cuda/lib64/libnccl.so.2"}) {
    void* library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) continue;
    auto* version = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
    int number = 0;
    const bool known = version != nullptr && version(&number) == 0;
    return {"NCCL", "ok", known ? absl::StrCat(name, ", version ", number) : name};
  }
  return {"NCCL", "note", "not found; only CPU collectives will work"};
}

Finding Loopback() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool good = fd >= 0 &&
                    bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
                    listen(fd, 1) == 0;
  if (fd >= 0) close(fd);
  if (!good) return {"loopback", "fix", "cannot listen on 127.0.0.1; run: ip link set lo up"};
  return {"loopback", "ok", "127.0.0.1 can be listened on"};
}

Finding Files() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < 256) {
    return {"open files", "fix", absl::StrCat("limit ", limit.rlim_cur, "; run: ulimit -n 4096")};
  }
  // A server raises its own to the hard limit.
  if (limit.rlim_max >= kWantedFiles) {
    return {"open files", "ok", absl::StrCat("limit ", limit.rlim_cur)};
  }
  return {"open files", "note",
          absl::StrCat("hard limit ", limit.rlim_max,
                       "; a server of more nodes needs a higher one: LimitNOFILE= or ulimit -Hn")};
}

// A Python program's worker is forked here as a job's would be.
std::vector<Finding> WarmStart(const std::string& python) {
  const agent::WarmTrial trial = agent::TryWarmStart(python);
  std::vector<Finding> findings;
  if (!trial.version.empty()) {
    const std::string torch = trial.torch.empty() ? "no torch" : "torch " + trial.torch;
    findings.push_back({"Python", trial.torch_found || trial.torch.empty() ? "ok" : "note",
                        absl::StrCat(python, ": ", trial.version, ", ", torch,
                                     trial.torch_found || trial.torch.empty()
                                         ? ""
                                         : ", which is not found without running it: its store is "
                                           "PyTorch's own, not the agents'")});
  }
  if (!trial.failed.empty()) {
    findings.push_back({"warm start", "note", trial.failed});
  } else {
    const auto whole = [](absl::Duration time) { return absl::Floor(time, absl::Milliseconds(1)); };
    findings.push_back(
        {"warm start", "ok",
         absl::StrCat("a worker forked from a template of ", trial.modules, " modules began in ",
                      absl::FormatDuration(whole(trial.warm)), ", a plain one in ",
                      absl::FormatDuration(whole(trial.plain)))});
  }
  for (const std::string& note : trial.notes) findings.push_back({"warm start", "note", note});
  return findings;
}

std::vector<Flag> Flags() { return {OutputFlag()}; }

int Run(const Parsed& parsed) {
  const absl::StatusOr<bool> as_json = AsksForJson(parsed.GetOr("output", "plain"));
  if (!as_json.ok()) return Fail(kExitUsage, as_json.status().message());
  bool good = true;
  std::vector<std::vector<std::string>> rows;
  nlohmann::json json = nlohmann::json::array();
  std::vector<Finding> findings = Supervisor();
  for (Finding& finding : Containment()) findings.push_back(std::move(finding));
  for (const auto check : {OwnDirectory, Loopback, Files, Cpus, Gpus, Nccl}) {
    findings.push_back(check());
  }
  // That of `cadre run` unless another one is named.
  std::string python =
      parsed.rest.empty() ? PythonFor(ReadEnvironment(), ThisProgram()) : parsed.rest[0];
  if (python.empty()) python = "python3";
  for (Finding& finding : WarmStart(python)) findings.push_back(std::move(finding));
  for (const Finding& finding : findings) {
    good = good && finding.verdict != "fix";
    rows.push_back({finding.what, finding.verdict, finding.text});
    json.push_back({{"what", finding.what}, {"verdict", finding.verdict}, {"text", finding.text}});
  }
  const std::string text =
      *as_json ? json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
               : FormatTable({"WHAT", "STATE", "FOUND"}, rows);
  const int printed = Print(text);
  return good ? printed : 1;
}

}  // namespace

Command DoctorCommand() {
  Command command;
  command.name = "doctor";
  command.summary =
      "Check this machine and say what to fix, and try warm starts with PYTHON (that of 'cadre "
      "run').";
  command.positionals = "[PYTHON]";
  command.max_positionals = 1;
  command.flags = Flags();
  command.run = Run;
  return command;
}

}  // namespace cadre::launcher
