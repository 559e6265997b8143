#include "worker_runtime/reduce/bucket_queue.h"

#include <chrono>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::reduce {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class BucketQueueTest : public ::testing::Test {
 protected:
  // Which are started by it.
  std::vector<size_t> Complete(size_t bucket) {
    queue_.CompleteOne(bucket);
    std::vector<size_t> started;
    queue_.StartNext([&](size_t next) {
      started.push_back(next);
      return StartedBucket{works_[next], 10 + next};
    });
    return started;
  }

  BucketQueue queue_;
  const std::vector<std::shared_ptr<Work>> works_ = {std::make_shared<Work>(), nullptr,
                                                     std::make_shared<Work>()};
};

TEST_F(BucketQueueTest, StartsInOrderWhatIsComplete) {
  for (int step = 0; step < 2; ++step) {
    queue_.Begin({{4, 3}, {2}, {1, 0}});
    EXPECT_THAT(Complete(2), IsEmpty());
    EXPECT_THAT(Complete(1), IsEmpty());
    EXPECT_THAT(Complete(0), IsEmpty());
    EXPECT_THAT(Complete(0), ElementsAre(0, 1));
    EXPECT_EQ(queue_.started(0).work, works_[0]);
    EXPECT_EQ(queue_.started(1).sequence, 11);
    EXPECT_EQ(queue_.started(2).work, nullptr);
    EXPECT_THAT(Complete(2), ElementsAre(2));
  }
}

TEST_F(BucketQueueTest, KnowsWhetherOneRuns) {
  queue_.Begin({{2}, {1}, {0}});
  EXPECT_FALSE(queue_.any_runs());
  for (size_t bucket = 0; bucket < 3; ++bucket) Complete(bucket);
  works_[0]->Complete(OkStatus(), std::chrono::nanoseconds(0));
  EXPECT_TRUE(queue_.any_runs());
  queue_.Wait(std::chrono::nanoseconds(0));
  EXPECT_TRUE(queue_.any_runs());
  works_[2]->Complete(AbortedError("failed"), std::chrono::nanoseconds(0));
  EXPECT_FALSE(queue_.any_runs());
  queue_.Wait(std::chrono::nanoseconds::max());
}

}  // namespace
}  // namespace cadre::reduce
