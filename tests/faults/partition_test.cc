// Links that go down: nodes and servers as network namespaces. Needs root; skipped without.
#include <signal.h>

#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "tests/faults/server_group.h"
#include "tests/testing/etcd_process.h"
#include "tests/testing/launch.h"
#include "tests/testing/node_network.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLease = absl::Seconds(10);
// The next generation runs this long after the lease at the latest.
constexpr absl::Duration kAfterLease = absl::Milliseconds(500);
// What a machine that is busy with other tests may add.
constexpr absl::Duration kBusy = absl::Seconds(3);
constexpr absl::Duration kTimeout = absl::Seconds(60);

std::string Seconds(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(1)));
}

class PartitionTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { entered_ = new absl::Status(NodeNetwork::Enter()); }
  void SetUp() override {
    if (absl::IsPermissionDenied(*entered_)) GTEST_SKIP() << entered_->message();
    ASSERT_OK(*entered_);
    ASSERT_OK(WriteTokenFile(token_file_, RandomToken()));
  }

  // `cadre <arguments>` on a node, or, as node 0, on the bridge.
  std::unique_ptr<Process> Start(int node, const std::vector<std::string>& arguments) {
    ProcessOptions options;
    if (node != 0) options.argv = NodeNetwork::Inside(node);
    options.argv.push_back(kCadre);
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    options.env["XDG_STATE_HOME"] = MakeTempDir("state");
    auto process = Process::Start(options);
    EXPECT_OK(process);
    return process.ok() ? *std::move(process) : nullptr;
  }
  std::unique_ptr<Process> StartServer(int node, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"server",
                                          "--host",
                                          node == 0 ? kBridgeAddress : NodeNetwork::AddressOf(node),
                                          "--port",
                                          absl::StrCat(port_),
                                          "--token-file",
                                          token_file_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    auto server = Start(node, arguments);
    EXPECT_TRUE(server->WaitForLine("serving at").has_value()) << OutputOf(*server);
    return server;
  }
  // Two workers that use the store and say so.
  void StartNode(int node, const std::string& nnodes, const std::vector<std::string>& more = {}) {
    ASSERT_OK(NodeNetwork::Add(node));
    std::vector<std::string> arguments = {
        "run", "--nnodes", nnodes, "--nproc-per-node", "2", "--job-name", "job", "--node-name",
        absl::StrCat("node", node), "--token-file", token_file_, "--log-dir", MakeTempDir("logs"),
        "--rdzv-endpoint", endpoint_,
        // All are to be in the first generation, also where a
        // busy machine lets one come late.
        "--settle", "60s", "--stop-grace", "5s", "--max-restarts", "3"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.insert(arguments.end(), {kStoreWorker, done_, "aloud"});
    nodes_[node] = Start(node, arguments);
  }
  // The next two workers of the node, which must be of this generation.
  std::vector<ProbeLine> Workers(int node, int generation) {
    const std::vector<ProbeLine> probes = NextProbes(*nodes_[node], 2, kTimeout);
    EXPECT_EQ(probes.size(), 2u) << OutputOf(*nodes_[node]);
    for (const ProbeLine& probe : probes) EXPECT_EQ(probe.generation, generation);
    return probes;
  }
  // Additions that were acknowledged to workers of the node in generation 1.
  int Acknowledged(int node) {
    // Reads what is there.
    nodes_[node]->WaitForLine("there is no such line", absl::Milliseconds(1));
    const std::string& all = nodes_[node]->standard_output();
    int count = 0;
    for (size_t at = 0; (at = all.find("added generation=1 ", at)) != all.npos; ++at) ++count;
    return count;
  }
  void ExpectGone(const std::vector<ProbeLine>& workers) {
    for (const ProbeLine& worker : workers) EXPECT_TRUE(WaitGone(worker.pid, kTimeout));
  }
  void Finish(const std::vector<int>& nodes) {
    std::ofstream(done_) << "now";
    for (const int node : nodes) EXPECT_EQ(nodes_[node]->Wait(), 0) << OutputOf(*nodes_[node]);
  }

  static absl::Status* entered_;
  const int port_ = FreePort();
  const std::string token_file_ = MakeTempDir("token") + "/token";
  const std::string done_ = MakeTempDir("done") + "/done";
  std::string endpoint_ = absl::StrCat(kBridgeAddress, ":", port_);
  std::map<int, std::unique_ptr<Process>> nodes_;
};

absl::Status* PartitionTest::entered_ = nullptr;

