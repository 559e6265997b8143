#include "rendezvous/job/culprit.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::job {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct Look {
  const char* state = "S";
  double cpu = 0;
  v1::RankPhase phase = v1::RANK_PHASE_UNSPECIFIED;
  uint64_t step = 0;
  int bucket = -1;
  uint64_t collective = 0;
  double silent = 2;
  bool overdue = false;
};

std::vector<v1::RankEvidence> Ranks(const std::vector<Look>& looks) {
  std::vector<v1::RankEvidence> ranks;
  for (const Look& look : looks) {
    v1::RankEvidence rank;
    rank.set_rank(static_cast<int>(ranks.size()));
    rank.set_state(look.state);
    rank.set_cpu(look.cpu);
    rank.set_wchan("futex_wait");
    rank.set_phase(look.phase);
    rank.set_phase_seconds(look.silent);
    rank.set_step(look.step);
    rank.set_bucket(look.bucket);
    rank.set_collective(look.collective);
    rank.set_silent_seconds(look.silent);
    rank.set_overdue(look.overdue);
    ranks.push_back(rank);
  }
  return ranks;
}

Look Waits(uint64_t step, int bucket, uint64_t collective = 9) {
  return {"S", 0, v1::WAITING, step, bucket, collective, 2, true};
}
Look Computes(uint64_t step, double cpu) {
  return {cpu > 0 ? "R" : "S", cpu, v1::FORWARD, step, -1, 8, 2.5, true};
}

TEST(PickCulprit, AStoppedProcess_WhateverTheOthersDo) {
  const auto ranks =
      Ranks({Waits(5, 0), Computes(5, 1), {"T", 0, v1::FORWARD, 5, -1, 8, 2, false}});
  const Culprit culprit = PickCulprit(ranks);
  EXPECT_EQ(culprit.index, 2u);
  EXPECT_THAT(culprit.why, HasSubstr("stopped (state T)"));
}

TEST(PickCulprit, TheRankForWhichOthersWait) {
  const Culprit loop = PickCulprit(Ranks({Waits(5, 1), Computes(5, 1.0), Waits(5, 1)}));
  EXPECT_EQ(loop.index, 1u);
  EXPECT_THAT(
      loop.why,
      AllOf(HasSubstr("has not reached bucket 1 of step 5, for which 2 ranks wait"),
            HasSubstr("in the forward pass of step 5 since 2.5 s"), HasSubstr("uses 1.0 cores")));
  const Culprit asleep = PickCulprit(Ranks({Computes(5, 0), Waits(5, 0)}));
  EXPECT_EQ(asleep.index, 0u);
  EXPECT_THAT(asleep.why, HasSubstr("sleeps in futex_wait"));
}

TEST(PickCulprit, ARankAheadOfTheWaitersIsNotWhatTheyWaitFor) {
  // Rank 2 has finished step 5; rank 1 writes no progress page.
  const auto ranks = Ranks({Waits(5, 0), {}, {"S", 0, v1::BETWEEN, 6, -1, 9, 1, false}});
  EXPECT_EQ(PickCulprit(ranks).index, 1u);
}

TEST(PickCulprit, DifferentCollectives_TheOddOneOut) {
  const Culprit odd = PickCulprit(Ranks({Waits(5, 0), Waits(5, 0), Waits(5, 2)}));
  EXPECT_EQ(odd.index, 2u);
  EXPECT_THAT(odd.why, HasSubstr("do not make the same calls"));
  EXPECT_EQ(PickCulprit(Ranks({Waits(6, 0), Waits(5, 0)})).index, 1u);
}

TEST(PickCulprit, AllInTheSameCollective_SaysSo) {
  auto ranks = Ranks({Waits(5, 0), Waits(5, 0)});
  ranks[1].set_silent_seconds(3);
  const Culprit culprit = PickCulprit(ranks);
  EXPECT_EQ(culprit.index, 1u);
  EXPECT_THAT(culprit.why, HasSubstr("all ranks wait for bucket 0 of step 5"));
}

