#include "rendezvous/web/counters.h"

#include "gmock/gmock.h"

namespace cadre::web {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

constexpr int64_t kSecond = 1000000;

v1::Record OfJob() {
  v1::Record record;
  record.set_job("job");
  return record;
}

v1::Record Formed(uint64_t generation, uint32_t slots) {
  v1::Record record = OfJob();
  saved::Generation* formed = record.mutable_generation_formed()->mutable_generation();
  formed->set_number(generation);
  formed->add_members()->set_slots(slots);
  return record;
}

v1::Record Stopped(uint64_t generation, v1::FailureCause cause, int64_t at_us) {
  v1::Record record = OfJob();
  record.mutable_stop_ordered()->set_generation(generation);
  record.mutable_stop_ordered()->set_at_us(at_us);
  record.mutable_stop_ordered()->mutable_root_cause()->set_cause(cause);
  return record;
}

v1::Record Gathering(bool counted) {
  v1::Record record = OfJob();
  record.mutable_gathering_began()->set_counted(counted);
  return record;
}

v1::Record Ran(uint64_t generation, uint32_t rank, int64_t at_us) {
  v1::Record record = OfJob();
  record.mutable_worker_ran()->set_generation(generation);
  record.mutable_worker_ran()->set_rank(rank);
  record.mutable_worker_ran()->set_at_us(at_us);
  return record;
}

v1::Record Ended(v1::JobPhase outcome) {
  v1::Record record = OfJob();
  record.mutable_job_ended()->mutable_verdict()->set_outcome(outcome);
  return record;
}

TEST(CountersTest, RecoveryLastsUntilAllWorkersOfTheNextGenerationRan) {
  Counters counters;
  for (const v1::Record& record :
       {Formed(1, 2), Ran(1, 0, 1), Ran(1, 1, 2), Stopped(1, v1::CRASH, kSecond), Gathering(true),
        Formed(2, 2), Ran(2, 0, 2 * kSecond), Ran(2, 0, 2 * kSecond)}) {
    counters.Count(record);
  }
  EXPECT_EQ(counters.recoveries().count, 0u);
  counters.Count(Ran(2, 1, 4 * kSecond));
  EXPECT_EQ(counters.recoveries().count, 1u);
  EXPECT_EQ(counters.recoveries().sum, 3.0);
  EXPECT_EQ(counters.generations(), 2u);
  counters.Count(Ended(v1::SUCCEEDED));
  EXPECT_THAT(counters.failures(), ElementsAre(Pair(v1::CRASH, 1)));
  EXPECT_THAT(counters.restarts(), ElementsAre(Pair(v1::CRASH, 1)));
  EXPECT_THAT(counters.jobs_ended(), ElementsAre(Pair(v1::SUCCEEDED, 1)));
}

TEST(CountersTest, ACorrectedCauseCountsOnce_ALostNodeMayBeFree) {
  Counters counters;
  for (const v1::Record& record : {Formed(1, 1), Stopped(1, v1::NODE_LOST, 1),
                                   Stopped(1, v1::HANG, 2), Gathering(false), Formed(2, 1)}) {
    counters.Count(record);
  }
  EXPECT_THAT(counters.failures(), ElementsAre(Pair(v1::HANG, 1)));
  EXPECT_TRUE(counters.restarts().empty());
  // Another failure before the recovery from the last one.
  counters.Count(Stopped(2, v1::CRASH, 3));
  counters.Count(Ended(v1::FAILED));
  EXPECT_THAT(counters.failures(), ElementsAre(Pair(v1::CRASH, 1), Pair(v1::HANG, 1)));
  EXPECT_THAT(counters.jobs_ended(), ElementsAre(Pair(v1::FAILED, 1)));
  EXPECT_EQ(counters.recoveries().count, 0u);
}

TEST(CountersTest, MessagesAndOperationsByKind) {
  Counters counters;
  NodeMessageReceived said;
  said.message.mutable_renew();
  counters.Count(said);
  counters.Count(said);
  said.message.mutable_store()->mutable_set();
  counters.Count(said);
  StoreCalled called;
  called.request.mutable_barrier();
  counters.Count(called);
  counters.Count(Event(Tick{}));
  EXPECT_THAT(counters.node_messages(),
              ElementsAre(Pair(v1::NodeMessage::kRenew, 2), Pair(v1::NodeMessage::kStore, 1)));
  EXPECT_THAT(counters.store_operations(),
              ElementsAre(Pair(v1::StoreRequest::kSet, 1), Pair(v1::StoreRequest::kBarrier, 1)));
}

TEST(HistogramTest, AValueOnABoundBelongsBelowIt) {
  Histogram histogram({1, 2});
  for (const double value : {0.5, 1.0, 1.5, 9.0}) histogram.Observe(value);
  EXPECT_THAT(histogram.in_bucket, ElementsAre(2, 1));
  EXPECT_EQ(histogram.count, 4u);
  EXPECT_EQ(histogram.sum, 12.0);
}

}  // namespace
}  // namespace cadre::web
