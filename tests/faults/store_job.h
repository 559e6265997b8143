// A job of several nodes with two workers each (store_worker.cc), which must survive the faults of
// a test: each worker adds to a key of its own and checks every sum. One thread.
#ifndef CADRE_TESTS_FAULTS_STORE_JOB_H_
#define CADRE_TESTS_FAULTS_STORE_JOB_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/testing/launch.h"

namespace cadre {

inline constexpr absl::Duration kJobTimeout = absl::Seconds(60);

// The parent of a worker is its supervisor.
pid_t ParentOf(pid_t pid);

class StoreJob {
 public:
  explicit StoreJob(std::string token_file) : token_file_(std::move(token_file)) {}

  // Starts one more node, whose launcher finds the server at this port of loopback.
  void StartNode(int port, const std::string& nnodes, const std::vector<std::string>& more = {});
  // The same for a server at one of these endpoints.
  void StartNodeAt(const std::string& endpoints, const std::string& nnodes,
                   const std::vector<std::string>& more = {});
  // Reads the next two workers of the node, which must be of this generation.
  std::vector<ProbeLine> Workers(size_t node, int generation);
  // The same for all nodes; ExpectUndisturbed expects these workers.
  void AwaitWorkers(int generation = 1);

  Process& node(size_t i) { return *nodes_[i]; }
  size_t size() const { return nodes_.size(); }
  const std::vector<ProbeLine>& workers(size_t node) const { return workers_[node]; }

  // Waits for a line of the node that contains `line`, and returns it.
  std::string Await(size_t node, const std::string& line);
  // Expects that both workers of each node continue to add, so their requests are answered.
  void ExpectAdditions();
  // The number of additions acknowledged to the workers of the node in this generation.
  int Acknowledged(size_t node, int generation);
  // Expects that the processes that AwaitWorkers has seen still run.
  void ExpectUndisturbed();
  // Ends the job. Expects that all nodes that are left succeed, and that each worker found every
  // sum right.
  void Finish();
  // Expects that no node has started workers of another generation than the first.
  void ExpectOneGeneration() const;
  // Kills the launcher of a node; Finish does not expect it any more.
  void KillNode(size_t node);

 private:
  const std::string token_file_;
  const std::string done_ = MakeTempDir("done") + "/done";
  std::vector<std::unique_ptr<Process>> nodes_;
  std::vector<std::vector<ProbeLine>> workers_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_FAULTS_STORE_JOB_H_
