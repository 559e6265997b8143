// The node that is to serve a launch cannot do so where the others would look for it: it does so
// elsewhere, or they hear why not. Two nodes, as network namespaces, with the variables of a Slurm
// step. Needs root; skipped without.
#include <signal.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"
#include "tests/testing/node_network.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);
// Less than anybody would wait for a node that is missing.
constexpr absl::Duration kSoon = absl::Seconds(20);
constexpr char kHold[] =
    "import socket, sys; s = socket.socket(); s.setsockopt(1, 2, 1); "
    "s.bind(('0.0.0.0', int(sys.argv[1]))); s.listen(); print('held', flush=True); "
    "sys.stdin.read(); s.accept(); s.accept()";

class FirstNodeTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    entered_ = new absl::Status(NodeNetwork::EnterWith(2));
    if (entered_->ok()) *entered_ = NodeNetwork::NameNodes({"node1", "node2", "node3"});
  }
  void SetUp() override {
    if (absl::IsPermissionDenied(*entered_)) GTEST_SKIP() << entered_->message();
    ASSERT_OK(*entered_);
  }

  // The launcher of one of two nodes, `rank` counting from 0.
  std::unique_ptr<Process> Start(int rank, const std::vector<std::string>& arguments,
                                 const std::map<std::string, std::string>& more = {}) {
    ProcessOptions options;
    options.argv = NodeNetwork::Inside(rank + 1);
    options.argv.insert(options.argv.end(), {kCadre, "run", "--no-progress"});
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    options.env = {{"HOME", home_},
                   {"CADRE_LOG_DIR", MakeTempDir("logs")},
                   {"SLURM_JOB_ID", "17"},
                   {"SLURM_STEP_ID", "0"},
                   {"SLURM_STEP_NODELIST", "node[1-2]"},
                   {"SLURM_NODEID", absl::StrCat(rank)}};
    for (const auto& [name, value] : more) options.env[name] = value;
    auto process = Process::Start(options);
    EXPECT_OK(process);
    return process.ok() ? *std::move(process) : nullptr;
  }
  // Somebody on node 1 who has that port until the process is killed.
  static std::unique_ptr<Process> Hold(const std::string& port) {
    ProcessOptions options;
    options.argv = NodeNetwork::Inside(1);
    options.argv.insert(options.argv.end(), {"python3", "-c", kHold, port});
    auto process = Process::Start(options);
    EXPECT_OK(process);
    EXPECT_TRUE((*process)->WaitForLine("held").has_value()) << OutputOf(**process);
    return *std::move(process);
  }
  // Where the first node says that it serves.
  static std::string PortIn(Process& first) {
    const auto line = first.WaitForLine("serving the rendezvous at ");
    EXPECT_TRUE(line.has_value()) << OutputOf(first);
    const std::vector<std::string> parts = absl::StrSplit(line.value_or(""), ':');
    return parts.back();
  }
  static void ExpectBothRan(Process& first, Process& second) {
    EXPECT_EQ(first.Wait(kTimeout), 0) << OutputOf(first);
    EXPECT_EQ(second.Wait(kTimeout), 0) << OutputOf(second);
    EXPECT_THAT(first.standard_output(), HasSubstr("rank 0 of 2"));
    EXPECT_THAT(second.standard_output(), HasSubstr("rank 1 of 2"));
  }

  // Returns the arguments without a token and with one.
  std::vector<std::vector<std::string>> tokens() const {
    const std::string token = home_ + "/token";
    if (!std::filesystem::exists(token)) {
      EXPECT_OK(WriteTokenFile(token, RandomToken()));
    }
    return {{}, {"--token-file", token}};
  }
  static std::vector<std::string> Joined(std::vector<std::string> first,
                                         const std::vector<std::string>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }
  // Expects that both launchers end, and that the other one says why the first does not serve.
  void ExpectTheOtherHears(Process& first, Process& second, const std::string& why) {
    EXPECT_GT(first.Wait(kSoon).value_or(0), 0) << OutputOf(first);
    EXPECT_EQ(second.Wait(kSoon), 69) << OutputOf(second);
    EXPECT_THAT(second.standard_error(),
                AllOf(HasSubstr("the node that is to serve the rendezvous cannot serve it: "),
                      HasSubstr(why)));
    std::filesystem::remove_all(home_ + "/.cadre");
  }

  const std::vector<std::string> program_ = {"sh", "-c", "echo rank $RANK of $WORLD_SIZE"};
  const std::string home_ = MakeTempDir("home");
  static absl::Status* entered_;
};
absl::Status* FirstNodeTest::entered_;

