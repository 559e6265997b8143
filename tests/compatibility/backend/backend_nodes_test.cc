// init_process_group("cadre") between machines, which are network namespaces, without a launcher:
// who meets where is said by the program's own store. Needs root.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"
#include "tests/testing/node_network.h"
#include "tests/testing/pypi_python.h"
#include "tests/testing/unpacked_wheel.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Minutes(3);

class BackendNodesTest : public PypiPythonTest {
 protected:
  static void SetUpTestSuite() { entered_ = new absl::Status(NodeNetwork::EnterWith(2)); }
  void SetUp() override {
    PypiPythonTest::SetUp();
    if (IsSkipped()) return;
    if (absl::IsPermissionDenied(*entered_)) GTEST_SKIP() << entered_->message();
    ASSERT_OK(*entered_);
  }

  // A rank on each of `nodes`; node 1 serves PyTorch's store.
  void ExpectRanks(const std::vector<int>& nodes, const std::string& backend,
                   const std::string& check) {
    const std::string folder = MakeTempDir("secret");
    const std::map<std::string, std::string> environment = {
        {"PYTHONPATH", UnpackedWheel()}, {"BACKEND", backend},
        {"GLOO_SOCKET_IFNAME", "eth0"},  {"CADRE_SECRET_FILE", folder + "/secret"},
        {"XDG_RUNTIME_DIR", folder},
    };
    ASSERT_OK(SharedToken(folder + "/secret"));
    const std::string url = absl::StrCat("tcp://", NodeNetwork::AddressOf(1), ":", FreePort());
    std::vector<std::unique_ptr<Process>> ranks;
    for (size_t rank = 0; rank < nodes.size(); ++rank) {
      std::vector<std::string> argv = NodeNetwork::Inside(nodes[rank]);
      argv.insert(argv.end(), {python_, "tests/compatibility/backend/backend_script.py", "at", url,
                               absl::StrCat(rank), absl::StrCat(nodes.size()), check});
      ranks.push_back(StartProgram(argv[0], std::vector<std::string>(argv.begin() + 1, argv.end()),
                                   environment));
    }
    for (size_t rank = 0; rank < nodes.size(); ++rank) {
      ASSERT_EQ(ranks[rank]->Wait(kTimeout), 0) << OutputOf(*ranks[rank]);
      EXPECT_THAT(ranks[rank]->standard_output(),
                  HasSubstr(absl::StrCat("rank ", rank, " of ", nodes.size())));
    }
  }

  static absl::Status* entered_;
};
absl::Status* BackendNodesTest::entered_;

TEST_F(BackendNodesTest, TheRanksMeetWhereTheStoreIs) { ExpectRanks({1, 2}, "cadre", "messages"); }

TEST_F(BackendNodesTest, AGroupMeetsOnTheMachineOfItsFirstRank) {
  ExpectRanks({1, 2, 2}, "gloo", "elsewhere");
}

}  // namespace
}  // namespace cadre
