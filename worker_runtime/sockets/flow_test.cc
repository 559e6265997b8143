#include "worker_runtime/sockets/flow.h"

#include <string>

#include "worker_runtime/sockets/flow_rig.h"

namespace cadre::sockets {
namespace {

Piece Of(std::string& text, int after = 0, int step = kNoStep) {
  return {&text[0], text.size(), after, step};
}

TEST(FlowTest, PiecesArriveInTheirOrder) {
  FlowRig rig(2);
  std::string first = "first", second = "second", one(5, ' '), two(6, ' ');
  Plan sends(2), receives(2);
  sends.outgoing[1] = {Of(first), {}, Of(second)};
  receives.incoming[0] = {Of(one), {}, Of(two)};
  rig.Begin(0, std::move(sends));
  rig.Begin(1, std::move(receives));
  rig.Finish();
  EXPECT_EQ(one + two, "firstsecond");
}

TEST(FlowTest, APieceWaitsForItsStep_AndStepsAreFinishedInOrder) {
  FlowRig rig(2);
  std::string question = "question", answer = "?", heard(8, ' '), answered(1, ' ');
  std::vector<int> finished;
  Plan asks(2), answers(2);
  asks.outgoing[1] = {Of(question)};
  asks.incoming[1] = {Of(answered, 0, 1)};
  asks.steps = 2;  // the first waits for nothing
  answers.incoming[0] = {Of(heard, 0, 0)};
  answers.outgoing[0] = {Of(answer, /*after=*/1)};
  answers.steps = 1;
  answers.finish = [&](int, const std::vector<double>&) { answer[0] = heard[0]; };
  asks.finish = [&](int step, const std::vector<double>&) { finished.push_back(step); };
  Flow& answering = rig.Begin(1, std::move(answers));
  EXPECT_EQ(answering.Advance(), Flow::State::kMoved);  // its opening leaves
  EXPECT_EQ(answering.Advance(), Flow::State::kStuck);
  EXPECT_EQ(answering.awaited_peer(), 0);
  rig.Begin(0, std::move(asks));
  rig.Finish();
  EXPECT_EQ(answered, "q");
  EXPECT_EQ(finished, (std::vector<int>{0, 1}));
}

TEST(FlowTest, AStepLearnsTheFactorsOfThoseItGotSomethingFrom) {
  FlowRig rig(2);
  std::string text = "text", heard(4, ' ');
  std::vector<double> factors;
  Plan sends(2), receives(2);
  sends.outgoing[1] = {Of(text)};
  receives.incoming[0] = {Of(heard, 0, 0)};
  receives.steps = 1;
  receives.finish = [&](int, const std::vector<double>& all) { factors = all; };
  rig.Begin(0, std::move(sends), {1, 1, 0.5});
  rig.Begin(1, std::move(receives), {1, 1, 2});
  rig.Finish();
  EXPECT_EQ(factors, (std::vector<double>{0.5, 2}));
}

void ExchangeMuch(FlowRig& rig) {
  const size_t bytes = size_t{8} << 20;
  std::vector<std::string> given = {std::string(bytes, 'a'), std::string(bytes, 'b')};
  std::vector<std::string> heard(2, std::string(bytes, ' '));
  for (int rank = 0; rank < 2; ++rank) {
    Plan plan(2);
    plan.outgoing[1 - rank] = {Of(given[rank])};
    plan.incoming[1 - rank] = {Of(heard[rank])};
    rig.Begin(rank, std::move(plan));
  }
  rig.Finish();
  EXPECT_TRUE(heard[0] == given[1] && heard[1] == given[0]);
}

TEST(FlowTest, MoreThanASocketHoldsGoesBothWaysAtOnce) {
  FlowRig rig(2);
  ExchangeMuch(rig);
}

TEST(FlowTest, EncryptedItDoesSoToo_AndTheNextFlowFindsItsOwn) {
  FlowRig rig(2, /*is_encrypted=*/true);
  ExchangeMuch(rig);
  ExchangeMuch(rig);
}

TEST(FlowTest, AnotherCallIsNoticed) {
  FlowRig rig(2);
  std::string text = "text", heard(4, ' ');
  Plan sends(2), receives(2);
  sends.outgoing[1] = {Of(text)};
  receives.incoming[0] = {Of(heard)};
  EXPECT_EQ(rig.Begin(0, std::move(sends), {7, 1}).Advance(), Flow::State::kDone);
  Flow& receiving = rig.Begin(1, std::move(receives), {7, 2});
  EXPECT_EQ(receiving.Advance(), Flow::State::kDiffers);
  EXPECT_EQ(receiving.lost_peer(), 0);
  EXPECT_EQ(receiving.Advance(), Flow::State::kDiffers);
}

TEST(FlowTest, AnEndInTheMiddleIsNoticed) {
  FlowRig rig(2);
  std::string text = "text", heard(5, ' ');
  Plan sends(2), receives(2);
  sends.outgoing[1] = {Of(text)};
  receives.incoming[0] = {Of(heard)};
  rig.Begin(0, std::move(sends)).Advance();
  rig.HangUp(0);
  Flow& receiving = rig.Begin(1, std::move(receives));
  EXPECT_EQ(receiving.Advance(), Flow::State::kMoved);
  receiving.Await(0);
  EXPECT_EQ(receiving.Advance(), Flow::State::kLost);
  EXPECT_EQ(receiving.lost_peer(), 0);
  EXPECT_NE(receiving.lost_reason(), "");
}

}  // namespace
}  // namespace cadre::sockets
