#include "rendezvous/job/formation_decision.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace cadre::job {
namespace {

MonoTime Second(int s) { return MonoTime::FromMicros(s * int64_t{1000000}); }

state::Policy Range(uint32_t min, uint32_t max) {
  state::Policy policy;
  policy.min = min;
  policy.max = max;
  return policy;
}

TEST(FormationTest, AFixedJobFormsWhenAllAreIn) {
  Gathering gathering;
  gathering.present = 1;
  FormationDecision decision = DecideFormation(gathering, Range(2, 2), Second(1));
  EXPECT_EQ(decision.kind, FormationDecision::kWait);
  EXPECT_EQ(decision.reason, "1 more node (1 of 2 joined)");
  EXPECT_EQ(decision.again_at, Second(600));
  gathering.present = 3;
  decision = DecideFormation(gathering, Range(2, 2), Second(1));
  EXPECT_EQ(decision.kind, FormationDecision::kForm);
  EXPECT_EQ(decision.size, 2u);
}

TEST(FormationTest, AnOpenJobSettlesAfterTheLastJoin) {
  Gathering gathering;
  gathering.present = 2;
  gathering.last_join = Second(10);
  const FormationDecision wait = DecideFormation(gathering, Range(1, 4), Second(11));
  EXPECT_EQ(wait.kind, FormationDecision::kWait);
  EXPECT_EQ(wait.again_at, Second(13));
  const FormationDecision form = DecideFormation(gathering, Range(1, 4), Second(13));
  EXPECT_EQ(form.kind, FormationDecision::kForm);
  EXPECT_EQ(form.size, 2u);
}

TEST(FormationTest, NodesThatTrickleInDoNotPutItOffForEver) {
  Gathering gathering;
  gathering.present = 2;
  gathering.last_join = Second(599);
  EXPECT_EQ(DecideFormation(gathering, Range(1, 4), Second(599)).again_at, Second(600));
  EXPECT_EQ(DecideFormation(gathering, Range(1, 4), Second(600)).kind, FormationDecision::kForm);
}

TEST(FormationTest, ExpectedOrSurvivingNodesNeedNoWindow) {
  Gathering gathering;
  gathering.present = 3;
  gathering.all_expected = true;
  EXPECT_EQ(DecideFormation(gathering, Range(1, 8), Second(0)).size, 3u);
  gathering.all_expected = false;
  gathering.survivors = 2;
  EXPECT_EQ(DecideFormation(gathering, Range(1, 8), Second(0)).kind, FormationDecision::kWait);
  gathering.survivors_in = true;
  EXPECT_EQ(DecideFormation(gathering, Range(1, 8), Second(0)).size, 3u);
  // The nodes are fewer than the job needs.
  EXPECT_EQ(DecideFormation(gathering, Range(4, 8), Second(0)).kind, FormationDecision::kWait);
}

TEST(FormationTest, SurvivorsAreWaitedForThoughAllWhoWereNamedAreIn) {
  Gathering gathering;
  gathering.present = 1;
  gathering.all_expected = true;
  gathering.survivors = 3;
  EXPECT_EQ(DecideFormation(gathering, Range(1, 4), Second(0)).kind, FormationDecision::kWait);
  gathering.present = 3;
  gathering.survivors_in = true;
  EXPECT_EQ(DecideFormation(gathering, Range(1, 4), Second(0)).size, 3u);
}

TEST(FormationTest, NoMoreTakePartThanMay) {
  Gathering gathering;
  gathering.most = 2;
  gathering.present = 1;
  EXPECT_EQ(DecideFormation(gathering, Range(1, 4), Second(0)).reason,
            "more nodes (1 joined, at most 2)");
  gathering.present = 3;
  const FormationDecision form = DecideFormation(gathering, Range(1, 4), Second(0));
  EXPECT_EQ(form.kind, FormationDecision::kForm);
  EXPECT_EQ(form.size, 2u);
  EXPECT_EQ(form.reason, "all 2 nodes have joined");
}

TEST(FormationTest, TheBackoffComesFirstAndIsNotTakenFromTheNodes) {
  Gathering gathering;
  gathering.present = 2;
  gathering.not_before = Second(60);
  const FormationDecision wait = DecideFormation(gathering, Range(2, 2), Second(59));
  EXPECT_EQ(wait.kind, FormationDecision::kWait);
  EXPECT_EQ(wait.again_at, Second(60));
  EXPECT_EQ(DecideFormation(gathering, Range(2, 2), Second(60)).kind, FormationDecision::kForm);
  EXPECT_EQ(DecideFormation(gathering, Range(3, 3), Second(60)).again_at, Second(660));
}

TEST(FormationTest, GivesUpAfterTheJoinTimeout) {
  Gathering gathering;
  gathering.present = 1;
  gathering.since = Second(5);
  EXPECT_EQ(DecideFormation(gathering, Range(2, 4), Second(604)).kind, FormationDecision::kWait);
  EXPECT_EQ(DecideFormation(gathering, Range(2, 4), Second(605)).kind, FormationDecision::kGiveUp);
}

std::string Order(const RankAssignment& assignment) {
  std::string text;
  for (const saved::Member& member : assignment.members) {
    absl::StrAppend(&text, text.empty() ? "" : " ", member.node(), "@", member.first_rank());
  }
  return text;
}

RankCandidate Node(const std::string& name, uint64_t admission, uint32_t slots = 1,
                   int32_t wanted = -1) {
  return {name, name, slots, wanted, admission};
}

TEST(RanksTest, NumbersInNamesCompareAsNumbers) {
  EXPECT_LT(CompareNaturally("n2", "n10"), 0);
  EXPECT_GT(CompareNaturally("n10", "n9"), 0);
  EXPECT_EQ(CompareNaturally("n01", "n1"), 0);
  EXPECT_LT(CompareNaturally("n", "n1"), 0);
  EXPECT_LT(CompareNaturally("rack1-n9", "rack2-n1"), 0);
  EXPECT_LT(CompareNaturally("n99999999999999999998", "n99999999999999999999"), 0);
}

TEST(RanksTest, RanksAreContiguousPerNode) {
  EXPECT_EQ(Order(AssignRanks({Node("n10", 1, 3), Node("n2", 2, 8), Node("n1", 3, 1)}, {})),
            "n1@0 n2@1 n10@9");
}

TEST(RanksTest, TheHostDecidesBeforeTheNodeName) {
  RankCandidate a = Node("a", 1), b = Node("b", 2);
  a.host = "h2";
  b.host = "h1";
  EXPECT_EQ(Order(AssignRanks({a, b}, {})), "b@0 a@1");
}

TEST(RanksTest, WhoStaysKeepsItsRankAndNewcomersFillHoles) {
  EXPECT_EQ(Order(AssignRanks({Node("a", 9), Node("c", 1), Node("d", 2)}, {"c", "", "d"})),
            "c@0 a@1 d@2");
  // d's old rank no longer exists.
  EXPECT_EQ(Order(AssignRanks({Node("d", 2), Node("b", 1)}, {"a", "b", "c", "d"})), "d@0 b@1");
}

TEST(RanksTest, WishesComeFirstAndTheEarlierOfTwo) {
  const RankAssignment assignment = AssignRanks(
      {Node("a", 3, 1, 1), Node("b", 2, 1, 1), Node("c", 1), Node("d", 4, 1, 7)}, {"b", "c"});
  EXPECT_EQ(Order(assignment), "a@0 b@1 c@2 d@3");
  ASSERT_EQ(assignment.notes.size(), 2u);
  EXPECT_EQ(assignment.notes[0], "node a asked for node rank 1, which node b asked for first");
  EXPECT_EQ(assignment.notes[1], "node d asked for node rank 7, but there are only 4 nodes");
}

}  // namespace

}  // namespace cadre::job
