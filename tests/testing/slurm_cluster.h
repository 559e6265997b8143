// A real Slurm cluster of two nodes on this machine: munged, slurmctld and two slurmd, each node a
// network namespace. All of it lives in a directory and in namespaces of the test, and ends with
// it. One thread.
#ifndef CADRE_TESTS_TESTING_SLURM_CLUSTER_H_
#define CADRE_TESTS_TESTING_SLURM_CLUSTER_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tests/testing/process.h"

namespace cadre {

// Calls `run` in a process that is the first of a namespace of its own, so that no process of a
// cluster outlives it, and gives its exit status. Where that takes rights that are missing, `run`
// is called in this process. One thread.
int RunAmongThemselves(const std::function<int()>& run);

// In the place of main: runs all tests with process ids of their own, so that no process of a
// cluster outlives them. Where that takes rights that are missing, they run as they are.
int RunTestsAmongThemselves(int argc, char** argv);

class SlurmCluster {
 public:
  // Both nodes are idle when it returns OK. PERMISSION_DENIED and NOT_FOUND name what this machine
  // lacks; the test is then skipped.
  absl::Status Start();

  // Starts a command of Slurm on the head node, in `directory()`.
  std::unique_ptr<Process> Run(const std::vector<std::string>& argv,
                               std::map<std::string, std::string> env = {});
  // Returns its standard output, once it has ended.
  std::string Ask(const std::vector<std::string>& argv);
  // Repeats a command until its output contains `text`; returns the last output.
  std::string AskUntil(const std::vector<std::string>& argv, absl::string_view text,
                       absl::Duration timeout);

  pid_t slurmctld() const { return slurmctld_->pid(); }

  // Sends SIGKILL to slurmd of node 1 or 2; the second also to all other processes of the node.
  void KillSlurmd(int node);
  void KillNode(int node);
  bool StartSlurmd(int node);

  // Shared by both nodes; it also is the user's home.
  const std::string& directory() const { return directory_; }

 private:
  std::string WriteConfiguration();
  absl::Status StartMunge();
  // The output goes to a log file, because the test does not read a pipe while it does other
  // things.
  std::unique_ptr<Process> Daemon(std::vector<std::string> argv, const std::string& log);

  std::string directory_;
  std::unique_ptr<Process> munged_;
  std::unique_ptr<Process> slurmctld_;
  std::unique_ptr<Process> slurmd_[2];
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_SLURM_CLUSTER_H_
