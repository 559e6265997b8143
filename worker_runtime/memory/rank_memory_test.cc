#include "worker_runtime/memory/rank_memory.h"

#include <vector>

#include "base/status_matchers.h"

namespace cadre::memory {
namespace {

using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::IsEmpty;

// Two nodes of two ranks.
const std::vector<int> kNodes = {0, 0, 1, 1};

Holding Held(int64_t rank, int64_t node, int64_t step, int64_t generation = 1) {
  return {rank, node, step, generation, 100 + rank};
}

TEST(AgreementTest, NothingIsHeld) {
  EXPECT_FALSE(Agree({}, kNodes).has_value());
  EXPECT_FALSE(Agree({Held(0, 0, 5), Held(1, 0, 5), Held(2, 1, 5)}, kNodes).has_value());
}

TEST(AgreementTest, TheNewestThatAllHave) {
  const auto agreement = Agree({Held(0, 0, 5), Held(0, 0, 6), Held(1, 0, 6), Held(1, 0, 5),
                                Held(2, 1, 5), Held(2, 1, 6), Held(3, 1, 4), Held(3, 1, 5)},
                               kNodes);
  ASSERT_TRUE(agreement.has_value());
  EXPECT_EQ(agreement->step, 5);
  EXPECT_THAT(agreement->deliveries, IsEmpty());
}

TEST(AgreementTest, ALostNodesRanksGetItFromTheirPartners_WhoTakeTurns) {
  const auto agreement =
      Agree({Held(0, 0, 5), Held(1, 0, 5), Held(2, 0, 5), Held(3, 0, 5)}, kNodes);
  ASSERT_TRUE(agreement.has_value());
  EXPECT_THAT(agreement->deliveries, ElementsAre(FieldsAre(2, 0, 102), FieldsAre(3, 1, 103)));
}

TEST(AgreementTest, WhoseRankMovedGetsItFromWhereItWas) {
  // The nodes have changed places. A state that both of them have is not sent.
  const auto agreement =
      Agree({Held(0, 1, 5), Held(1, 1, 5), Held(2, 0, 5), Held(3, 0, 5), Held(3, 1, 5)}, kNodes);
  ASSERT_TRUE(agreement.has_value());
  EXPECT_THAT(agreement->deliveries,
              ElementsAre(FieldsAre(0, 2, 100), FieldsAre(1, 3, 101), FieldsAre(2, 0, 102)));
}

// A node that was unresponsive while the others went back to step 5 and continued has later steps
// of an obsolete history.
TEST(AgreementTest, AStepOfTwoGenerationsIsNotOneState) {
  const auto agreement =
      Agree({Held(0, 0, 7, 2), Held(1, 0, 7, 2), Held(2, 1, 7, 1), Held(3, 1, 7, 1),
             Held(0, 0, 6, 2), Held(1, 0, 6, 2), Held(2, 0, 6, 2), Held(3, 0, 6, 2)},
            kNodes);
  ASSERT_TRUE(agreement.has_value());
  EXPECT_EQ(agreement->step, 6);
  EXPECT_EQ(agreement->generation, 2);
}

TEST(AgreementTest, ARankThatIsNoneOfThisWorldIsPassedOver) {
  const auto agreement = Agree({Held(0, 0, 5), Held(1, 0, 5), Held(-1, 0, 5)}, {0, 0});
  ASSERT_TRUE(agreement.has_value());
  EXPECT_FALSE(Agree({Held(0, 0, 5), Held(7, 0, 5)}, {0, 0}).has_value());
}

}  // namespace

}  // namespace cadre::memory
