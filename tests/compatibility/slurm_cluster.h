// A real Slurm cluster of two nodes on this machine: munged, slurmctld and two slurmd, each node a
// network namespace. All of it lives in a directory and in namespaces of the test, and ends with
// it. One thread.
#ifndef CADRE_TESTS_COMPATIBILITY_SLURM_CLUSTER_H_
#define CADRE_TESTS_COMPATIBILITY_SLURM_CLUSTER_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tests/testing/process.h"

namespace cadre {

// In the place of main: runs all tests with process ids of their own, so that no process of a
// cluster outlives them. Where that takes rights that are missing, they run as they are.
int RunTestsAmongThemselves(int argc, char** argv);

class SlurmCluster {
 public:
  // Both nodes are idle when it returns OK. PERMISSION_DENIED, NOT_FOUND: what this machine lacks;
  // a test then is skipped.
  absl::Status Start();

  // A command of Slurm at the head, in `directory()`.
  std::unique_ptr<Process> Run(const std::vector<std::string>& argv,
                               std::map<std::string, std::string> env = {});
  // Its standard output, once it has ended.
  std::string Ask(const std::vector<std::string>& argv);
  // Waits until the answer contains `text`; the last answer.
  std::string AskUntil(const std::vector<std::string>& argv, absl::string_view text,
                       absl::Duration timeout);

  // Of node 1 or 2: SIGKILL for slurmd, also for all other processes there.
  void KillSlurmd(int node);
  void KillNode(int node);
  bool StartSlurmd(int node);

  // Shared by both nodes; it also is the user's home.
  const std::string& directory() const { return directory_; }

 private:
  std::string WriteConfiguration();
  absl::Status StartMunge();
  // To a log file, because nobody reads a pipe while the test does something else.
  std::unique_ptr<Process> Daemon(std::vector<std::string> argv, const std::string& log);

  std::string directory_;
  std::unique_ptr<Process> munged_;
  std::unique_ptr<Process> slurmctld_;
  std::unique_ptr<Process> slurmd_[2];
};

}  // namespace cadre

#endif  // CADRE_TESTS_COMPATIBILITY_SLURM_CLUSTER_H_
