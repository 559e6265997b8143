#include "cadre/nccl/unique_id.h"

#include <stdlib.h>

#include <chrono>
#include <vector>

#include "base/status_matchers.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::nccl {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

class NcclUniqueIdTest : public ::testing::Test {
 protected:
  // NCCL binds an interface even for the id alone; a test machine may have no other.
  static void SetUpTestSuite() { setenv("NCCL_SOCKET_IFNAME", "lo", 1); }
};

TEST_F(NcclUniqueIdTest, MintsDifferentIds) {
  const auto one = MintNcclUniqueId();
  if (one.status().code() == StatusCode::kNotFound ||
      one.status().code() == StatusCode::kUnimplemented) {
    GTEST_SKIP() << one.status();
  }
  ASSERT_OK(one);
  const auto other = MintNcclUniqueId();
  ASSERT_OK(other);
  EXPECT_EQ(one->size(), kNcclUniqueIdBytes);
  EXPECT_NE(*one, *other);
}

TEST_F(NcclUniqueIdTest, AllRanksGetWhatRankZeroMinted) {
  testing::InProcessWorkers workers(3);
  std::vector<Result<std::string>> ids(3);
  workers.Run(
      [&ids](Worker& worker) { ids[worker.rank()] = ShareNcclUniqueId(worker, "world", kLong); });
  if (!ids[0].ok()) {
    EXPECT_EQ(ids[1].status(), ids[0].status());
    GTEST_SKIP() << ids[0].status();
  }
  ASSERT_OK(ids[1]);
  ASSERT_OK(ids[2]);
  EXPECT_EQ(*ids[1], *ids[0]);
  EXPECT_EQ(*ids[2], *ids[0]);
}

TEST_F(NcclUniqueIdTest, AllHearWhyRankZeroCannot) {
  testing::InProcessWorkers workers(2);
  ASSERT_OK(workers.worker(0).PublishCommunicatorId("world", "no id: 5 NCCL was not found"));
  EXPECT_THAT(ShareNcclUniqueId(workers.worker(1), "world", kLong),
              StatusIs(StatusCode::kNotFound, "rank 0: NCCL was not found"));
  ASSERT_OK(workers.worker(0).PublishCommunicatorId("odd", "abc"));
  EXPECT_THAT(ShareNcclUniqueId(workers.worker(1), "odd", kLong),
              StatusIs(StatusCode::kInternal, HasSubstr("3 bytes")));
}

TEST_F(NcclUniqueIdTest, WaitingEnds) {
  testing::InProcessWorkers workers(2);
  EXPECT_THAT(ShareNcclUniqueId(workers.worker(1), "world", std::chrono::milliseconds(1)),
              StatusIs(StatusCode::kDeadlineExceeded));
}

}  // namespace
}  // namespace cadre::nccl
