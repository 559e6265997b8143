#include "rendezvous/state/state.h"

#include "gtest/gtest.h"

namespace cadre::state {
namespace {

// "a" has ranks 0 and 1, "b" has rank 2.
saved::Generation TwoNodes() {
  saved::Generation generation;
  generation.set_number(7);
  saved::Member* a = generation.add_members();
  a->set_node("a");
  a->set_slots(2);
  saved::Member* b = generation.add_members();
  b->set_node("b");
  b->set_first_rank(2);
  b->set_slots(1);
  b->set_cleared(true);
  generation.add_workers(saved::RANK_ASSIGNED);
  generation.add_workers(saved::RANK_RUNNING);
  generation.add_workers(saved::RANK_SUCCEEDED);
  return generation;
}

TEST(GenerationTest, CountsFollowFromWhatIsSaved) {
  const Generation generation(TwoNodes());
  EXPECT_EQ(generation.world_size(), 3u);
  EXPECT_EQ(generation.nodes_busy, 1u);
  EXPECT_EQ(generation.started, 2u);
  EXPECT_EQ(generation.running, 1u);
  EXPECT_EQ(generation.succeeded, 1u);
  EXPECT_EQ(generation.node_ranks.at("b"), 1u);
}

TEST(GenerationTest, EachRankIsOnOneMember) {
  const Generation generation(TwoNodes());
  EXPECT_EQ(generation.member_of(0).node(), "a");
  EXPECT_EQ(generation.member_of(1).node(), "a");
  EXPECT_EQ(generation.member_of(2).node(), "b");
}

TEST(GenerationTest, NothingHasFailedBeforeThereIsARootCause) {
  saved::Generation stopped = TwoNodes();
  stopped.mutable_stop()->set_reason("scale up");
  EXPECT_EQ(Generation(stopped).root_cause(), nullptr);
  stopped.mutable_stop()->mutable_root_cause()->set_message("rank 0 is gone");
  EXPECT_EQ(Generation(stopped).root_cause()->message(), "rank 0 is gone");
}

TEST(GenerationDeathTest, ARankThatItDoesNotHaveIsAnError) {
  const Generation generation(TwoNodes());
  EXPECT_DEATH(generation.worker(3), "rank 3 of 3");
  EXPECT_DEATH(generation.member(2), "node rank 2 of 2");
}

TEST(JobsByUserTest, LiveJobsAreCounted) {
  JobsByUser jobs;
  EXPECT_EQ(jobs.NotEnded("ann"), 0u);
  jobs.Add("ann", 0);
  jobs.Add("ann", 0);
  jobs.Add("bob", 0);
  jobs.Add("ann", 7);
  EXPECT_EQ(jobs.NotEnded("ann"), 2u);
  jobs.Remove("ann", 0);
  EXPECT_EQ(jobs.NotEnded("ann"), 1u);
  EXPECT_EQ(jobs.NotEnded("bob"), 1u);
}

TEST(JobsByUserTest, TheOldestOfWhoHasMostIsForgotten) {
  JobsByUser jobs;
  EXPECT_EQ(jobs.NextToDrop(), 0u);
  jobs.Add("ann", 1);
  jobs.Add("bob", 2);
  jobs.Add("bob", 3);
  EXPECT_EQ(jobs.NextToDrop(), 2u);
  jobs.Remove("bob", 2);
  // Both have one.
  EXPECT_EQ(jobs.NextToDrop(), 1u);
  jobs.Remove("ann", 1);
  EXPECT_EQ(jobs.NextToDrop(), 3u);
  jobs.Remove("bob", 3);
  EXPECT_EQ(jobs.NextToDrop(), 0u);
}

}  // namespace

}  // namespace cadre::state
