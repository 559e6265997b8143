#include "rendezvous/job/blame/early_end.h"

#include "gtest/gtest.h"

namespace cadre::job {
namespace {

// Two nodes of three ranks; these have succeeded.
state::Generation After(const std::vector<int>& succeeded) {
  saved::Generation generation;
  generation.set_number(4);
  for (int node = 0; node < 2; ++node) {
    saved::Member* member = generation.add_members();
    member->set_node(node == 0 ? "a" : "b");
    member->set_first_rank(3 * node);
    member->set_slots(3);
  }
  generation.mutable_workers()->Resize(6, saved::RANK_RUNNING);
  for (const int rank : succeeded) generation.set_workers(rank, saved::RANK_SUCCEEDED);
  return state::Generation(generation);
}

std::vector<v1::Failure> Victims(const std::vector<int>& ranks) {
  std::vector<v1::Failure> victims(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) victims[i].set_rank(ranks[i]);
  return victims;
}

TEST(EarlyEnd, TheRankThatSucceededAndThoseThatLostIt) {
  const std::optional<v1::Failure> failure = EarlyEnd(After({4}), Victims({2, 0}));
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->message(),
            "rank 4 (local rank 1) on b ended with exit code 0 in generation 4 while others were "
            "still working; ranks 0, 2 lost it");
  EXPECT_EQ(failure->rank(), 4);
  EXPECT_EQ(failure->local_rank(), 1);
  EXPECT_EQ(failure->node(), "b");
  EXPECT_EQ(failure->cause(), v1::CRASH);
}

TEST(EarlyEnd, OfManyTheFirstFew) {
  EXPECT_EQ(EarlyEnd(After({0, 1, 2, 3, 4}), Victims({5}))->message(),
            "ranks 0, 1, 2 and 2 more ended with exit code 0 in generation 4 while another was "
            "still working; rank 5 lost them");
}

TEST(EarlyEnd, NobodyWhereNoneHasSucceeded) {
  EXPECT_FALSE(EarlyEnd(After({}), Victims({1})).has_value());
}

}  // namespace
}  // namespace cadre::job
