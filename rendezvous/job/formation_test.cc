#include "rendezvous/job/formation.h"

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
  EXPECT_EQ(decision.reason, "1 more node (1 of 2 in)");
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
  // They are fewer than the job needs.
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
            "more nodes (1 in, at most 2)");
  gathering.present = 3;
  const FormationDecision form = DecideFormation(gathering, Range(1, 4), Second(0));
  EXPECT_EQ(form.kind, FormationDecision::kForm);
  EXPECT_EQ(form.size, 2u);
  EXPECT_EQ(form.reason, "all 2 nodes are in");
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

}  // namespace
}  // namespace cadre::job
