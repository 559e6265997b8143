#include "rendezvous/service/newcomers.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::service {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kPatience = absl::Seconds(10);

MonoTime At(double seconds) { return MonoTime() + absl::Seconds(seconds); }

TEST(Newcomers, WhoShowsATokenIsNoneAnyMore) {
  Newcomers newcomers(2, kPatience);
  EXPECT_EQ(newcomers.Add({"10.0.0.1", 1}, At(0)), std::nullopt);
  EXPECT_TRUE(newcomers.Remove({"10.0.0.1", 1}));
  EXPECT_FALSE(newcomers.Remove({"10.0.0.1", 1}));
  EXPECT_EQ(newcomers.size(), 0u);
  EXPECT_EQ(newcomers.NextDeadline(), MonoTime::Never());
}

TEST(Newcomers, WhoSaysNothingIsOverdue) {
  Newcomers newcomers(9, kPatience);
  newcomers.Add({"a", 1}, At(0));
  newcomers.Add({"b", 1}, At(3));
  EXPECT_EQ(newcomers.NextDeadline(), At(10));
  EXPECT_THAT(newcomers.TakeOverdue(At(9.9)), IsEmpty());
  EXPECT_THAT(newcomers.TakeOverdue(At(10)), ElementsAre(Peer{"a", 1}));
  EXPECT_EQ(newcomers.NextDeadline(), At(13));
}

TEST(Newcomers, WhereThereAreTooMany_TheOldestOfTheAddressWithTheMostGivesWay) {
  Newcomers newcomers(4, kPatience);
  newcomers.Add({"quiet", 1}, At(0));
  for (int port = 1; port <= 3; ++port) newcomers.Add({"many", port}, At(1));
  EXPECT_EQ(newcomers.Add({"another", 1}, At(2)), (Peer{"many", 1}));
  EXPECT_EQ(newcomers.Add({"many", 4}, At(2)), (Peer{"many", 2}));
  EXPECT_EQ(newcomers.size(), 4u);
  EXPECT_TRUE(newcomers.Remove({"quiet", 1}));
}

TEST(Newcomers, APortThatComesAgainIsANewConnection) {
  Newcomers newcomers(4, kPatience);
  newcomers.Add({"a", 1}, At(0));
  newcomers.Add({"a", 1}, At(5));
  EXPECT_EQ(newcomers.size(), 1u);
  EXPECT_EQ(newcomers.NextDeadline(), At(15));
}

TEST(Newcomers, WithNobodyThere_NobodyGivesWay) {
  EXPECT_EQ(Newcomers(1, kPatience).TakeOldestOfTheMost(), std::nullopt);
}

}  // namespace
}  // namespace cadre::service
