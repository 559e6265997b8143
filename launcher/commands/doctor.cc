// cadre doctor: checks this machine and says what to fix.
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
#include "agent/supervisor/processes/cgroup_limits.h"
#include "agent/workers/node_hardware.h"
#include "agent/workers/python/warm_trial.h"
#include "base/exit_codes.h"
#include "base/user_directory.h"
#include "launcher/commands/commands.h"
#include "launcher/display/output_format.h"
#include "launcher/environment/program.h"
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

// The supervisor's first frame; nullopt if none comes in time.
std::optional<supervisor::ReadyFrame> ReadReadyFrame(supervisor::Client& supervisor) {
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
  const std::optional<supervisor::ReadyFrame> ready = ReadReadyFrame(**supervisor);
  if (!ready.has_value()) {
    return {{"supervisor", "fix",
             "cadre-supervisor starts but does not answer; check that cadre and cadre-supervisor "
             "have the same version"}};
  }
  std::vector<Finding> findings = {
      {"supervisor", "ok", absl::StrCat("starts (pid ", (*supervisor)->pid(), ")")}};
  if (ready->cgroup.empty()) {
    findings.push_back(
        {"cgroup v2", "note",
         absl::StrCat(ready->degraded,
                      "; workers' processes are found by their session only, which a process can "
                      "leave. Run cadre under: systemd-run --user --scope -p Delegate=yes")});
  } else {
    findings.push_back({"cgroup v2", "ok", "workers get a cgroup of their own"});
  }
  return findings;
}

// The limits that an agent started here as root can enforce on submitted jobs.
std::vector<Finding> Containment() {
  const supervisor::UnsupportedLimits found = supervisor::FindUnsupportedLimits();
  const auto finding = [](const char* what, const std::string& why_not, const char* held) {
    return why_not.empty() ? Finding{what, "ok", absl::StrCat("an agent that runs as root ", held)}
                           : Finding{what, "note", absl::StrCat("cannot be limited: ", why_not)};
  };
  return {finding("memory of jobs", found.memory, "limits jobs to their memory_per_worker"),
          finding("processes of jobs", found.pids, "limits the number of processes of each job"),
          finding("GPUs of jobs", found.devices, "lets each job open only its own GPUs")};
}

Finding RuntimeDir() {
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
  return {"NCCL", "note", "libnccl was not found; only collectives on CPUs will work"};
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
  return {"loopback", "ok", "cadre can listen on 127.0.0.1"};
}

Finding Files() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < 256) {
    return {"open files", "fix",
            absl::StrCat("the limit is ", limit.rlim_cur, "; run: ulimit -n 4096")};
  }
  // A server raises its soft limit to the hard limit.
  if (limit.rlim_max >= kWantedFiles) {
    return {"open files", "ok", absl::StrCat("limit ", limit.rlim_cur)};
  }
  return {"open files", "note",
          absl::StrCat("the hard limit is ", limit.rlim_max,
                       "; a server for many nodes needs a higher one: raise it with LimitNOFILE= "
                       "(systemd) or ulimit -Hn")};
}

// Forks a Python worker here as for a job.
std::vector<Finding> WarmStart(const std::string& python) {
  const agent::WarmTrial trial = agent::TryWarmStart(python);
  std::vector<Finding> findings;
  if (!trial.version.empty()) {
    const std::string torch = trial.torch.empty() ? "no torch" : "torch " + trial.torch;
    findings.push_back(
        {"Python", trial.torch_found || trial.torch.empty() ? "ok" : "note",
         absl::StrCat(python, ": ", trial.version, ", ", torch,
                      trial.torch_found || trial.torch.empty()
                          ? ""
                          : ", but 'cadre run' cannot see its version without starting Python, so "
                            "workers use PyTorch's store instead of the agents'")});
  }
  if (!trial.failed.empty()) {
    findings.push_back({"warm start", "note", trial.failed});
  } else {
    const auto whole = [](absl::Duration time) { return absl::Floor(time, absl::Milliseconds(1)); };
    findings.push_back(
        {"warm start", "ok",
         absl::StrCat("a worker forked from a template process with ", trial.modules,
                      " modules imported was ready in ", absl::FormatDuration(whole(trial.warm)),
                      ", a worker started plainly in ", absl::FormatDuration(whole(trial.plain)))});
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
  for (const auto check : {RuntimeDir, Loopback, Files, Cpus, Gpus, Nccl}) {
    findings.push_back(check());
  }
  // The interpreter that `cadre run` would use, unless another one is named.
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
