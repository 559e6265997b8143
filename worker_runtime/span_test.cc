#include "cadre/span.h"

#include <array>
#include <string>
#include <type_traits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

int Sum(Span<const int> numbers) {
  int sum = 0;
  for (const int number : numbers) sum += number;
  return sum;
}

TEST(SpanTest, IsMadeFromWhateverLiesInOneRow) {
  const std::vector<int> vector = {1, 2, 3};
  const std::array<int, 2> array = {4, 5};
  int plain[] = {6, 7};
  EXPECT_EQ(Sum(vector), 6);
  EXPECT_EQ(Sum(array), 9);
  EXPECT_EQ(Sum(plain), 13);
  EXPECT_EQ(Sum({8, 9}), 17);
  EXPECT_EQ(Sum(Span<int>(plain)), 13);
  EXPECT_EQ(Sum({}), 0);
}

TEST(SpanTest, WritesOnlyWhereThatIsAllowed) {
  std::vector<int> vector = {1, 2, 3};
  for (int& number : MakeSpan(vector)) number *= 2;
  EXPECT_THAT(vector, ElementsAre(2, 4, 6));
  static_assert(!std::is_constructible_v<Span<int>, const std::vector<int>&>);
  static_assert(!std::is_constructible_v<Span<int>, Span<const int>>);
  static_assert(!std::is_constructible_v<Span<const int>, const std::vector<long>&>);
}

TEST(SpanTest, SubspanEndsWithTheSpan) {
  const std::vector<int> vector = {1, 2, 3, 4};
  const Span<const int> all = vector;
  EXPECT_THAT(all.subspan(1, 2), ElementsAre(2, 3));
  EXPECT_THAT(all.subspan(3, 9), ElementsAre(4));
  EXPECT_THAT(all.subspan(2), ElementsAre(3, 4));
  EXPECT_THAT(all.subspan(4), IsEmpty());
  EXPECT_EQ(all.front() + all.back(), 5);
}

}  // namespace
}  // namespace cadre
