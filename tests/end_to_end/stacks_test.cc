// cadre stacks of programs that are not Python: nothing happens to them, and what the kernel tells
// is shown. Those of PyTorch are in tests/compatibility/python_stacks_test.cc.
#include <csignal>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "nlohmann/json.hpp"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class StacksTest : public ::testing::Test {
 protected:
  // Two nodes of two workers each that run until there is the file.
  void SetUp() override {
    server_ =
        StartCadre({"server", "--port", absl::StrCat(port_), "--state-dir", MakeTempDir("state")});
    ASSERT_TRUE(server_->WaitForLine(absl::StrCat(port_)).has_value()) << OutputOf(*server_);
    const std::string program =
        absl::StrCat("echo \"rank $RANK runs\"; while [ ! -e ", go_, " ]; do sleep 0.1; done");
    for (int i = 0; i < 2; ++i) {
      nodes_.push_back(StartNode(
          port_, "2", i,
          {"--job-name", "shell", "--nproc-per-node", "2", "--", "/bin/sh", "-c", program}));
    }
    for (auto& node : nodes_) {
      ASSERT_EQ(node->WaitForLines(" runs", 2).size(), 2u) << OutputOf(*node);
    }
  }
  std::unique_ptr<Process> Stacks(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "stacks");
    arguments.insert(arguments.end(), {"--server", absl::StrCat("127.0.0.1:", port_)});
    auto stacks = StartCadre(arguments);
    EXPECT_TRUE(stacks->Wait().has_value()) << OutputOf(*stacks);
    return stacks;
  }
  void ExpectAGoodEnd() {
    std::ofstream go(go_);
    for (auto& node : nodes_) EXPECT_EQ(node->Wait(), 0) << OutputOf(*node);
  }

  const int port_ = FreePort();
  const std::string go_ = MakeTempDir("stacks") + "/go";
  std::unique_ptr<Process> server_;
  std::vector<std::unique_ptr<Process>> nodes_;
};

// Fault (display): Stacks are requested of programs that the signal for it would kill -> No signal
// is sent, and their state is shown instead
TEST_F(StacksTest, ProgramsWithoutAHandlerAreNotKilled_AndTheirStateIsShown) {
  auto all = Stacks({"shell"});
  EXPECT_EQ(all->Wait(), 0) << OutputOf(*all);
  EXPECT_THAT(all->standard_output(),
              AllOf(HasSubstr("job shell, generation 1, 4 ranks"), HasSubstr("no Python stack"),
                    HasSubstr("the process does not handle Cadre's stack signal"),
                    HasSubstr("pid "), Not(HasSubstr("node node1"))));
  auto json = Stacks({"shell", "--output", "json"});
  const auto reply = nlohmann::json::parse(json->standard_output(), nullptr, false);
  ASSERT_TRUE(reply.is_object()) << OutputOf(*json);
  size_t ranks = 0;
  for (const auto& group : reply["groups"]) ranks += group["ranks"].size();
  EXPECT_EQ(ranks, 4u) << reply;
  auto one = Stacks({"shell", "--rank", "3"});
  EXPECT_EQ(one->Wait(), 0) << OutputOf(*one);
  EXPECT_THAT(one->standard_output(),
              AllOf(HasSubstr("rank 3 on node1, pid "), HasSubstr("== process "),
                    HasSubstr("-- thread "), Not(HasSubstr("rank 2"))));
  ExpectAGoodEnd();
  auto over = Stacks({"shell"});
  EXPECT_EQ(over->Wait(), 1) << OutputOf(*over);
  EXPECT_THAT(over->standard_error(), HasSubstr("job shell has ended (succeeded)"));
}

// Fault (display): A node does not answer `cadre stacks` -> It is named after 2.5 s, and the others
// are shown
TEST_F(StacksTest, ANodeThatDoesNotAnswerIsNamed_AndTheOthersAreShown) {
  nodes_[1]->Kill(SIGSTOP);
  auto stacks = Stacks({"shell"});
  EXPECT_EQ(stacks->Wait(), 69) << OutputOf(*stacks);
  EXPECT_THAT(stacks->standard_output(),
              AllOf(HasSubstr("(2 of 4)"),
                    HasSubstr("node node1 (ranks 2-3): has not answered within 2.5s")));
  nodes_[1]->Kill(SIGCONT);
  ExpectAGoodEnd();
}

TEST_F(StacksTest, WhatMakesNoSenseIsSaid) {
  const std::vector<std::pair<std::vector<std::string>, std::pair<int, std::string>>> cases = {
      {{"shell", "--rank", "x"}, {64, "--rank: expected a rank, got 'x'"}},
      {{"shell", "--rank", "4"}, {1, "job shell has no rank 4; generation 1 has 4 workers"}},
      {{"shell", "--native"}, {64, "--native stops the process"}},
      {{"shell", "--output", "xml"}, {64, "--output: expected plain or json"}},
      {{"other"}, {1, "no job other"}}};
  for (const auto& [arguments, expected] : cases) {
    auto stacks = Stacks(arguments);
    EXPECT_EQ(stacks->Wait(), expected.first) << OutputOf(*stacks);
    EXPECT_THAT(stacks->standard_error(), HasSubstr(expected.second));
  }
  ExpectAGoodEnd();
}

}  // namespace
}  // namespace cadre
