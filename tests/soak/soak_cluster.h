// A server, two launchers of an elastic job with two workers each, and the faults that a soak
// injects into them. What was killed is started again. One thread.
#ifndef CADRE_TESTS_SOAK_SOAK_CLUSTER_H_
#define CADRE_TESTS_SOAK_SOAK_CLUSTER_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/time.h"
#include "tests/testing/process.h"
#include "tests/testing/tcp_proxy.h"

namespace cadre {

enum class Fault {
  kWorkerKilled,
  kWorkerStopped,
  kLauncherKilled,
  kServerKilled,
  kSupervisorKilled,
  kConnectionDropped,
};
inline constexpr int kFaults = 6;
const char* NameOf(Fault fault);

struct ClusterOptions {
  std::string name;
  // An empty directory with a short path, for sockets, state, logs and the workers' steps.
  std::string directory;
  // The mark of the processes (census.h).
  std::string mark;
  // The server, and the first node's launcher and supervisor, live as long as the cluster, so that
  // what leaks in them adds up.
  bool long_lived = false;
};

class Cluster {
 public:
  static constexpr int kNodes = 2;
  static constexpr int kWorkersPerNode = 2;
  static constexpr int kWorkers = kNodes * kWorkersPerNode;

  explicit Cluster(const ClusterOptions& options);

  // False, with a test failure, if the server does not serve in time.
  bool Start();
  // Reads the output and starts what is due to be started again. Call it often.
  void Poll();
  // Chooses the victim by `random`. Returns what was done, in words; empty: there is no victim now.
  std::string Inject(Fault fault, std::mt19937& random);
  // Whether all workers of one generation have made steps since the last call.
  bool HasMoved();
  // One line about the last step of each worker.
  std::string WorkersText() const;

  // Ends the workers, then the launchers, then the server. Returns a line for each that did not end
  // well.
  std::vector<std::string> End();

  const std::string& name() const { return options_.name; }
  std::string runtime_dir() const { return options_.directory + "/run"; }
  std::string state_dir() const { return options_.directory + "/state"; }
  // 0 if it does not run now.
  pid_t server_pid() const { return server_ == nullptr ? 0 : server_->pid(); }
  pid_t launcher_pid(int node) const;
  pid_t supervisor_pid(int node) const;
  uint64_t generation() const { return generation_; }
  // Launchers that ended although neither they nor their supervisor were killed, by status.
  const std::map<int, int>& unasked_ends() const { return unasked_ends_; }

 private:
  struct Node {
    std::unique_ptr<TcpProxy> proxy;
    std::unique_ptr<Process> launcher;
    bool hit = false;  // it or its supervisor was killed
    MonoTime start_at;
  };
  struct Step {
    uint64_t generation = 0;
    int world = 0;
    int64_t step = 0;
    pid_t pid = 0;
  };

  bool StartServer();
  bool StartLauncher(int node);
  std::optional<Step> StepOf(int rank) const;
  // The worker that had this rank last; 0 if it has ended.
  pid_t WorkerPid(int rank) const;
  std::string Kill(Fault fault, int node);

  const ClusterOptions options_;
  std::map<std::string, std::string> environment_;
  int port_ = 0;
  std::unique_ptr<Process> server_;
  MonoTime server_start_at_;
  std::array<Node, kNodes> nodes_;
  std::array<int64_t, kWorkers> last_steps_ = {};
  uint64_t generation_ = 0;
  std::map<int, int> unasked_ends_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_SOAK_SOAK_CLUSTER_H_
