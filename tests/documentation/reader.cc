#include "tests/documentation/reader.h"

#include <signal.h>

#include <fstream>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "tests/testing/documented_commands.h"
#include "tests/testing/launch.h"
#include "tests/testing/node_network.h"
#include "tests/testing/node_shell.h"

namespace cadre {

using ::testing::HasSubstr;

std::filesystem::path Reader::start_;
std::string Reader::path_;
absl::Status* Reader::entered_;

void Reader::SetUpTestSuite() {
  start_ = std::filesystem::current_path();
  path_ = absl::StrCat(start_.string(), "/examples/mnist_cnn:", PathWith(kCadre));
  entered_ = new absl::Status(NodeNetwork::EnterWith(4));
  if (!entered_->ok()) return;
  *entered_ = NodeNetwork::NameNodes({"node1 head node0", "node2", "node3", "node4"});
  // The addresses that the pages use.
  for (const auto& [address, node] : std::map<std::string, std::string>{{"10.0.0.5", "node1"},
                                                                        {"10.0.0.6", "node2"},
                                                                        {"10.0.0.7", "node3"},
                                                                        {"10.0.0.8", "node3"},
                                                                        {"10.0.0.9", "node4"}}) {
    ProcessOptions options;
    options.argv = {"ip",  "-netns", node, "address", "add", absl::StrCat(address, "/24"),
                    "dev", "eth0"};
    const auto ip = RunToEnd(options);
    if (entered_->ok()) *entered_ = ip.status();
  }
}

void Reader::TearDownTestSuite() { delete entered_; }

void Reader::SetUp() {
  if (absl::IsPermissionDenied(*entered_)) GTEST_SKIP() << entered_->message();
  ASSERT_OK(*entered_);
  directory_ = MakeTempDir("reader");
  home_ = MakeTempDir("home");
  shell_ = MakeNodeShell();
  WriteDocumentedFiles(directory_);
  for (const char* token : {"token", "job.token"}) {
    ASSERT_EQ(On("node1", absl::StrCat("cadre token new ", token))->Wait(), 0);
  }
}

std::unique_ptr<Process> Reader::On(const std::string& node, const std::string& command) {
  ProcessOptions options;
  options.argv = {shell_, node, absl::StrCat("exec ", command)};
  options.env = {{"PATH", path_},
                 {"HOME", home_},
                 {"XDG_CACHE_HOME", absl::StrCat(home_, "/cache")},
                 {"XDG_STATE_HOME", absl::StrCat(home_, "/state")},
                 {"CADRE_CONFIG", "none"},
                 {"CADRE_SSH_COMMAND", shell_}};
  options.working_dir = directory_;
  auto process = Process::Start(options);
  EXPECT_OK(process);
  return process.ok() ? *std::move(process) : nullptr;
}

void Reader::Type(const Typed& typed) {
  const std::string command = absl::StrReplaceAll(typed.command, for_);
  std::filesystem::remove(directory_ + "/go");
  std::vector<std::unique_ptr<Process>> processes;
  for (const std::string& node : typed.nodes) processes.push_back(On(node, command));
  for (auto& process : processes) {
    EXPECT_TRUE(typed.goes.empty() || process->WaitForLine(typed.goes, kTimeout))
        << command << OutputOf(*process);
  }
  if (!typed.goes.empty()) std::ofstream(directory_ + "/go");
  if (typed.until != Until::kEnd) {
    EXPECT_TRUE(processes[0]->WaitForLine(typed.says, kTimeout))
        << command << OutputOf(*processes[0]);
  }
  std::string said;
  for (auto& process : processes) {
    if (typed.until == Until::kForever) {
      running_.push_back(std::move(process));
      continue;
    }
    if (typed.until == Until::kSpoken) process->Kill(SIGTERM);
    const std::optional<int> status = process->Wait(kTimeout);
    if (typed.until == Until::kEnd) {
      EXPECT_EQ(status, 0) << command << OutputOf(*process);
    }
    absl::StrAppend(&said, process->standard_output(), process->standard_error());
  }
  if (typed.until == Until::kEnd) {
    EXPECT_THAT(said, HasSubstr(typed.says)) << command;
  }
}

std::string Reader::Page(const std::string& page) {
  return absl::StrCat(start_.string(), "/", page);
}

void Reader::Follow(const std::string& page, const std::vector<Typed>& all) {
  FollowThose(DocumentedCommands(Page(page)), all);
}

void Reader::FollowThose(const std::vector<std::string>& lines, const std::vector<Typed>& all) {
  std::vector<std::string> documented, typed;
  for (const std::string& line : lines) {
    if (absl::StartsWith(line, "cadre ")) documented.push_back(line);
  }
  for (const Typed& one : all) typed.push_back(one.command);
  EXPECT_THAT(typed, testing::UnorderedElementsAreArray(documented));
  for (const Typed& one : all) Type(one);
}

void Reader::Validates(const std::string& yaml) {
  std::ofstream(directory_ + "/spec.yaml") << yaml;
  EXPECT_EQ(On("node1", "cadre validate spec.yaml")->Wait(kTimeout), 0) << yaml;
}

}  // namespace cadre
