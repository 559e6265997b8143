#include "tests/faults/store_job.h"

#include <signal.h>

#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

constexpr char kStoreWorker[] = "tests/faults/store_worker";
constexpr size_t kEnough = 20;

}  // namespace

pid_t ParentOf(pid_t pid) {
  // "pid (name) state parent ...".
  const std::string stat = ReadFileOrEmpty(absl::StrCat("/proc/", pid, "/stat"));
  const std::vector<std::string> words = absl::StrSplit(stat.substr(stat.rfind(')') + 1), ' ');
  int parent = 0;
  EXPECT_TRUE(words.size() > 2 && absl::SimpleAtoi(words[2], &parent)) << stat;
  return parent;
}

void StoreJob::StartNode(int port, const std::string& nnodes,
                         const std::vector<std::string>& more) {
  StartNodeAt(absl::StrCat("127.0.0.1:", port), nnodes, more);
}

void StoreJob::StartNodeAt(const std::string& endpoints, const std::string& nnodes,
                           const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {
      "run", "--nnodes=" + nnodes, "--rdzv-endpoint=" + endpoints,
      absl::StrCat("--node-name=node", nodes_.size()), "--token-file=" + token_file_,
      "--nproc-per-node=2", "--job-name=job", "--log-dir=" + MakeTempDir("logs"),
      // All are to be in the first generation, also where a busy machine lets one come late.
      "--settle=60s", "--stop-grace=5s", "--max-restarts=3"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  arguments.insert(arguments.end(), {kStoreWorker, done_, "aloud"});
  nodes_.push_back(StartCadre(arguments));
  ASSERT_NE(nodes_.back(), nullptr);
}

std::vector<ProbeLine> StoreJob::Workers(size_t node, int generation) {
  std::vector<ProbeLine> probes = NextProbes(*nodes_[node], 2, kJobTimeout);
  EXPECT_EQ(probes.size(), 2u) << OutputOf(*nodes_[node]);
  for (const ProbeLine& probe : probes) EXPECT_EQ(probe.generation, generation);
  return probes;
}

void StoreJob::AwaitWorkers(int generation) {
  workers_.clear();
  for (size_t i = 0; i < nodes_.size(); ++i) workers_.push_back(Workers(i, generation));
}

std::string StoreJob::Await(size_t node, const std::string& line) {
  const auto said = nodes_[node]->WaitForLine(line, kJobTimeout);
  EXPECT_TRUE(said.has_value()) << line << "\n" << OutputOf(*nodes_[node]);
  return said.value_or("");
}

void StoreJob::ExpectAdditions() {
  for (const auto& node : nodes_) {
    if (node == nullptr) continue;
    EXPECT_EQ(node->WaitForLines("added generation=", kEnough, kJobTimeout).size(), kEnough)
        << OutputOf(*node);
  }
}

int StoreJob::Acknowledged(size_t node, int generation) {
  // Reads what is there.
  nodes_[node]->WaitForLine("there is no such line", absl::Milliseconds(1));
  const std::string& all = nodes_[node]->standard_output();
  const std::string text = absl::StrCat("added generation=", generation, " ");
  int count = 0;
  for (size_t at = 0; (at = all.find(text, at)) != all.npos; ++at) ++count;
  return count;
}

void StoreJob::ExpectUndisturbed() {
  for (const auto& workers : workers_) {
    for (const ProbeLine& worker : workers) {
      EXPECT_TRUE(IsAlive(worker.pid)) << "rank " << worker.rank;
    }
  }
}

void StoreJob::Finish() {
  std::ofstream(done_) << "now";
  for (const auto& node : nodes_) {
    if (node == nullptr) continue;
    EXPECT_EQ(node->Wait(kJobTimeout), 0) << OutputOf(*node);
    EXPECT_TRUE(absl::StrContains(node->standard_output(), "store ok")) << OutputOf(*node);
  }
}

void StoreJob::ExpectOneGeneration() const {
  for (const auto& node : nodes_) {
    if (node == nullptr) continue;
    EXPECT_FALSE(absl::StrContains(node->standard_output(), "generation=2")) << OutputOf(*node);
  }
}

void StoreJob::KillNode(size_t node) {
  nodes_[node]->Kill(SIGKILL);
  nodes_[node]->Wait();
  nodes_[node].reset();
}

}  // namespace cadre
