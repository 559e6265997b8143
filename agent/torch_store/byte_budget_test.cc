#include "agent/torch_store/byte_budget.h"

#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

TEST(ByteBudgetTest, FitsUpToTheLimitAndNoFurther) {
  ByteBudget budget(10);
  EXPECT_TRUE(budget.Fits(10));
  EXPECT_FALSE(budget.Fits(11));
  EXPECT_FALSE(budget.Fits(SIZE_MAX));
  budget.Take(4);
  EXPECT_TRUE(budget.Fits(6));
  EXPECT_FALSE(budget.Fits(7));
  budget.Give(4);
  EXPECT_EQ(budget.held(), 0u);
}

TEST(ByteBudgetTest, AValueCountsForAsLongAsSomebodyRefersToIt) {
  ByteBudget budget(100);
  auto value = std::make_shared<CountedText>("12345", &budget);
  const SharedText reader = value;
  value->Append("67");
  EXPECT_EQ(reader->text(), "1234567");
  value = nullptr;
  EXPECT_EQ(budget.held(), 7u);
}

}  // namespace
}  // namespace cadre::agent
