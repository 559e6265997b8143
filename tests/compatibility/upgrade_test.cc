// The version before beside this one: servers, agents, launchers, supervisors and programs are
// replaced one by one, and jobs live through it. tools/released builds that version; where
// CADRE_RELEASED does not name its folder this is skipped.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/etcd_process.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr char kSteadyWorker[] = "tests/faults/steady_worker";

class UpgradeTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* released = std::getenv("CADRE_RELEASED");
    if (released == nullptr || *released == '\0') {
      GTEST_SKIP() << "the version before is not there: tools/test --long builds it from the git "
                      "history (tools/released)";
    }
    old_ = absl::StrCat(released, "/cadre");
    old_worker_ = absl::StrCat(released, "/steady_worker");
    // A secret that makes a key, as every one of cadre token new does.
    EXPECT_EQ(Run(old_, {"token", "new", token_})->Wait(), 0);
  }

  std::unique_ptr<Process> Run(const std::string& cadre, std::vector<std::string> arguments) {
    std::unique_ptr<Process> process = StartProgram(cadre, arguments);
    EXPECT_NE(process, nullptr);
    return process;
  }
  std::string Ask(const std::string& cadre, std::vector<std::string> arguments) {
    for (const std::string& more :
         {absl::StrCat("--server=127.0.0.1:", port_), absl::StrCat("--token-file=", token_)}) {
      arguments.push_back(more);
    }
    const auto process = Run(cadre, arguments);
    EXPECT_EQ(process->Wait(), 0) << OutputOf(*process);
    return process->standard_output();
  }
  std::unique_ptr<Process> StartServer(const std::string& cadre, int port,
                                       const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"server", absl::StrCat("--port=", port),
                                          absl::StrCat("--token-file=", token_)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    auto server = Run(cadre, arguments);
    EXPECT_TRUE(server->WaitForLine("serving at", kTimeout)) << OutputOf(*server);
    return server;
  }
  void StartServer(const std::string& cadre, std::vector<std::string> more = {}) {
    if (server_ != nullptr) End(*server_, SIGKILL);
    more.push_back(absl::StrCat("--state-dir=", directory_, "/state"));
    server_ = StartServer(cadre, port_, more);
  }
  static void End(Process& process, int signal) {
    process.Kill(signal);
    EXPECT_TRUE(process.Wait(kTimeout).has_value());
  }

  // Two workers of two nodes.
  std::unique_ptr<Process> StartNode(const std::string& cadre, int node,
                                     const std::string& endpoint, const std::string& worker) {
    return Run(
        cadre,
        {"run", absl::StrCat("--rdzv-endpoint=", endpoint), absl::StrCat("--token-file=", token_),
         "--nnodes=2", "--nproc-per-node=2", "--job-name=job", absl::StrCat("--node-name=n", node),
         "--adopt-timeout=60s", "--max-restarts=1", "--stop-grace=1s",
         absl::StrCat("--log-dir=", directory_, "/logs"), "--no-progress", worker, directory_});
  }
  std::unique_ptr<Process> StartNode(const std::string& cadre, int node) {
    return StartNode(cadre, node, absl::StrCat("127.0.0.1:", port_), old_worker_);
  }
  // Its workers have begun.
  void Meet(Process& node, int generation) {
    for (const ProbeLine& probe : NextProbes(node, 2, kTimeout)) {
      EXPECT_EQ(probe.generation, generation);
      pids_[probe.rank] = probe.pid;
    }
    ExpectSteps(node);
  }
  // All take steps, for each waits for all.
  static void ExpectSteps(Process& node) {
    EXPECT_THAT(node.WaitForLines("step ", 10, kTimeout), SizeIs(10)) << OutputOf(node);
  }
  void ExpectAlive() {
    ASSERT_THAT(pids_, SizeIs(4));
    for (const auto& [rank, pid] : pids_) EXPECT_TRUE(IsAlive(pid)) << "rank " << rank;
  }
  void Touch(const std::string& name) { std::ofstream(directory_ + "/" + name) << "\n"; }

  std::string old_;
  std::string old_worker_;
  const std::string new_ = std::filesystem::absolute(kCadre);
  const std::string new_worker_ = std::filesystem::absolute(kSteadyWorker);
  const std::string directory_ = MakeTempDir("upgrade");
  const std::string token_ = directory_ + "/token";
  const int port_ = FreePort();
  std::unique_ptr<Process> server_;
  std::map<int, pid_t> pids_;  // by rank
};