TEST(PickCulprit, WithoutPages_TheProcessorThenTheSteps) {
  EXPECT_EQ(PickCulprit(Ranks({{"S", 0, v1::RANK_PHASE_UNSPECIFIED, 7}, {"S"}})).index, 1u);
  EXPECT_EQ(PickCulprit(Ranks({{"S"}, {"R", 1, v1::RANK_PHASE_UNSPECIFIED, 7}})).index, 1u);
  EXPECT_EQ(PickCulprit(Ranks({{"S"}, {"S"}, {"R", 1.0}})).index, 2u);
  // Three poll in a collective, which keeps their cores busy.
  EXPECT_EQ(PickCulprit(Ranks({{"R", 1}, {"S", 0}, {"R", 1}, {"R", 1}})).index, 1u);
  // Only the silence tells them apart.
  Look overdue;
  overdue.overdue = true;
  EXPECT_EQ(PickCulprit(Ranks({{}, overdue, {}})).index, 1u);
}

TEST(PickCulprit, WithoutAReport_NoStepIsNamed) {
  Look silent{"T"};
  silent.silent = 30;
  auto ranks = Ranks({silent});
  EXPECT_THAT(PickCulprit(ranks).why, Not(HasSubstr("step")));
  ranks[0].set_step(3);
  EXPECT_THAT(PickCulprit(ranks).why, HasSubstr("after its report of step 3"));
}

TEST(PickCulprit, AlwaysNamesOne) {
  for (const char* state : {"", "R", "S", "D", "T", "Z"}) {
    for (const v1::RankPhase phase : {v1::RANK_PHASE_UNSPECIFIED, v1::STARTING, v1::WAITING}) {
      Look look;
      look.state = state;
      look.phase = phase;
      const Culprit culprit = PickCulprit(Ranks({look}));
      EXPECT_EQ(culprit.index, 0u);
      EXPECT_FALSE(culprit.why.empty());
    }
  }
}

TEST(WhoIsAbsent, TheFirstThatHasNotCome) {
  auto ranks = Ranks({{}, {}, {}, {}});
  EXPECT_FALSE(WhoIsAbsent(ranks).has_value());
  EXPECT_FALSE(WhoIsAbsent({}).has_value());
  ranks[2].set_absent(true);
  auto culprit = WhoIsAbsent(ranks);
  ASSERT_TRUE(culprit.has_value());
  EXPECT_EQ(culprit->index, 2u);
  EXPECT_THAT(culprit->why, HasSubstr("it has not rejoined; it sleeps"));
  ranks[1].set_absent(true);
  culprit = WhoIsAbsent(ranks);
  ASSERT_TRUE(culprit.has_value());
  EXPECT_EQ(culprit->index, 1u);
  EXPECT_THAT(culprit->why, HasSubstr("nor has 1 other; it sleeps"));
}

v1::RankEvidence Python(v1::PythonActivity activity, const std::string& what,
                        const std::string& where) {
  v1::RankEvidence rank = Ranks({{}})[0];
  rank.set_python(activity);
  rank.set_python_what(what);
  rank.set_python_where(where);
  return rank;
}
v1::RankEvidence Reduces(const std::string& where = "train.py:12 in step") {
  return Python(v1::IN_COLLECTIVE, "all_reduce", where);
}

TEST(PickCulprit, ByPythonsStacks_TheRankThatHasNotEnteredTheCollective) {
  const Culprit culprit = PickCulprit(
      {Reduces(), Python(v1::IN_DATA_LOADER, "time.sleep(100)", "data.py:3 in load"), Reduces()});
  EXPECT_EQ(culprit.index, 1u);
  EXPECT_THAT(culprit.why,
              HasSubstr("it is in its data loader: time.sleep(100) (data.py:3 in load) while rank "
                        "0 waits in all_reduce (train.py:12 in step), as 1 other does; "));
  EXPECT_EQ(
      PickCulprit({Python(v1::IN_OWN_CODE, "while True:", "train.py:9 in f"), Reduces()}).index,
      0u);
}

TEST(PickCulprit, ByPythonsStacks_TheRankInAnotherCollective) {
  const Culprit culprit =
      PickCulprit({Reduces(), Reduces(), Python(v1::IN_COLLECTIVE, "barrier", "train.py:20 in f")});
  EXPECT_EQ(culprit.index, 2u);
  EXPECT_THAT(culprit.why,
              HasSubstr("it waits in barrier (train.py:20 in f) while rank 0 waits in "
                        "all_reduce (train.py:12 in step): they do not make the same"));
  const Culprit two = PickCulprit({Reduces("a.py:1 in f"), Reduces("b.py:2 in g")});
  EXPECT_THAT(two.why, AllOf(HasSubstr("a.py:1 in f"), HasSubstr("b.py:2 in g")));
}

