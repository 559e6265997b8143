// What the core says of jobs that end, for the accounting.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/core/core.h"
#include "rendezvous/state/state_limits.h"
#include "rendezvous/testing/cluster_rig.h"

namespace cadre {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kSecond = 1000000;

class AccountsTest : public ClusterRig {
 protected:
  AccountsTest() {
    CoreConfig config;
    config.accounts = true;
    config.unix_ms_at_zero = 1000000;
    core_ = std::make_unique<Core>(config);
  }

  std::vector<v1::AccountedJob> Accounted(double at, const Event& event) {
    return Step(at, event).account;
  }
  std::vector<v1::AccountedJob> PartEnds(double at, uint64_t stream, uint64_t part) {
    v1::NodeMessage message;
    message.mutable_agent()->mutable_ended()->set_id(part);
    return Accounted(at, NodeMessageReceived{StreamId{stream}, message});
  }
};

TEST_F(AccountsTest, AJobIsAccountedWhenItEndsAndWhenItsLastLauncherHas) {
  Join(1, 1, "n0");
  Join(1, 2, "n1");
  Submit(2, Spec("j", 2));
  const std::vector<v1::AccountedJob> ended = Accounted(5, JobCancelled{"j", "enough", 0});
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_TRUE(ended[0].holds_nodes());
  EXPECT_EQ(ended[0].user(), "alice");
  EXPECT_EQ(ended[0].phase(), v1::CANCELLED_PHASE);
  EXPECT_EQ(ended[0].held_us(), 6 * kSecond);
  EXPECT_EQ(ended[0].ended_unix_ms(), 1005000);
  EXPECT_THAT(PartEnds(6, 1, 1), IsEmpty());
  const std::vector<v1::AccountedJob> whole = PartEnds(8, 2, 2);
  ASSERT_THAT(whole, SizeIs(1));
  EXPECT_FALSE(whole[0].holds_nodes());
  EXPECT_EQ(whole[0].ended_order(), ended[0].ended_order());
  EXPECT_EQ(whole[0].held_us(), 10 * kSecond);
  // Four CPUs on each node.
  EXPECT_EQ(whole[0].cpu_us(), 40 * kSecond);
  EXPECT_EQ(whole[0].nodes(), "n[0-1]");
}

TEST_F(AccountsTest, JobsThatTheStateHasDroppedWereAccounted) {
  size_t accounted = 0;
  for (size_t i = 0; i < state::kMaxEndedJobs + 50; ++i) {
    const std::string name = absl::StrCat("j", i);
    Step(1, JobSubmitted{Spec(name, 1), "alice", ""});
    accounted += Accounted(1, JobCancelled{name, "", 0}).size();
  }
  EXPECT_EQ(accounted, state::kMaxEndedJobs + 50);
  EXPECT_THAT(core_->AllStatuses(Second(1)), SizeIs(state::kMaxEndedJobs));
}

TEST_F(AccountsTest, ACoreThatIsNotAskedSaysNothing) {
  core_ = std::make_unique<Core>(CoreConfig());
  Step(1, JobSubmitted{Spec("j", 1), "alice", ""});
  EXPECT_THAT(Accounted(1, JobCancelled{"j", "", 0}), IsEmpty());
}

}  // namespace
}  // namespace cadre