// Fault (versions): The server and then the launchers are upgraded under running workers -> Each
// new launcher takes over the workers and the older supervisor, and the workers go on
TEST_F(UpgradeTest, TheServerThenTheLaunchers_WorkersGoOn) {
  StartServer(old_);
  std::unique_ptr<Process> nodes[] = {StartNode(old_, 0), StartNode(old_, 1)};
  for (const auto& node : nodes) Meet(*node, 1);
  StartServer(new_);
  for (const auto& node : nodes) {
    EXPECT_TRUE(node->WaitForLine("reached the rendezvous server", kTimeout)) << OutputOf(*node);
    ExpectSteps(*node);
  }
  EXPECT_THAT(Ask(new_, {"status", "job"}), HasSubstr("n1 runs Cadre 0.3"));
  for (const int i : {0, 1}) {
    End(*nodes[i], SIGKILL);
    nodes[i] = StartNode(new_, i);
    EXPECT_TRUE(nodes[i]->WaitForLine("took over 2 workers of generation 1", kTimeout))
        << OutputOf(*nodes[i]);
    ExpectSteps(*nodes[i]);
  }
  EXPECT_THAT(Ask(new_, {"status", "job"}), Not(HasSubstr("runs Cadre")));
  ExpectAlive();
  // The supervisors that start them again, and the library in them, are still of before.
  kill(pids_[2], SIGKILL);
  for (const auto& node : nodes) Meet(*node, 2);
  Touch("done");
  for (const auto& node : nodes) EXPECT_EQ(node->Wait(kTimeout), 0) << OutputOf(*node);
}

// Fault (versions): A server is downgraded to the minor version before -> It reads the state that
// the newer version wrote, and running jobs go on
TEST_F(UpgradeTest, BackToTheVersionBefore) {
  StartServer(new_);
  std::unique_ptr<Process> nodes[] = {StartNode(old_, 0), StartNode(old_, 1)};
  for (const auto& node : nodes) Meet(*node, 1);
  StartServer(old_);
  for (const auto& node : nodes) {
    EXPECT_TRUE(node->WaitForLine("reached the rendezvous server", kTimeout)) << OutputOf(*node);
    ExpectSteps(*node);
  }
  ExpectAlive();
  Touch("done");
  for (const auto& node : nodes) EXPECT_EQ(node->Wait(kTimeout), 0) << OutputOf(*node);
}

// As a package does it. What is started from them then is of this version.
//
// Fault (versions): The program's files are replaced while a launcher runs -> The launcher and its
// supervisor go on, and a supervisor that is started later still understands it
TEST_F(UpgradeTest, FilesAreReplacedUnderALauncherThatRuns) {
  const auto put = [&](const std::string& cadre) {
    for (const char* name : {"/cadre", "/cadre-supervisor"}) {
      const std::string from = std::filesystem::path(cadre).parent_path().string() + name;
      std::filesystem::copy_file(from, directory_ + name + ".new");
      std::filesystem::rename(directory_ + name + ".new", directory_ + name);
    }
  };
  StartServer(new_);
  put(old_);
  std::unique_ptr<Process> nodes[] = {StartNode(directory_ + "/cadre", 0), StartNode(new_, 1)};
  for (const auto& node : nodes) Meet(*node, 1);
  put(new_);
  pid_t supervisor = 0;
  std::ifstream(absl::StrCat("/proc/", nodes[0]->pid(), "/task/", nodes[0]->pid(), "/children")) >>
      supervisor;
  ASSERT_GT(supervisor, 0);
  kill(supervisor, SIGKILL);
  EXPECT_TRUE(nodes[0]->WaitForLine("another one is started", kTimeout)) << OutputOf(*nodes[0]);
  for (const auto& node : nodes) Meet(*node, 2);
  Touch("done");
  for (const auto& node : nodes) EXPECT_EQ(node->Wait(kTimeout), 0) << OutputOf(*node);
}

// Fault (versions): A program's library and its agent are of neighbouring minor versions -> They
// work together
TEST_F(UpgradeTest, EachLibraryUnderEachLauncher) {
  Touch("done");
  for (const auto& [cadre, worker] : {std::pair(old_, new_worker_), {new_, old_worker_}}) {
    const auto node =
        Run(cadre, {"run", "--standalone", "--nproc-per-node=2", "--no-progress",
                    absl::StrCat("--log-dir=", directory_, "/logs"), worker, directory_});
    EXPECT_EQ(node->Wait(kTimeout), 0) << OutputOf(*node);
    EXPECT_THAT(node->standard_output(), HasSubstr("step 1"));
  }
}

