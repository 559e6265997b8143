// spawn_with_nccl_id: see README.md.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "../flags/flags.h"
#include "CLI/CLI.hpp"
#include "cadre/nccl/unique_id.h"
#include "cadre/status_macros.h"
#include "gate.h"
#include "nccl_group.h"
#include "spawn.h"

namespace cadre {
namespace {

constexpr int kFailed = 1;

struct Options {
  int processes = 2;
  bool with_stranger = false;
  int timeout_seconds = 60;
  // Of a started process; -1 is the parent.
  int local_rank = -1;
  std::string gate;
};

// Tells ids apart without giving them away.
std::string Fingerprint(std::string_view id) {
  uint64_t hash = 14695981039346656037u;
  for (const unsigned char byte : id) hash = (hash ^ byte) * 1099511628211u;
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

// A process that the parent started.
Status RunProcess(const Options& options) {
  // The other ranks may never come, and NCCL would wait for them.
  alarm(options.timeout_seconds);
  const std::string who = "local rank " + std::to_string(options.local_rank) + " of " +
                          std::to_string(options.processes);
  CADRE_ASSIGN_OR_RETURN(const std::string id, ReadSecret());
  std::printf("%s: got an id of %zu bytes, fingerprint %s\n", who.c_str(), id.size(),
              Fingerprint(id).c_str());
  const Status entered = EnterGate(options.gate, id, options.local_rank,
                                   std::chrono::seconds(options.timeout_seconds));
  if (!entered.ok()) {
    return Status(entered.code(), who + ": " + entered.message());
  }
  std::printf("%s: joined\n", who.c_str());
  if (!CountGpus().ok()) return OkStatus();  // the parent says so
  CADRE_ASSIGN_OR_RETURN(const float sum,
                         SumRanksWithNccl(id, options.local_rank, options.processes));
  std::printf("%s: NCCL's sum of 1 to %d is %g\n", who.c_str(), options.processes, sum);
  const float expected = options.processes * (options.processes + 1) / 2.0f;
  return sum == expected ? OkStatus() : DataLossError("the sum is wrong");
}

// Killed when this ends before they do.
class Children {
 public:
  ~Children() {
    for (const pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

  Status Start(const Options& options, int local_rank, const std::string& gate,
               std::string_view id) {
    CADRE_ASSIGN_OR_RETURN(
        const pid_t pid,
        SpawnWithSecret({"/proc/self/exe", "--processes", std::to_string(options.processes),
                         "--timeout", std::to_string(options.timeout_seconds), "--local-rank",
                         std::to_string(local_rank), "--gate", gate},
                        id));
    pids_.push_back(pid);
    return OkStatus();
  }

  // How many did not end well. Each ends within its own timeout.
  int Wait() {
    int failed = 0;
    for (const pid_t pid : pids_) {
      int status = 0;
      waitpid(pid, &status, 0);
      if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failed;
    }
    pids_.clear();
    return failed;
  }

 private:
  std::vector<pid_t> pids_;
};

Status RunParent(const Options& options) {
  const Result<std::string> id = nccl::MintNcclUniqueId();
  if (!id.ok()) {
    std::printf("stops here, without an id: %s\n", id.status().message().c_str());
    return OkStatus();
  }
  std::printf("minted an id, fingerprint %s\n", Fingerprint(*id).c_str());
  CADRE_ASSIGN_OR_RETURN(Gate gate, Gate::Open(*id, options.processes));
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(options.timeout_seconds);
  Children strangers, holders;
  if (options.with_stranger) {
    // It knows the way and claims a rank, but its id is another one.
    CADRE_RETURN_IF_ERROR(strangers.Start(options, 0, gate.path(), std::string(id->size(), 'x')));
    const Status answer = gate.AnswerOne(deadline);
    if (answer.code() != StatusCode::kPermissionDenied) {
      return InternalError("the stranger came in");
    }
    std::printf("sent a stranger away: %s\n", answer.message().c_str());
  }
  for (int rank = 0; rank < options.processes; ++rank) {
    CADRE_RETURN_IF_ERROR(holders.Start(options, rank, gate.path(), *id));
  }
  while (!gate.AllAreIn()) CADRE_RETURN_IF_ERROR(gate.AnswerOne(deadline));
  CADRE_RETURN_IF_ERROR(gate.Welcome());
  std::printf("all %d joined\n", options.processes);
  // The id holds a listening socket of this process: it stays until all are done.
  const int failed = holders.Wait();
  if (failed > 0) return UnavailableError(std::to_string(failed) + " processes failed");
  if (options.with_stranger && strangers.Wait() == 0) {
    return InternalError("the stranger was not told");
  }
  if (const Result<int> gpus = CountGpus(); !gpus.ok()) {
    std::printf("stops here, before ncclCommInitRank: %s\n", gpus.status().message().c_str());
  }
  return OkStatus();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  cadre::Options options;
  CLI::App app("Starts processes that share one NCCL id.");
  app.add_option("--processes", options.processes)->check(CLI::Range(1, 64))->capture_default_str();
  app.add_flag("--with-stranger", options.with_stranger,
               "start one more process, whose id is another one");
  app.add_option("--timeout", options.timeout_seconds, "seconds that processes have for it all")
      ->check(cadre::flags::Positive())
      ->capture_default_str();
  app.add_option("--local-rank", options.local_rank)->group("");
  app.add_option("--gate", options.gate)->group("");
  if (const auto status = cadre::flags::Parse(app, argc, argv)) return *status;
  const cadre::Status status =
      options.local_rank < 0 ? cadre::RunParent(options) : cadre::RunProcess(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "spawn_with_nccl_id: %s\n", status.ToString().c_str());
  return cadre::kFailed;
}
