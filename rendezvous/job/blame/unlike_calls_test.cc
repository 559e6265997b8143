#include "rendezvous/job/blame/unlike_calls.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::job {
namespace {

using ::testing::ElementsAre;
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

TEST(WhoHasNotCalled, AllWhoHaveNot_AlsoWhereOnlyUnfinishedCallsAreTold) {
  // As of a rank of which nothing is kept but calls that wait: of who waits for nothing there is
  // none.
  const Call ninth = {9, "all_reduce", "[4] Float", true};
  std::vector<v1::RankEvidence> ranks = Ranks({{ninth}, {ninth}});
  for (const int rank : {9, 10}) {
    ranks.emplace_back().set_rank(rank);
    AddGroup("0", 0, {}, &ranks);
  }
  const auto found = WhoHasNotCalled(ranks);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->index, 2u);
  EXPECT_THAT(found->others, ElementsAre(3u));
  EXPECT_THAT(found->why, HasSubstr("it has not called all_reduce, number 9 of process group"));
}

TEST(WhoCalledSomethingElse, AllWhoDid) {
  const Call other = {2, "all_reduce", "[1] Float", true};
  const auto found = WhoCalledSomethingElse(Ranks(
      {{kFirst, other}, {kFirst, kSecond}, {kFirst, kSecond}, {kFirst, kSecond}, {kFirst, other}}));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->index, 4u);
  EXPECT_THAT(found->others, ElementsAre(0u));
}

struct Message {
  int rank;  // who called it
  int from;
  int to;
};

// So many ranks, all of whom tell what they called, with these sends and receives under way.
std::vector<v1::RankEvidence> Talking(int size, const std::vector<Message>& messages) {
  std::vector<v1::RankEvidence> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back().set_rank(rank);
    AddGroup("0", 0, {}, &ranks);
  }
  for (const Message& message : messages) {
    v1::CollectiveCall* call = ranks[message.rank].mutable_calls(0)->add_messages();
    call->set_from(message.from);
    call->set_to(message.to);
    call->set_pending(true);
  }
  return ranks;
}

TEST(WhoHasNotMetAMessage, TheOtherEnd) {
  const auto sends = WhoHasNotMetAMessage(Talking(2, {{0, 0, 1}}));
  ASSERT_TRUE(sends.has_value());
  EXPECT_EQ(sends->index, 1u);
  EXPECT_EQ(sends->other, 0u);
  EXPECT_EQ(sends->why,
            "it has not called recv in process group default_pg, for which rank 0 waits in send");
  const auto receives = WhoHasNotMetAMessage(Talking(2, {{1, 0, 1}}));
  ASSERT_TRUE(receives.has_value());
  EXPECT_EQ(receives->index, 0u);
  EXPECT_THAT(receives->why, HasSubstr("it has not called send"));
  EXPECT_FALSE(WhoHasNotMetAMessage(Talking(2, {{0, 0, 1}, {1, 0, 1}})).has_value());
  // From any source.
  EXPECT_FALSE(WhoHasNotMetAMessage(Talking(2, {{0, 0, 1}, {1, -1, 1}})).has_value());
}

TEST(WhoHasNotMetAMessage, AlongAPipelineToTheStageThatWaitsForNobody) {
  const auto found = WhoHasNotMetAMessage(Talking(4, {{3, 2, 3}, {2, 1, 2}, {1, 0, 1}}));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->index, 0u);
  EXPECT_EQ(found->other, 1u);
  // Round in a circle somebody is named.
  EXPECT_TRUE(WhoHasNotMetAMessage(Talking(2, {{0, 1, 0}, {1, 0, 1}})).has_value());
}

TEST(WhoIsSilent, AMemberOfAGroupInWhichOthersWait_BeforeTheLowestRank) {
  auto ranks = Ranks({{kFirst, kSecond}, {kFirst, kSecond}, {}, {}});
  for (int i = 0; i < 2; ++i) {
    for (const int rank : {8, 9, 10}) ranks[i].mutable_calls(0)->add_ranks(rank);
  }
  for (v1::RankEvidence& rank : ranks) rank.set_state("R");
  const auto found = WhoIsSilent(ranks);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->index, 2u);
  EXPECT_THAT(found->others, testing::IsEmpty());  // the last is in no such group
  EXPECT_THAT(found->why,
              HasSubstr("it does not tell what it called, and rank 8 waits in all_reduce"));
  ranks[2].set_state("");
  EXPECT_FALSE(WhoIsSilent(ranks).has_value());
}

}  // namespace
}  // namespace cadre::job