// Fault (network): A node's link goes down -> The others run the next generation within the lease +
// 3.5 s; the node's workers can change nothing and end by `--orphan-timeout`, and if the link
// returns before, the node is a spare
TEST_F(PartitionTest, NodesAreCutOff_TheOthersGoOnAndOneComesBack) {
  const auto server = StartServer(0, {"--state-dir", "none"});
  for (const int node : {1, 2, 3}) StartNode(node, "2:4");
  StartNode(4, "2:4", {"--orphan-timeout", "1s"});
  std::map<int, std::vector<ProbeLine>> first;
  for (const int node : {1, 2, 3, 4}) first[node] = Workers(node, 1);
  const absl::Time cut = absl::Now();
  for (const int node : {3, 4}) ASSERT_OK(NodeNetwork::SetLink(node, false));
  for (const int node : {1, 2}) EXPECT_EQ(Workers(node, 2)[0].world, 4);
  const absl::Duration regrouped = absl::Now() - cut;
  printf("cut two nodes off: the others run the next generation after %s\n",
         Seconds(regrouped).c_str());
  EXPECT_LT(regrouped, kLease + kAfterLease + kBusy);

  const int acknowledged = Acknowledged(3);
  EXPECT_GT(acknowledged, 0);
  EXPECT_EQ(nodes_[4]->Wait(kTimeout), 69) << OutputOf(*nodes_[4]);
  printf("the node with an orphan timeout of 1s ended after %s\n",
         Seconds(absl::Now() - cut).c_str());
  ExpectGone(first[4]);
  // The other one keeps its workers; they wait.
  for (const ProbeLine& worker : first[3]) EXPECT_TRUE(IsAlive(worker.pid));

  ASSERT_OK(NodeNetwork::SetLink(3, true));
  EXPECT_TRUE(nodes_[3]->WaitForLine("reached the rendezvous", kTimeout).has_value())
      << OutputOf(*nodes_[3]);
  ExpectGone(first[3]);
  // It is a spare now, and takes the place of the next one that dies.
  nodes_[2]->Kill(SIGKILL);
  for (const int node : {1, 3}) EXPECT_EQ(Workers(node, 3)[0].world, 4);
  EXPECT_EQ(Acknowledged(3), acknowledged);
  Finish({1, 3});
}

// Fault (network): A node's link goes down, with `--strict-fencing` -> Its workers are killed
// before its lease ends, and the others go on only then
TEST_F(PartitionTest, StrictFencing_WorkersThatAreCutOffEndBeforeTheOthersGoOn) {
  const auto server = StartServer(0, {"--state-dir", "none"});
  for (const int node : {11, 12}) StartNode(node, "2:3");
  StartNode(13, "2:3", {"--strict-fencing"});
  std::vector<ProbeLine> cut_off;
  for (const int node : {11, 12, 13}) cut_off = Workers(node, 1);
  const MonoTime cut = MonoNow();
  ASSERT_OK(NodeNetwork::SetLink(13, false));
  ExpectGone(cut_off);
  const MonoTime gone = MonoNow();
  for (const int node : {11, 12}) {
    for (const ProbeLine& worker : Workers(node, 2)) {
      EXPECT_GT(worker.at_ns / 1000, gone.micros());
    }
  }
  printf(
      "strict fencing: the workers that were cut off are gone after %s, the others run the next "
      "generation after %s\n",
      Seconds(gone - cut).c_str(), Seconds(MonoNow() - cut).c_str());
  EXPECT_LT(MonoNow() - cut, kLease + kAfterLease + kBusy);
  ASSERT_OK(NodeNetwork::SetLink(13, true));
  EXPECT_TRUE(nodes_[13]->WaitForLine("reached the rendezvous", kTimeout).has_value())
      << OutputOf(*nodes_[13]);
  nodes_[12]->Kill(SIGKILL);
  for (const int node : {11, 13}) Workers(node, 3);
  Finish({11, 13});
}

// Fault (network): The leading server is cut off, with etcd and a second server -> The second one
// leads within 5 s, and workers are undisturbed
TEST_F(PartitionTest, TheLeaderIsCutOff_WorkersAreUndisturbed) {
  if (!EtcdProcess::IsInstalled()) GTEST_SKIP() << "needs Debian's etcd-server";
  EtcdProcess etcd(kBridgeAddress);
  ASSERT_TRUE(etcd.Start());
  std::vector<std::unique_ptr<Process>> servers;
  for (const int node : {21, 22}) {
    ASSERT_OK(NodeNetwork::Add(node));
    servers.push_back(StartServer(node, {"--etcd", etcd.url()}));
    if (node != 21) continue;
    ASSERT_TRUE(servers[0]->WaitForLine("this server leads").has_value());
  }
  endpoint_ = absl::StrCat(NodeNetwork::AddressOf(21), ":", port_, ",", NodeNetwork::AddressOf(22),
                           ":", port_);
  for (const int node : {23, 24}) StartNode(node, "2");
  std::vector<ProbeLine> workers;
  for (const int node : {23, 24}) {
    for (const ProbeLine& worker : Workers(node, 1)) workers.push_back(worker);
  }
  const absl::Time cut = absl::Now();
  ASSERT_OK(NodeNetwork::SetLink(21, false));
  ASSERT_TRUE(servers[1]->WaitForLine("this server leads", kTimeout).has_value());
  const absl::Duration elected = absl::Now() - cut;
  for (const int node : {23, 24}) {
    EXPECT_TRUE(nodes_[node]->WaitForLine("reached the rendezvous", kTimeout).has_value())
        << OutputOf(*nodes_[node]);
  }
  printf("cut the leader off: the next one leads after %s, its agents are back after %s\n",
         Seconds(elected).c_str(), Seconds(absl::Now() - cut).c_str());
  EXPECT_LT(elected, kNewLeaderWithin);
  EXPECT_TRUE(servers[0]->WaitForLine("no longer leads", kTimeout).has_value())
      << OutputOf(*servers[0]);
  ASSERT_OK(NodeNetwork::SetLink(21, true));
  EXPECT_TRUE(
      servers[0]
          ->WaitForLine(absl::StrCat(NodeNetwork::AddressOf(22), ":", port_, " leads"), kTimeout)
          .has_value())
      << OutputOf(*servers[0]);
  for (const ProbeLine& worker : workers) EXPECT_TRUE(IsAlive(worker.pid));
  Finish({23, 24});
  for (const int node : {23, 24}) {
    EXPECT_THAT(nodes_[node]->standard_output(), Not(HasSubstr("generation=2")));
  }
}

}  // namespace
}  // namespace cadre