// Two ranks on a GPU looked like this when one left out the first call of a sub-group.
TEST(PickCulprit, WhoseCallHasNotBegun_ItsCommunicatorIsBeingFormed) {
  const auto record = [](v1::RankEvidence* rank, const std::vector<bool>& pending) {
    v1::ProcessGroupCalls* const group = rank->add_calls();
    group->set_group("0");
    group->set_description("default_pg");
    group->set_last(pending.size());
    for (const bool one : pending) {
      v1::CollectiveCall* const call = group->add_calls();
      call->set_number(static_cast<uint64_t>(group->calls_size()));
      call->set_name("all_reduce");
      call->set_shape("[4] Float");
      call->set_pending(one);
    }
  };
  std::vector<v1::RankEvidence> ranks = {Reduces("train.py:3 in pair"), Reduces()};
  ranks[0].set_cpu(1);
  record(&ranks[0], {false});
  record(&ranks[1], {false, true});
  const Culprit culprit = PickCulprit(ranks);
  EXPECT_EQ(culprit.index, 0u);
  EXPECT_THAT(culprit.why,
              AllOf(HasSubstr("it has not called all_reduce, number 2"),
                    HasSubstr("its own call has not begun: the communicator of that group is still "
                              "being formed"),
                    HasSubstr("it uses 1.0 cores to wait")));
}

TEST(PickCulprit, WithoutAPage_ThePlaceIsThePythonLine) {
  v1::RankEvidence loop = Python(v1::IN_OWN_CODE, "while True: pass", "train.py:4 in <module>");
  loop.set_cpu(1);
  EXPECT_THAT(
      PickCulprit({Python(v1::IN_OWN_CODE, "time.sleep(60)", "train.py:5 in <module>"), loop}).why,
      HasSubstr("(1 other asleep); it is at while True: pass (train.py:4 in <module>)"));
}

TEST(PickCulprit, ByPythonsStacks_NobodyWhileOneImports) {
  EXPECT_THAT(PickCulprit({Reduces(), Python(v1::IMPORTING, "import torch", "train.py:1 in <m>"),
                           Python(v1::IN_OWN_CODE, "x()", "train.py:2 in <m>")})
                  .why,
              Not(HasSubstr("all_reduce")));
}

TEST(PickCulprit, ByPythonsStacks_WhereAllWaitForTheSameThatIsSaid) {
  EXPECT_THAT(PickCulprit({Reduces(), Reduces(), Reduces()}).why,
              AllOf(HasSubstr("it waits in all_reduce (train.py:12 in step), as all others do"),
                    HasSubstr("TORCH_DISTRIBUTED_DEBUG=DETAIL"), Not(HasSubstr("while rank"))));
  // Any other difference takes precedence.
  std::vector<v1::RankEvidence> ranks = {Reduces(), Reduces(), Reduces()};
  for (size_t i = 0; i < ranks.size(); ++i) {
    ranks[i].set_silent_seconds(3);
    ranks[i].set_step(i == 1 ? 4 : 9);
  }
  EXPECT_EQ(PickCulprit(ranks).index, 1u);
  EXPECT_THAT(PickCulprit({Reduces()}).why, Not(HasSubstr("others")));
}

v1::RankEvidence InPython(int rank, v1::PythonActivity activity, const std::string& what,
                          const std::string& where) {
  v1::RankEvidence evidence = Ranks({{}})[0];
  evidence.set_rank(rank);
  evidence.set_python(activity);
  evidence.set_python_what(what);
  evidence.set_python_where(where);
  return evidence;
}

