#include "rendezvous/job/blame/unlike_calls.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::job {
namespace {

using ::testing::HasSubstr;

struct Call {
  uint64_t number;
  const char* name;
  const char* shape;
  bool pending = false;
};

// Adds to the last rank.
void AddGroup(const char* group, uint64_t last, const std::vector<Call>& calls,
              std::vector<v1::RankEvidence>* ranks) {
  v1::ProcessGroupCalls* added = ranks->back().add_calls();
  added->set_group(group);
  added->set_description(std::string(group) == "0" ? "default_pg" : "5 (ranks 7, 8)");
  added->set_last(last);
  for (const Call& call : calls) {
    v1::CollectiveCall* one = added->add_calls();
    one->set_number(call.number);
    one->set_name(call.name);
    one->set_shape(call.shape);
    one->set_pending(call.pending);
  }
}

// A rank for each of these, with what it called in the default group.
std::vector<v1::RankEvidence> Ranks(const std::vector<std::vector<Call>>& all) {
  std::vector<v1::RankEvidence> ranks;
  for (const std::vector<Call>& calls : all) {
    ranks.emplace_back().set_rank(static_cast<int>(ranks.size()) + 7);
    if (!calls.empty()) AddGroup("0", calls.back().number, calls, &ranks);
  }
  return ranks;
}

constexpr Call kFirst = {1, "all_reduce", "[4] Float"};
constexpr Call kSecond = {2, "all_reduce", "[4] Float", true};

TEST(WhoCalledSomethingElse, TheOneWithAnotherShape_ThoughItIsInTheNextCall) {
  const auto found = WhoCalledSomethingElse(
      Ranks({{kFirst, kSecond},
             {kFirst, {2, "all_reduce", "[1] Float"}, {3, "all_reduce", "[4] Float", true}},
             {kFirst, kSecond}}));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->index, 1u);
  EXPECT_EQ(found->other, 0u);
  EXPECT_THAT(found->why,
              HasSubstr("it called all_reduce with [1] Float as number 2 of process group "
                        "default_pg, and rank 8 with [4] Float: they do not make the same calls"));
}

TEST(WhoCalledSomethingElse, TheOneWithAnotherCall_WhichNeedsNoShape) {
  const auto found =
      WhoCalledSomethingElse(Ranks({{kFirst, {2, "barrier", "", true}}, {kFirst, kSecond}, {}}));
  ASSERT_TRUE(found.has_value());
  // Of two who differ the second is named, with what both called.
  EXPECT_EQ(found->index, 1u);
  EXPECT_EQ(found->other, 0u);
  EXPECT_THAT(found->why, HasSubstr("it called all_reduce with [4] Float as number 2 of process "
                                    "group default_pg, and rank 8 barrier: they"));
}

TEST(WhoCalledSomethingElse, OnlyCallsOfOneGroupAndNumberAreCompared) {
  auto ranks = Ranks({{kFirst, kSecond}, {kSecond}});
  AddGroup("1", 2, {{2, "broadcast", "[9] Int"}}, &ranks);
  EXPECT_FALSE(WhoCalledSomethingElse(ranks).has_value());
  EXPECT_FALSE(WhoCalledSomethingElse(Ranks({{}, {}})).has_value());
}

TEST(WhoHasNotCalled, TheOneThatIsNotInTheCallInWhichOthersWait) {
  const auto found = WhoHasNotCalled(Ranks({{kFirst, kSecond}, {kFirst, kSecond}, {kFirst}}));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->index, 2u);
  EXPECT_EQ(found->other, 0u);
  EXPECT_EQ(found->why,
            "it has not called all_reduce, number 2 of process group default_pg, in "
            "which 2 ranks wait");
}

TEST(WhoHasNotCalled, NobodyWhereAllWaitInOneCall_ThoughSomeHaveCalledMore) {
  const Call third = {3, "all_reduce", "[4] Float", true};
  EXPECT_FALSE(WhoHasNotCalled(Ranks({{kFirst, kSecond, third}, {kFirst, kSecond}})).has_value());
  EXPECT_FALSE(WhoHasNotCalled(Ranks({{kFirst, kSecond}, {kFirst, kSecond}})).has_value());
  EXPECT_FALSE(WhoHasNotCalled(Ranks({{kFirst}, {}})).has_value());
}

TEST(WhoHasNotCalled, WhereRanksWaitInTwoGroupsItIsTheOneMissingInTheSmaller) {
  // The first waits in the sub-group, the third left that out, and all but the first are further.
  const Call barrier = {1, "barrier", "", true};
  auto ranks = Ranks({{}, {barrier}, {barrier}});
  ranks[0].clear_calls();
  std::vector<v1::RankEvidence> first = {ranks[0]}, third = {ranks[2]};
  AddGroup("0", 0, {}, &first);
  AddGroup("5", 1, {{1, "all_reduce", "[4] Float", true}}, &first);
  AddGroup("5", 0, {}, &third);
  const auto found = WhoHasNotCalled({first[0], ranks[1], third[0]});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->index, 2u);
  EXPECT_THAT(found->why, HasSubstr("it has not called all_reduce, number 1 of process group 5 "));
}

TEST(WhoHasNotCalled, OfASubGroupItIsSaidWhoIsInIt) {
  std::vector<v1::RankEvidence> ranks(1);
  AddGroup("5", 2, {{2, "broadcast", "", true}}, &ranks);
  ranks.emplace_back();
  AddGroup("5", 1, {{1, "broadcast", ""}}, &ranks);
  const auto found = WhoHasNotCalled(ranks);
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(found->why, HasSubstr("process group 5 (ranks 7, 8), in which 1 rank waits"));
}

}  // namespace
}  // namespace cadre::job
