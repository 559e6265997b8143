// Two nodes, as network namespaces, of which the first looks its own name up as a loopback address,
// as Debian has it. Needs root; skipped without.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/end_to_end/launch.h"
#include "tests/testing/node_network.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

class OwnNameTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    entered_ = new absl::Status(NodeNetwork::Enter());
    for (const int node : {1, 2}) {
      if (entered_->ok()) *entered_ = NodeNetwork::Add(node);
    }
  }
  void SetUp() override {
    if (absl::IsPermissionDenied(*entered_)) GTEST_SKIP() << entered_->message();
    ASSERT_OK(*entered_);
  }

  // On `node`, where "head" is `head`, and with a default route.
  static std::unique_ptr<Process> StartOn(int node, const std::string& head,
                                          const std::vector<std::string>& more) {
    const std::string hosts = MakeTempDir("names") + "/hosts";
    std::ofstream(hosts) << "127.0.0.1 localhost\n" << head << " head\n";
    ProcessOptions options;
    options.argv = NodeNetwork::Inside(node);
    const std::vector<std::string> line = {
        "unshare",
        "-m",
        "sh",
        "-c",
        absl::StrCat("mount --bind ", hosts, " /etc/hosts && { ip route replace default via ",
                     kBridgeAddress, " 2>/dev/null; exec \"$0\" \"$@\"; }"),
        kCadre,
        "run",
        "--nnodes",
        "2",
        "--rdzv-endpoint",
        "head",
        "--node-name",
        absl::StrCat("n", node),
        "--node-rank",
        absl::StrCat(node - 1)};
    options.argv.insert(options.argv.end(), line.begin(), line.end());
    options.argv.insert(options.argv.end(), more.begin(), more.end());
    options.env = {{"CADRE_LOG_DIR", MakeTempDir("logs")}};
    auto process = Process::Start(options);
    EXPECT_OK(process);
    return process.ok() ? *std::move(process) : nullptr;
  }

  static absl::Status* entered_;
};
absl::Status* OwnNameTest::entered_;

TEST_F(OwnNameTest, WithAToken_OthersReachItAndItsWorkers) {
  const std::string token = MakeTempDir("token") + "/token";
  ASSERT_OK(WriteTokenFile(token, RandomToken()));
  const std::vector<std::string> job = {
      "--token-file", token, "--", "sh", "-c", "echo rank=$RANK of $WORLD_SIZE at $MASTER_ADDR"};
  const auto first = StartOn(1, "127.0.1.1", job);
  const auto second = StartOn(2, NodeNetwork::AddressOf(1), job);
  EXPECT_EQ(first->Wait(kPatience), 0) << Said(*first);
  EXPECT_EQ(second->Wait(kPatience), 0) << Said(*second);
  const std::string at = absl::StrCat(" of 2 at ", NodeNetwork::AddressOf(1));
  EXPECT_THAT(first->standard_output(), HasSubstr("rank=0" + at));
  EXPECT_THAT(second->standard_output(), HasSubstr("rank=1" + at));
}

// As a pod of Kubernetes, whose service does not know it yet.
TEST_F(OwnNameTest, ThatComesLater_IsAwaited) {
  const std::string hosts = MakeTempDir("names") + "/hosts",
                    token = MakeTempDir("token") + "/token";
  std::ofstream(hosts) << "127.0.0.1 localhost\n" << std::flush;
  ASSERT_OK(WriteTokenFile(token, RandomToken()));
  ProcessOptions options;
  options.argv = NodeNetwork::Inside(1);
  for (const std::string& word :
       {std::string("unshare"), std::string("-m"), std::string("sh"), std::string("-c"),
        absl::StrCat("mount --bind ", hosts, " /etc/hosts && exec \"$0\" \"$@\""),
        std::string(kCadre), std::string("run"), std::string("--nnodes"), std::string("1:2"),
        std::string("--settle"), std::string("100ms"), std::string("--token-file"), token,
        std::string("true")}) {
    options.argv.push_back(word);
  }
  options.env = {{"CADRE_LOG_DIR", MakeTempDir("logs")},
                 {"JOB_COMPLETION_INDEX", "0"},
                 {"HOSTNAME", "job-0"},
                 {"CADRE_SERVICE", "pods"}};
  auto pod = Process::Start(options);
  ASSERT_OK(pod);
  const auto line = (*pod)->WaitForLine("cannot find host 'job-0.pods'", kPatience);
  ASSERT_TRUE(line.has_value()) << Said(**pod);
  EXPECT_THAT(*line, HasSubstr("tries again for 10m"));
  std::ofstream(hosts, std::ios::app) << NodeNetwork::AddressOf(1) << " job-0.pods\n" << std::flush;
  EXPECT_EQ((*pod)->Wait(kPatience), 0) << Said(**pod);
  EXPECT_THAT((*pod)->standard_error(), HasSubstr("serving the rendezvous at job-0.pods"));
}

TEST_F(OwnNameTest, WithoutOne_AllNodesAreHereAndThatIsSaid) {
  std::vector<std::unique_ptr<Process>> nodes;
  for (const char* name : {"a", "b"}) {
    nodes.push_back(StartOn(1, "127.0.1.1", {"--node-name", name, "true"}));
  }
  std::string said;
  for (const auto& node : nodes) {
    EXPECT_EQ(node->Wait(kPatience), 0) << Said(*node);
    said += node->standard_error();
  }
  EXPECT_THAT(said, HasSubstr("serving the rendezvous at head:29400, on this machine only: head is "
                              "127.0.1.1 here"));
}

}  // namespace
}  // namespace cadre