// Fault (collective): Several ranks are to blame for a hang -> All of them are named
TEST(PickCulprit, AllWhoAreToBlameAreNamed) {
  const auto waits = [](int rank) {
    return InPython(rank, v1::IN_COLLECTIVE, "all_reduce", "train.py:3 in step");
  };
  const auto sleeps = [](int rank) {
    return InPython(rank, v1::IN_OWN_CODE, "time.sleep(9)", "train.py:7 in main");
  };
  const Culprit outside = PickCulprit({waits(0), sleeps(1), waits(2), sleeps(3)});
  EXPECT_EQ(outside.index, 1u);
  EXPECT_THAT(outside.others, testing::ElementsAre(3u));
  EXPECT_THAT(PickCulprit({waits(0), sleeps(1)}).others, testing::IsEmpty());
  EXPECT_THAT(PickCulprit(Ranks({Waits(5, 1), Computes(5, 1), Computes(5, 1)})).others,
              testing::SizeIs(1));
  EXPECT_THAT(PickCulprit(Ranks({{"T"}, {"S"}, {"T"}})).others, testing::SizeIs(1));
}

TEST(StandstillText, WhoIsWaitedForAndWhere) {
  const auto waits = [](int rank, const char* what) {
    return InPython(rank, v1::IN_COLLECTIVE, what, "train.py:3 in step");
  };
  v1::RankEvidence late = InPython(1, v1::IN_OWN_CODE, "time.sleep(9)", "hang.py:7 in main");
  EXPECT_EQ(StandstillText({waits(0, "all_reduce"), late, waits(2, "all_reduce")}),
            "rank 1 at hang.py:7, 2 ranks wait for it in all_reduce");
  EXPECT_EQ(StandstillText({waits(0, "all_reduce"), late, waits(2, "barrier")}),
            "rank 1 at hang.py:7, 2 ranks wait for it");
  v1::RankEvidence other = late;
  other.set_rank(3);
  EXPECT_EQ(StandstillText({waits(0, "all_reduce"), late, other}),
            "rank 1 at hang.py:7 and 1 other, 1 rank waits for them in all_reduce");
  late.set_state("T");
  EXPECT_EQ(StandstillText({waits(0, "all_reduce"), late}),
            "rank 1 is stopped (state T), 1 rank waits for it in all_reduce");
  late.set_state("S");
  late.set_python(v1::IN_DATA_LOADER);
  EXPECT_EQ(StandstillText({waits(0, "all_reduce"), late}),
            "rank 1 at hang.py:7 in its data loader, 1 rank waits for it in all_reduce");
}

TEST(StandstillText, ByThePages) {
  EXPECT_EQ(StandstillText(Ranks({Waits(5, 1), Computes(5, 0), Waits(5, 1)})),
            "rank 1 in the forward pass of step 5, 2 ranks wait for it in bucket 1 of step 5");
}

TEST(StandstillText, WhereAllWaitOrNobodyDoes) {
  const auto waits = [](int rank) {
    return InPython(rank, v1::IN_COLLECTIVE, "all_reduce", "train.py:3 in step");
  };
  EXPECT_THAT(StandstillText({waits(0), waits(1)}),
              testing::StartsWith("rank 0 waits in all_reduce (train.py:3 in step), as all others "
                                  "do, and nothing tells them apart"));
  EXPECT_THAT(StandstillText({InPython(4, v1::IN_OWN_CODE, "f()", "a.py:1 in g")}),
              testing::StartsWith("rank 4 sleeps in futex_wait, at f() (a.py:1 in g)"));
}

struct Call {
  uint64_t number;
  const char* name;
  const char* shape;
  bool pending = false;
};

// Adds a group to the last rank.
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

