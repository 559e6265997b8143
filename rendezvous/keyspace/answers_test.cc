#include "rendezvous/keyspace/answers.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/keyspace/limits.h"

namespace cadre::keyspace {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

Reply ReplyOf(uint64_t client, uint64_t id) {
  Reply reply;
  reply.client = client;
  reply.id = id;
  return reply;
}

Answers Remembered(const std::vector<std::pair<uint64_t, uint64_t>>& requests) {
  Answers answers;
  for (const auto& [client, id] : requests) answers.Remember(ReplyOf(client, id));
  return answers;
}

std::vector<std::pair<uint64_t, uint64_t>> All(const Answers& answers) {
  std::vector<std::pair<uint64_t, uint64_t>> all;
  for (const Reply* reply : answers.All()) all.emplace_back(reply->client, reply->id);
  return all;
}

TEST(AnswersTest, AreFoundByClientAndRequest) {
  const Answers answers = Remembered({{1, 10}, {2, 10}, {1, 12}});
  EXPECT_EQ(answers.Find(1, 12)->id, 12u);
  EXPECT_EQ(answers.Find(2, 10)->client, 2u);
  for (const uint64_t id : {9, 11, 13}) EXPECT_EQ(answers.Find(1, id), nullptr);
  EXPECT_EQ(answers.Find(3, 10), nullptr);
}

TEST(AnswersTest, AreListedAsTheyCame_AlsoWhereIdsDidNotGrow) {
  EXPECT_THAT(
      All(Remembered({{1, 10}, {2, 7}, {1, 13}, {1, 11}, {2, 8}, {1, 12}})),
      ElementsAre(Pair(1, 10), Pair(2, 7), Pair(1, 13), Pair(1, 11), Pair(2, 8), Pair(1, 12)));
}

TEST(AnswersTest, TheFirstAnswerStays) {
  Answers answers = Remembered({{1, 10}, {1, 11}});
  Reply again = ReplyOf(1, 10);
  again.value = "another";
  answers.Remember(std::move(again));
  EXPECT_EQ(answers.Find(1, 10)->value, "");
  EXPECT_EQ(answers.size(), 2u);
}

TEST(AnswersTest, AClientThatAsksALotLosesItsOldest) {
  Answers answers = Remembered({{2, 1}});
  for (uint64_t id = 1; id <= kMaxAnswersPerClient + 1; ++id) answers.Remember(ReplyOf(1, id));
  EXPECT_EQ(answers.Find(1, 1), nullptr);
  EXPECT_NE(answers.Find(1, 2), nullptr);
  EXPECT_NE(answers.Find(2, 1), nullptr);
  EXPECT_EQ(answers.All().size(), kMaxAnswersPerClient + 1);
}

TEST(AnswersTest, AClientThatAsksALotLosesNobodyElses) {
  Answers answers = Remembered({{2, 1}});
  for (uint64_t id = 1; id <= 2 * kMaxAnswers; ++id) answers.Remember(ReplyOf(1, id));
  EXPECT_NE(answers.Find(2, 1), nullptr);
  EXPECT_EQ(answers.size(), kMaxAnswersPerClient + 1);
}

TEST(AnswersTest, WhatIsForgottenIsTheSameAfterASnapshot) {
  Answers live = Remembered({{0, 1}});
  for (uint64_t id = 1; id <= 3 * kMaxAnswersPerClient; ++id) live.Remember(ReplyOf(1, id));
  Answers restored;
  for (const Reply* reply : live.All()) restored.Remember(*reply);
  for (uint64_t client = 2; restored.size() < kMaxAnswers; ++client) {
    for (Answers* answers : {&live, &restored}) answers->Remember(ReplyOf(client, 1));
  }
  EXPECT_EQ(All(live), All(restored));
  // The oldest of all, and the next one.
  for (const uint64_t id : {1, 2}) {
    for (Answers* answers : {&live, &restored}) answers->Remember(ReplyOf(0, 1 + id));
  }
  EXPECT_EQ(live.Find(0, 1), nullptr);
  EXPECT_EQ(live.Find(1, 2 * kMaxAnswersPerClient + 1), nullptr);
  EXPECT_EQ(live.size(), kMaxAnswers);
  EXPECT_EQ(All(live), All(restored));
}

}  // namespace
}  // namespace cadre::keyspace
