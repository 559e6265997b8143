// cadre stacks of a program of PyTorch's that runs, on two nodes, and goes on as if nothing had
// been asked.
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"
#include "tests/testing/pypi_python.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Importing torch alone takes many seconds on a machine that has other things to do.
constexpr absl::Duration kTimeout = absl::Minutes(4);

class PythonStacksTest : public PypiPythonTest {
 protected:
  void SetUp() override {
    PypiPythonTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(mkfifo(go_.c_str(), 0600), 0);
    server_ =
        StartCadre({"server", "--port", absl::StrCat(port_), "--state-dir", MakeTempDir("state")});
    ASSERT_TRUE(server_->WaitForLine(absl::StrCat(port_)).has_value()) << OutputOf(*server_);
    for (int node = 0; node < 2; ++node) {
      nodes_.push_back(StartNode(port_, "2", node,
                                 {"--job-name", "j", "--nproc-per-node", "2", "--", python_,
                                  "tests/compatibility/python_stacks.py", go_}));
    }
  }
  // Until it has said this.
  std::string Stacks(std::vector<std::string> arguments, const std::string& text) {
    arguments.insert(arguments.begin(), {"stacks", "j"});
    arguments.insert(arguments.end(), {"--server", absl::StrCat("127.0.0.1:", port_)});
    const absl::Time end = absl::Now() + kTimeout;
    std::string said;
    while (!absl::StrContains(said, text) && absl::Now() < end) {
      auto stacks = StartCadre(arguments);
      EXPECT_TRUE(stacks->Wait().has_value()) << OutputOf(*stacks);
      said = stacks->standard_output();
    }
    return said;
  }

  const int port_ = FreePort();
  const std::string go_ = MakeTempDir("stacks") + "/go";
  std::unique_ptr<Process> server_;
  std::vector<std::unique_ptr<Process>> nodes_;
};

TEST_F(PythonStacksTest, RanksAreGroupedByWhereTheyAre_AndGoOn) {
  const std::string all = Stacks({}, "ranks 0,2-3 (3 of 4): in all_reduce");
  EXPECT_THAT(
      all,
      AllOf(HasSubstr("ranks 0,2-3 (3 of 4): in all_reduce, from python_stacks.py:22 in main\n"),
            HasSubstr("    torch/distributed/distributed_c10d.py:"),
            HasSubstr("tests/compatibility/python_stacks.py:22 in main\n"
                      "        dist.all_reduce(one)  # the others\n"),
            HasSubstr("rank 1 on node0, pid "), HasSubstr(": at python_stacks.py:14 in wait_for\n"),
            HasSubstr("        open(pipe).read()  # the odd one\n"), Not(HasSubstr("no Python"))));
  const std::string one = Stacks({"--rank", "1"}, "rank 1");
  EXPECT_THAT(one, AllOf(HasSubstr("in wait_for"), HasSubstr("== process "),
                         HasSubstr("Current thread 0x"), Not(HasSubstr("all_reduce"))));
  std::ofstream go(go_);
  go.close();
  for (auto& node : nodes_) {
    EXPECT_EQ(node->Wait(kTimeout), 0) << OutputOf(*node);
    EXPECT_THAT(node->standard_output(), HasSubstr(" is done"));
  }
}

}  // namespace
}  // namespace cadre
