// Types the commands of the documentation's pages as a reader would. Nodes are network namespaces,
// so it needs root; skipped without.
#ifndef CADRE_TESTS_DOCUMENTATION_READER_H_
#define CADRE_TESTS_DOCUMENTATION_READER_H_

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {

enum class Until { kEnd, kSpoken, kForever };

// A command of the page, without its comment.
struct Typed {
  std::string command;
  // What some node's launcher then says.
  std::string says;
  std::vector<std::string> nodes = {"node1"};
  // kSpoken: it is stopped then; kForever: with the test.
  Until until = Until::kEnd;
  // If given, the program may end ("go") when each node's launcher has said it: what is a moment
  // late finds a job that has not ended without it.
  std::string goes = "";
};

class Reader : public testing::Test {
 protected:
  static constexpr absl::Duration kTimeout = absl::Minutes(1);

  static void SetUpTestSuite();
  static void TearDownTestSuite();
  void SetUp() override;
  // Servers and clients of one machine find each other by its loopback token.
  void TearDown() override { running_.clear(); }

  std::unique_ptr<Process> On(const std::string& node, const std::string& command);
  void Type(const Typed& typed);

  static std::string Page(const std::string& page);
  // The page's commands, in whatever order they make sense.
  void Follow(const std::string& page, const std::vector<Typed>& all);
  void FollowThose(const std::vector<std::string>& lines, const std::vector<Typed>& all);
  void Validates(const std::string& yaml);

  std::string directory_, home_, shell_;
  // What a reader puts in place of what stands for something else.
  std::map<std::string, std::string> for_ = {{" …", " train.py"}};
  std::vector<std::unique_ptr<Process>> running_;

 private:
  static std::filesystem::path start_;
  static std::string path_;
  static absl::Status* entered_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_DOCUMENTATION_READER_H_
