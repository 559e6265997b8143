// Two nodes, as network namespaces, of which the first looks its own name up as a loopback address,
// as Debian has it. Needs root; skipped without.
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"
#include "tests/testing/node_network.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);

class OwnNameTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { entered_ = new absl::Status(NodeNetwork::EnterWith(2)); }
  void SetUp() override {
    if (absl::IsPermissionDenied(*entered_)) GTEST_SKIP() << entered_->message();
    ASSERT_OK(*entered_);
  }

  // On `node`, with `hosts` for /etc/hosts and a default route.
  static std::unique_ptr<Process> StartOn(int node, const std::string& hosts,
                                          std::vector<std::string> arguments,
                                          std::map<std::string, std::string> environment = {}) {
    const std::string script =
        absl::StrCat("mount --bind ", hosts, " /etc/hosts && { ip route replace default via ",
                     kBridgeAddress, " 2>/dev/null; exec \"$0\" \"$@\"; }");
    ProcessOptions options;
    options.argv = NodeNetwork::Inside(node);
    options.argv.insert(options.argv.end(), {"unshare", "-m", "sh", "-c", script, kCadre, "run"});
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    options.env = std::move(environment);
    options.env["CADRE_LOG_DIR"] = MakeTempDir("logs");
    auto process = Process::Start(options);
    EXPECT_OK(process);
    return process.ok() ? *std::move(process) : nullptr;
  }
  // One of two nodes, where "head" is `head`.
  static std::unique_ptr<Process> StartWhereHeadIs(const std::string& head, int node,
                                                   const std::vector<std::string>& more) {
    const std::string hosts = MakeTempDir("names") + "/hosts";
    std::ofstream(hosts) << "127.0.0.1 localhost\n" << head << " head\n";
    std::vector<std::string> arguments = {"--nnodes",        "2",
                                          "--rdzv-endpoint", "head",
                                          "--node-name",     absl::StrCat("n", node),
                                          "--node-rank",     absl::StrCat(node - 1)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return StartOn(node, hosts, arguments);
  }

  static absl::Status* entered_;
};
absl::Status* OwnNameTest::entered_;

// Fault (network): The serving node's own name resolves to a loopback address there, as Debian sets
// it up, and a token file is given -> The node serves on every address, and its workers are reached
// by the default route
TEST_F(OwnNameTest, WithAToken_OthersReachItAndItsWorkers) {
  const std::string token = MakeTempDir("token") + "/token";
  ASSERT_OK(WriteTokenFile(token, RandomToken()));
  const std::vector<std::string> job = {
      "--token-file", token, "--", "sh", "-c", "echo rank=$RANK of $WORLD_SIZE at $MASTER_ADDR"};
  const auto first = StartWhereHeadIs("127.0.1.1", 1, job);
  const auto second = StartWhereHeadIs(NodeNetwork::AddressOf(1), 2, job);
  EXPECT_EQ(first->Wait(kTimeout), 0) << OutputOf(*first);
  EXPECT_EQ(second->Wait(kTimeout), 0) << OutputOf(*second);
  const std::string at = absl::StrCat(" of 2 at ", NodeNetwork::AddressOf(1));
  EXPECT_THAT(first->standard_output(), HasSubstr("rank=0" + at));
  EXPECT_THAT(second->standard_output(), HasSubstr("rank=1" + at));
}

// As a pod of Kubernetes, whose service does not know it yet.
//
// Fault (network): The name of the pod that serves does not resolve yet -> The launcher says so and
// tries again until `rendezvous.join_timeout` is over
TEST_F(OwnNameTest, ThatComesLater_IsAwaited) {
  const std::string hosts = MakeTempDir("names") + "/hosts",
                    token = MakeTempDir("token") + "/token";
  std::ofstream(hosts) << "127.0.0.1 localhost\n" << std::flush;
  ASSERT_OK(WriteTokenFile(token, RandomToken()));
  const auto pod =
      StartOn(1, hosts, {"--nnodes", "1:2", "--settle", "100ms", "--token-file", token, "true"},
              {{"JOB_COMPLETION_INDEX", "0"}, {"HOSTNAME", "job-0"}, {"CADRE_SERVICE", "pods"}});
  const auto line = pod->WaitForLine("cannot find host 'job-0.pods'", kTimeout);
  ASSERT_TRUE(line.has_value()) << OutputOf(*pod);
  EXPECT_THAT(*line, HasSubstr("retries for 10m"));
  std::ofstream(hosts, std::ios::app) << NodeNetwork::AddressOf(1) << " job-0.pods\n" << std::flush;
  EXPECT_EQ(pod->Wait(kTimeout), 0) << OutputOf(*pod);
  EXPECT_THAT(pod->standard_error(), HasSubstr("serving the rendezvous at job-0.pods"));
}

// Fault (network): The serving node's own name resolves to a loopback address there, and no token
// file is given -> The server listens on loopback only, all nodes have to be on that machine, and
// the launcher says so
TEST_F(OwnNameTest, WithoutOne_AllNodesAreHereAndThatIsSaid) {
  std::vector<std::unique_ptr<Process>> nodes;
  for (const char* name : {"a", "b"}) {
    nodes.push_back(StartWhereHeadIs("127.0.1.1", 1, {"--node-name", name, "true"}));
  }
  std::string said;
  for (const auto& node : nodes) {
    EXPECT_EQ(node->Wait(kTimeout), 0) << OutputOf(*node);
    said += node->standard_error();
  }
  EXPECT_THAT(said, HasSubstr("serving the rendezvous at head:29400, on this machine only: head is "
                              "127.0.1.1 here"));
}

}  // namespace
}  // namespace cadre