// The launchers' tokens are made by agents of before.
//
// Fault (versions): A cluster's server and then its agents are upgraded while submitted jobs run ->
// The server accepts the tokens that older agents gave their launchers, and the jobs go on
TEST_F(UpgradeTest, AClustersServerThenItsAgents_ASubmittedJobGoesOn) {
  const auto agent = [&](const std::string& cadre, const std::string& name) {
    std::vector<std::string> arguments = {"agent", absl::StrCat("--server=127.0.0.1:", port_),
                                          absl::StrCat("--token-file=", token_),
                                          absl::StrCat("--node-name=", name), "--cpus=2"};
    if (geteuid() == 0) arguments.push_back("--user=root");
    auto process = Run(cadre, arguments);
    EXPECT_TRUE(process->WaitForLine("is in the cluster", kTimeout)) << OutputOf(*process);
    return process;
  };
  const auto grows = [&](int generation) {
    const std::string log =
        absl::StrCat(directory_, "/logs/job/generation_", generation, "/rank_0/stdout.log");
    const size_t before = ReadFileOrEmpty(log).size();
    return Eventually([&] { return ReadFileOrEmpty(log).size() > before + 500; });
  };
  StartServer(old_);
  auto first = agent(old_, "n0"), second = agent(old_, "n1");
  const std::string job = directory_ + "/job.yaml";
  std::ofstream(job) << "name: job\ncommand: [" << old_worker_ << ", " << directory_
                     << "]\nnodes: 2\nworkers_per_node: 2\nlogs: {dir: " << directory_
                     << "/logs}\nrestart: {max: 0}\n";
  Ask(old_, {"submit", job});
  EXPECT_TRUE(grows(1));
  StartServer(new_);
  EXPECT_TRUE(second->WaitForLine("is in the cluster", kTimeout)) << OutputOf(*second);
  EXPECT_TRUE(grows(1));
  EXPECT_THAT(Ask(new_, {"nodes"}), HasSubstr("n0 runs Cadre 0.3"));
  // Who is told to end leaves its nodes' jobs to others, which costs no restart.
  const auto third = agent(new_, "n2");
  End(*first, SIGTERM);
  EXPECT_TRUE(grows(2));
  first = agent(new_, "n0");
  End(*second, SIGTERM);
  EXPECT_TRUE(grows(3));
  EXPECT_THAT(Ask(new_, {"nodes"}), Not(HasSubstr("runs Cadre")));
  Touch("done");
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(Ask(new_, {"status", "job"}), "succeeded");
  }));
}

TEST_F(UpgradeTest, WithEtcdTheNextLeaderIsOfTheNextVersion) {
  if (!EtcdProcess::IsInstalled()) GTEST_SKIP() << "etcd is not installed";
  EtcdProcess etcd;
  ASSERT_TRUE(etcd.Start());
  const std::string with = absl::StrCat("--etcd=", etcd.url());
  const int other = FreePort();
  const std::string both = absl::StrCat("127.0.0.1:", port_, ",127.0.0.1:", other);
  const auto leader = StartServer(old_, port_, {with});
  EXPECT_TRUE(leader->WaitForLine("this server leads", kTimeout)) << OutputOf(*leader);
  std::unique_ptr<Process> nodes[] = {StartNode(old_, 0, both, old_worker_),
                                      StartNode(old_, 1, both, old_worker_)};
  for (const auto& node : nodes) Meet(*node, 1);
  const auto next = StartServer(new_, other, {with});
  End(*leader, SIGKILL);
  EXPECT_TRUE(next->WaitForLine("this server leads", kTimeout)) << OutputOf(*next);
  for (const auto& node : nodes) {
    EXPECT_TRUE(node->WaitForLine("reached the rendezvous server", kTimeout)) << OutputOf(*node);
    ExpectSteps(*node);
  }
  ExpectAlive();
  Touch("done");
  for (const auto& node : nodes) EXPECT_EQ(node->Wait(kTimeout), 0) << OutputOf(*node);
}

}  // namespace
}  // namespace cadre