// Returns one rank for each of these, with its calls in the default group.
std::vector<v1::RankEvidence> Calling(const std::vector<std::vector<Call>>& all) {
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
      Calling({{kFirst, kSecond},
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
      WhoCalledSomethingElse(Calling({{kFirst, {2, "barrier", "", true}}, {kFirst, kSecond}, {}}));
  ASSERT_TRUE(found.has_value());
  // Of two ranks that differ the second is named, with what both called.
  EXPECT_EQ(found->index, 1u);
  EXPECT_EQ(found->other, 0u);
  EXPECT_THAT(found->why, HasSubstr("it called all_reduce with [4] Float as number 2 of process "
                                    "group default_pg, and rank 8 barrier: they"));
}

TEST(WhoCalledSomethingElse, OnlyCallsOfOneGroupAndNumberAreCompared) {
  auto ranks = Calling({{kFirst, kSecond}, {kSecond}});
  AddGroup("1", 2, {{2, "broadcast", "[9] Int"}}, &ranks);
  EXPECT_FALSE(WhoCalledSomethingElse(ranks).has_value());
  EXPECT_FALSE(WhoCalledSomethingElse(Calling({{}, {}})).has_value());
}

TEST(WhoHasNotCalled, TheOneThatIsNotInTheCallInWhichOthersWait) {
  const auto found = WhoHasNotCalled(Calling({{kFirst, kSecond}, {kFirst, kSecond}, {kFirst}}));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->index, 2u);
  EXPECT_EQ(found->other, 0u);
  EXPECT_EQ(found->why,
            "it has not called all_reduce, number 2 of process group default_pg, in "
            "which 2 ranks wait");
}

TEST(WhoHasNotCalled, NobodyWhereAllWaitInOneCall_ThoughSomeHaveCalledMore) {
  const Call third = {3, "all_reduce", "[4] Float", true};
  EXPECT_FALSE(WhoHasNotCalled(Calling({{kFirst, kSecond, third}, {kFirst, kSecond}})).has_value());
  EXPECT_FALSE(WhoHasNotCalled(Calling({{kFirst, kSecond}, {kFirst, kSecond}})).has_value());
  EXPECT_FALSE(WhoHasNotCalled(Calling({{kFirst}, {}})).has_value());
}

TEST(WhoHasNotCalled, WhereRanksWaitInTwoGroupsItIsTheOneMissingInTheSmaller) {
  // The first waits in the sub-group, the third left that call out, and all but the first have got
  // further.
  const Call barrier = {1, "barrier", "", true};
  auto ranks = Calling({{}, {barrier}, {barrier}});
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
  // Only pending calls are reported, as for some ranks; a rank that waits for nothing has none.
  const Call ninth = {9, "all_reduce", "[4] Float", true};
  std::vector<v1::RankEvidence> ranks = Calling({{ninth}, {ninth}});
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
  const auto found = WhoCalledSomethingElse(Calling(
      {{kFirst, other}, {kFirst, kSecond}, {kFirst, kSecond}, {kFirst, kSecond}, {kFirst, other}}));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->index, 4u);
  EXPECT_THAT(found->others, ElementsAre(0u));
}

struct Message {
  int rank;  // the rank that called it
  int from;
  int to;
};

// Returns so many ranks that all report their calls, with these sends and receives under way.
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
  // The receive is from any source.
  EXPECT_FALSE(WhoHasNotMetAMessage(Talking(2, {{0, 0, 1}, {1, -1, 1}})).has_value());
}

// Fault (collective): Ranks of a pipeline send and receive, and one never meets another's message
// -> The rank at the end of the chain of those that wait for each other is named
TEST(WhoHasNotMetAMessage, AlongAPipelineToTheStageThatWaitsForNobody) {
  const auto found = WhoHasNotMetAMessage(Talking(4, {{3, 2, 3}, {2, 1, 2}, {1, 0, 1}}));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->index, 0u);
  EXPECT_EQ(found->other, 1u);
  // If ranks wait in a circle, one of them is named.
  EXPECT_TRUE(WhoHasNotMetAMessage(Talking(2, {{0, 1, 0}, {1, 0, 1}})).has_value());
}

// Fault (collective): One rank of a hanging group reports nothing about its calls -> The silent
// rank is named, before the lowest rank
TEST(WhoIsSilent, AMemberOfAGroupInWhichOthersWait_BeforeTheLowestRank) {
  auto ranks = Calling({{kFirst, kSecond}, {kFirst, kSecond}, {}, {}});
  for (int i = 0; i < 2; ++i) {
    for (const int rank : {8, 9, 10}) ranks[i].mutable_calls(0)->add_ranks(rank);
  }
  for (v1::RankEvidence& rank : ranks) rank.set_state("R");
  const auto found = WhoIsSilent(ranks);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->index, 2u);
  EXPECT_THAT(found->others, testing::IsEmpty());  // the last is in no such group
  EXPECT_THAT(found->why,
              HasSubstr("it does not report what it called, and rank 8 waits in all_reduce"));
  ranks[2].set_state("");
  EXPECT_FALSE(WhoIsSilent(ranks).has_value());
}

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
