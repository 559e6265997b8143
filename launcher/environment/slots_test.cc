#include "launcher/environment/slots.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "launcher/spec/scalars.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

Machine With(uint32_t gpus, uint32_t cores) {
  return {[gpus] {
            return GpuCount{gpus, gpus == 0 ? "no driver" : ""};
          },
          [cores]() -> absl::StatusOr<uint32_t> { return cores; }};
}

v1::JobSpec Job(const char* workers, uint32_t gpus_each = 0) {
  v1::JobSpec job;
  *job.mutable_workers_per_node() = *ParseWorkersPerNode(workers);
  job.mutable_resources()->set_gpus_per_worker(gpus_each);
  return job;
}

TEST(SlotsTest, Counts) {
  EXPECT_EQ(*CountSlots(Job("3"), false, With(0, 2)), 3u);
  EXPECT_EQ(*CountSlots(Job("gpu"), false, With(8, 2)), 8u);
  EXPECT_EQ(*CountSlots(Job("gpu", 2), false, With(8, 2)), 4u);
  EXPECT_EQ(*CountSlots(Job("cpu"), false, With(8, 2)), 2u);
  EXPECT_EQ(*CountSlots(Job("auto"), false, With(8, 2)), 8u);
  EXPECT_EQ(*CountSlots(Job("auto"), false, With(0, 2)), 2u);
  EXPECT_EQ(*CountSlots(Job("2"), true, With(0, 2)), 2u);
}

TEST(SlotsTest, PlainCount_AsksNobody) { EXPECT_EQ(*CountSlots(Job("2"), false, Machine{}), 2u); }

TEST(SlotsTest, TooFewGpus_NamesBothNumbers) {
  EXPECT_THAT(CountSlots(Job("gpu"), false, With(0, 2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 GPUs (no driver)")));
  EXPECT_THAT(CountSlots(Job("4", 2), false, With(6, 2)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("4 workers need 8 GPUs, but this node has 6")));
  EXPECT_THAT(CountSlots(Job("4"), true, With(2, 2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4 GPUs")));
}

TEST(SlotsTest, TooFewToBindTo_IsSaidBeforeTheJobForms) {
  v1::JobSpec job = Job("3");
  EXPECT_OK(CheckBinding(job, 3, Machine{}));
  job.mutable_placement()->set_bind("core");
  EXPECT_OK(CheckBinding(job, 2, With(0, 2)));
  EXPECT_THAT(CheckBinding(job, 3, With(0, 2)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("each of 3 workers, but only 2 may be used here")));
  job.mutable_placement()->set_bind("gpu");
  EXPECT_OK(CheckBinding(job, 3, With(3, 2)));
  EXPECT_THAT(CheckBinding(job, 1, With(0, 2)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("placement.bind=gpu: 1 worker needs 1 GPU, but this node has 0")));
}

}  // namespace
}  // namespace cadre::launcher
