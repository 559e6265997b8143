// A job of several nodes, two workers on each (store_worker.cc), that lives through what a test
// does around it: each worker adds to a key of its own and checks every sum. One thread.
#ifndef CADRE_TESTS_FAULTS_STORE_JOB_H_
#define CADRE_TESTS_FAULTS_STORE_JOB_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/end_to_end/launch.h"

namespace cadre {

inline constexpr absl::Duration kJobPatience = absl::Seconds(60);

// A worker's is its supervisor.
pid_t ParentOf(pid_t pid);

class StoreJob {
 public:
  explicit StoreJob(std::string token_file) : token_file_(std::move(token_file)) {}

  // One more node, whose launcher finds the server at this port of loopback.
  void StartNode(int port, const std::string& nnodes, const std::vector<std::string>& more = {});
  // Likewise at one of these endpoints.
  void StartNodeAt(const std::string& endpoints, const std::string& nnodes,
                   const std::vector<std::string>& more = {});
  // The next two workers of the node, which must be of this generation.
  std::vector<ProbeLine> Workers(size_t node, int generation);
  // Likewise of all nodes; they are the ones that ExpectUndisturbed looks for.
  void AwaitWorkers(int generation = 1);

  Process& node(size_t i) { return *nodes_[i]; }
  size_t size() const { return nodes_.size(); }
  const std::vector<ProbeLine>& workers(size_t node) const { return workers_[node]; }

  // The node says so, and what it says.
  std::string Await(size_t node, const std::string& line);
  // Both workers of each node go on adding: what they ask is answered.
  void ExpectAdditions();
  // Additions that were acknowledged to workers of the node in this generation.
  int Acknowledged(size_t node, int generation);
  // The same processes as AwaitWorkers has seen.
  void ExpectUndisturbed();
  // All that are left end well, and each worker found every sum right.
  void Finish();
  // No node has started workers of another generation than the first.
  void ExpectOneGeneration() const;
  // SIGKILL for its launcher; it is none of those that are left.
  void KillNode(size_t node);

 private:
  const std::string token_file_;
  const std::string done_ = MakeTempDir("done") + "/done";
  std::vector<std::unique_ptr<Process>> nodes_;
  std::vector<std::vector<ProbeLine>> workers_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_FAULTS_STORE_JOB_H_
