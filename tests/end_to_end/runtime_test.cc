// The C++ runtime's way to the server and back: worker, agent's socket, stream, core.
#include <signal.h>

#include <set>

#include "absl/strings/match.h"
#include "base/status_matchers.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kEarlyEnd[] = "tests/end_to_end/early_end";
constexpr char kRuntimeProbe[] = "tests/end_to_end/runtime_probe";

// The text after nccl= in each of `count` lines.
std::set<std::string> NcclIds(Process& node, size_t count) {
  std::set<std::string> ids;
  const std::vector<std::string> lines = node.WaitForLines("runtime ok", count, absl::Seconds(60));
  EXPECT_EQ(lines.size(), count) << OutputOf(node);
  for (const std::string& line : lines) ids.insert(line.substr(line.find("nccl=") + 5));
  return ids;
}

TEST(RuntimeTest, TwoNodesByTwo_StoreBarrierReduceAndOneNcclIdForAll) {
  const int port = FreePort();
  const std::map<std::string, std::string> env = {{"NCCL_SOCKET_IFNAME", "lo"}};
  auto a = StartNode(port, "2", 0, {"--nproc-per-node", "2", "--", kRuntimeProbe}, env);
  auto b = StartNode(port, "2", 1, {"--nproc-per-node", "2", "--", kRuntimeProbe}, env);
  std::set<std::string> ids = NcclIds(*a, 2);
  ids.merge(NcclIds(*b, 2));
  EXPECT_EQ(a->Wait(absl::Seconds(60)), 0) << OutputOf(*a);
  EXPECT_EQ(b->Wait(absl::Seconds(60)), 0) << OutputOf(*b);
  ASSERT_EQ(ids.size(), 1u) << "every rank has the same id, or the same reason for having none";
  if (!absl::StrContains(*ids.begin(), ":")) {
    EXPECT_EQ(ids.begin()->size(), 256u) << "128 bytes";
  } else {
    GTEST_SKIP() << "no NCCL here: " << *ids.begin();
  }
}

// The others fail because of it, and are not faster.
//
// Fault (collective): A rank ends because of its own error, and the other ranks' collectives fail
// in consequence -> The others wait for the end of that rank's process, for as long as
// `worker_runtime/backend/exit_grace.h` says, so that it is the cause on record
TEST(RuntimeTest, OneRankEndsForAnErrorOfItsOwn_IsTheCause) {
  for (const std::string backend : {"shared_memory", "sockets"}) {
    auto run = StartStandalone(
        {"--nproc-per-node", "3", "--log-dir", MakeTempDir("logs"), "--", kEarlyEnd, backend});
    EXPECT_EQ(run->Wait(absl::Seconds(60)), 1) << OutputOf(*run);
    EXPECT_THAT(run->standard_error(),
                AllOf(HasSubstr("failed: rank 1 "),
                      HasSubstr("| early_end: NOT_FOUND: cannot read shard 7")))
        << backend;
  }
}

// As where one has less data than the others.
TEST(RuntimeTest, OneRankEndsInOrderBeforeTheOthers_IsTheCause) {
  for (const char* backend : {"shared_memory", "sockets"}) {
    const auto run = StartStandalone({"--nproc-per-node", "3", "--log-dir", MakeTempDir("logs"),
                                      "--", kEarlyEnd, backend, "in_order"});
    EXPECT_EQ(run->Wait(), 1) << OutputOf(*run);
    EXPECT_THAT(run->standard_error(),
                HasSubstr(" ended with exit code 0 in generation 1 while others were still"))
        << backend;
  }
}

TEST(RuntimeTest, NotStartedByCadre_SaysSo) {
  auto run = RunToEnd({{kRuntimeProbe}, {{"CADRE_AGENT", ""}}, "", false});
  ASSERT_OK(run);
  EXPECT_EQ((*run)->Wait(), 1);
  EXPECT_THAT((*run)->standard_error(), HasSubstr("cadre run"));
}

}  // namespace
}  // namespace cadre