// Fault (node): The port of the node that is to serve the job is taken -> It serves at a free port,
// and the other nodes learn it through the shared home directory
TEST_F(FirstNodeTest, ItsPortIsTaken_AnotherOneIsFound) {
  auto first = Start(0, program_), second = Start(1, program_);
  const std::string port = PortIn(*first);
  ExpectBothRan(*first, *second);
  const auto stranger = Hold(port);
  first = Start(0, program_);
  second = Start(1, program_);
  EXPECT_NE(PortIn(*first), port);
  ExpectBothRan(*first, *second);
  // What the nodes told each other is gone, but for how the launch ended, and for whom.
  for (const auto& left : std::filesystem::directory_iterator(home_ + "/.cadre")) {
    EXPECT_THAT(
        left.path().filename(),
        testing::AnyOf(testing::EndsWith(".ended"), testing::EndsWith(".ran"), "log_directories"));
  }
}

// As where the list has names of another network.
//
// Fault (node): The address of the node that is to serve the job is not its own -> It serves at its
// own address, and the other nodes learn it through the shared home directory
TEST_F(FirstNodeTest, ItsNameIsNotItsOwn_TheOthersHearItsAddress) {
  for (const char* list : {"node3,node2", "nowhere,node2"}) {
    const auto first = Start(0, program_, {{"SLURM_STEP_NODELIST", list}});
    const auto second = Start(1, program_, {{"SLURM_STEP_NODELIST", list}});
    ExpectBothRan(*first, *second);
  }
}

// The first node cannot serve because its script is missing, or because its state cannot be kept,
// which shows only when it begins to serve. The same holds if the user gave a token, with which
// nodes need not share a home directory.
//
// Fault (node): The node that is to serve the job cannot, for instance because its script or state
// directory is missing -> The other nodes learn why at once wherever they share the home directory
TEST_F(FirstNodeTest, ItCannotServe_TheOthersHearWhyAtOnce) {
  for (const std::vector<std::string>& token : tokens()) {
    for (const std::vector<std::string>& wrong :
         {std::vector<std::string>{"absent.py"}, {"--state-dir", "/proc/absent", "true"}}) {
      const auto second = Start(1, Joined(token, program_));
      const auto first = Start(0, Joined(token, wrong));
      ExpectTheOtherHears(*first, *second, "absent");
    }
  }
}

// The other nodes connect to the name of the first node, so it cannot serve under another one.
TEST_F(FirstNodeTest, ItsNameIsNotItsOwnAndAllHaveAToken_TheOthersHearThat) {
  const std::vector<std::string> all = Joined(tokens()[1], program_);
  const std::map<std::string, std::string> list = {{"SLURM_STEP_NODELIST", "node3,node2"}};
  const auto second = Start(1, all, list);
  const auto first = Start(0, all, list);
  ExpectTheOtherHears(*first, *second, "is not an address of this node");
}

// The script of a Slurm step may try again. The error of the first run must not be reported for the
// second.
TEST_F(FirstNodeTest, ItCanServeTheNextTime) {
  const std::vector<std::string> all = Joined(tokens()[1], program_);
  auto second = Start(1, all);
  auto first = Start(0, Joined(tokens()[1], {"absent.py"}));
  EXPECT_EQ(second->Wait(kSoon), 69) << OutputOf(*second);
  EXPECT_TRUE(first->Wait(kSoon).has_value()) << OutputOf(*first);
  second = Start(1, all);
  EXPECT_TRUE(second->WaitForLine("waiting for the rendezvous").has_value()) << OutputOf(*second);
  first = Start(0, all);
  ExpectBothRan(*first, *second);
}

// Where all know the port from elsewhere it cannot be another one. First this node is told to
// serve, then it has the address that was named.
//
// Fault (input): Another program has the rendezvous port and releases it later -> The launcher
// waits and then serves at that port
TEST_F(FirstNodeTest, AFixedPortThatBecomesFree_IsTakenThen) {
  const std::string token = home_ + "/token";
  ASSERT_OK(WriteTokenFile(token, RandomToken()));
  const std::vector<std::string> told = {"--token-file", token};
  const std::vector<std::string> named = {"--token-file", token, "--rdzv-endpoint",
                                          absl::StrCat("node1:", FreePort())};
  for (const std::vector<std::string>& flags : {told, named}) {
    std::vector<std::string> arguments = flags;
    arguments.insert(arguments.end(), program_.begin(), program_.end());
    auto first = Start(0, arguments), second = Start(1, arguments);
    const std::string port = PortIn(*first);
    ExpectBothRan(*first, *second);
    const auto stranger = Hold(port);
    first = Start(0, arguments);
    EXPECT_TRUE(first->WaitForLine("is in use").has_value()) << OutputOf(*first);
    stranger->Kill(SIGKILL);
    second = Start(1, arguments);
    ExpectBothRan(*first, *second);
  }
}

}  // namespace
}  // namespace cadre
