// spawn_with_nccl_id: see README.md.

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "../exceptions/exceptions.h"
#include "../flags/flags.h"
#include "CLI/CLI.hpp"
#include "cadre/communicator.h"
#include "cadre/nccl/connect.h"
#include "cadre/nccl/unique_id.h"
#include "cadre/status_macros.h"
#include "gate.h"
#include "gpu.h"
#include "spawn.h"
#include "train.h"

namespace cadre {
namespace {

constexpr int kFailed = 1;

struct Options {
  int processes = 2;
  bool with_stranger = false;
  int timeout_seconds = 60;
  TrainOptions training;
  // This process's own arguments, for the processes that it starts.
  std::vector<std::string> arguments;
  // Set in a started process; -1 in the parent.
  int local_rank = -1;
  std::string gate;
};

// Returns a hash that tells ids apart without revealing them.
std::string Fingerprint(std::string_view id) {
  uint64_t hash = 14695981039346656037u;
  for (const unsigned char byte : id) hash = (hash ^ byte) * 1099511628211u;
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

// Runs one rank, on its own GPU if there are enough.
Status TrainOnGpu(const Options& options, const std::string& id, int gpus) {
  nccl::NcclOptions connecting;
  connecting.device = options.local_rank % gpus;
  connecting.timeout = std::chrono::seconds(options.timeout_seconds);
  // NCCL refuses two ranks on one GPU of one host, so ranks that share one pretend to be different
  // hosts.
  if (options.processes > gpus) {
    setenv("NCCL_HOSTID", ("rank" + std::to_string(options.local_rank)).c_str(), /*replace=*/0);
  }
  CADRE_RETURN_IF_ERROR(UseGpu(connecting.device));
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                         nccl::ConnectNccl(id, options.local_rank, options.processes, connecting));
  TrainOptions training = options.training;
  training.timeout = connecting.timeout;
  return WithoutExceptions([&] { return Train(*communicator, training); });
}

// Runs in a process that the parent started. Every wait has a deadline.
Status RunProcess(const Options& options) {
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
  const Result<int> gpus = CountGpus();
  if (!gpus.ok()) return OkStatus();  // the parent says so
  const Status trained = TrainOnGpu(options, id, *gpus);
  if (!trained.ok()) return Status(trained.code(), who + ": " + trained.message());
  std::printf("%s: trained to the end\n", who.c_str());
  return OkStatus();
}

// Kills the processes if it is destroyed before they end.
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
    std::vector<std::string> argv = {"/proc/self/exe"};
    argv.insert(argv.end(), options.arguments.begin(), options.arguments.end());
    argv.insert(argv.end(), {"--local-rank", std::to_string(local_rank), "--gate", gate});
    CADRE_ASSIGN_OR_RETURN(const pid_t pid, SpawnWithSecret(argv, id));
    pids_.push_back(pid);
    return OkStatus();
  }

  // Returns how many failed. A failed process ends the other processes' waits, or their timeout
  // does.
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
    return Status(id.status().code(), "nothing is trained without an id: " + id.status().message());
  }
  std::printf("minted an id, fingerprint %s\n", Fingerprint(*id).c_str());
  CADRE_ASSIGN_OR_RETURN(Gate gate, Gate::Open(*id, options.processes));
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(options.timeout_seconds);
  Children strangers, holders;
  if (options.with_stranger) {
    // This process knows the gate's path and claims a rank, but its id is wrong.
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
  // The id refers to a listening socket of this process, which must stay until all are done.
  const int failed = holders.Wait();
  if (failed > 0) return UnavailableError(std::to_string(failed) + " processes failed");
  if (options.with_stranger && strangers.Wait() == 0) {
    return InternalError("the stranger was not told");
  }
  const Status gpus = CountGpus().status();
  return gpus.ok() ? OkStatus()
                   : Status(gpus.code(), "nothing is trained without a GPU: " + gpus.message());
}

void AddFlags(CLI::App& app, Options& options) {
  app.add_option("--processes", options.processes)->check(CLI::Range(1, 64))->capture_default_str();
  app.add_flag("--with-stranger", options.with_stranger,
               "start one more process, whose id is another one");
  app.add_option("--timeout", options.timeout_seconds, "seconds that processes wait for each other")
      ->check(flags::Positive())
      ->capture_default_str();
  TrainOptions& training = options.training;
  app.add_option("--data-dir", training.data_dir,
                 "directory with MNIST's IDX files, plain or .gz; default: digits drawn here");
  app.add_option("-m,--epochs,--max-epoch", training.epochs)
      ->check(flags::Positive())
      ->capture_default_str();
  app.add_option("-b,--batch-size", training.batch_size, "of each process")
      ->check(flags::Positive())
      ->capture_default_str();
  app.add_option("-l,--lr,--learning-rate", training.learning_rate)
      ->check(flags::NotNegative())
      ->capture_default_str();
  app.add_option("--momentum", training.momentum)
      ->check(flags::NotNegative())
      ->capture_default_str();
  app.add_option("--weight-decay", training.weight_decay)
      ->check(flags::NotNegative())
      ->capture_default_str();
  app.add_option("--seed", training.seed)->capture_default_str();
  app.add_option("--limit", training.limit, "use only so many training images; 0: all")
      ->check(flags::NotNegative())
      ->capture_default_str();
  app.add_option("--local-rank", options.local_rank)->group("");
  app.add_option("--gate", options.gate)->group("");
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  cadre::Options options;
  options.arguments.assign(argv + 1, argv + argc);
  CLI::App app("Starts processes that share one NCCL id, and train together.");
  cadre::AddFlags(app, options);
  if (const auto status = cadre::flags::Parse(app, argc, argv)) return *status;
  const cadre::Status status =
      options.local_rank < 0 ? cadre::RunParent(options) : cadre::RunProcess(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "spawn_with_nccl_id: %s\n", status.ToString().c_str());
  return cadre::kFailed;
}
