#include "agent/core/generation.h"

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/versions.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Phase = Generation::Phase;

constexpr MonoTime At(int64_t seconds) { return MonoTime::FromMicros(seconds * 1000000); }

class GenerationTest : public testing::Test {
 protected:
  void SetUp() override {
    v1::Assign assign;
    assign.set_local_world_size(2);
    generation_.Start(At(0), {7, 1}, assign, true);
    generation_.OnRuns({1, 0, 100}, At(1), true);
    generation_.OnRuns({1, 1, 101}, At(1), true);
    out_.Take();
  }
  // The stops that were ordered.
  std::vector<std::string> Stops() {
    std::vector<std::string> stops;
    for (const AgentCommand& command : out_.Take()) {
      const auto* stop = std::get_if<StopWorkers>(&command);
      if (stop == nullptr) continue;
      stops.push_back(absl::StrCat(absl::FormatDuration(stop->grace), " keep ",
                                   absl::StrJoin(stop->kept, ",")));
    }
    return stops;
  }

  Outbox out_{"j", 1};
  Generation generation_{out_};
};

TEST_F(GenerationTest, Stopped_EndsWhenAllIsGone) {
  generation_.Stop(At(2), absl::Seconds(5), {}, "", false);
  EXPECT_THAT(Stops(), ElementsAre("5s keep "));
  EXPECT_TRUE(generation_.StopsAll());
  EXPECT_FALSE(generation_.EndIfClear());
  EXPECT_FALSE(generation_.OnAllGone({2, 500})) << "another generation";
  EXPECT_TRUE(generation_.OnAllGone({1, 500}));
  EXPECT_TRUE(generation_.EndIfClear());
  EXPECT_EQ(generation_.phase(), Phase::kIdle);
  EXPECT_FALSE(generation_.Named().exists());
  EXPECT_EQ(generation_.id(), (GenerationId{7, 1}));
}

TEST_F(GenerationTest, StopThatWaitsForALook_GoesOutWithItsEnd) {
  generation_.Stop(At(2), absl::Seconds(5), {}, "", true);
  EXPECT_THAT(Stops(), IsEmpty());
  generation_.LookEnded(At(3));
  EXPECT_THAT(Stops(), ElementsAre("5s keep "));
  generation_.LookEnded(At(4));
  EXPECT_THAT(Stops(), IsEmpty());
}

// They hear of the stop when the look is over, which may take longer than their time.
TEST_F(GenerationTest, StopThatWaitsForALook_LeavesTheKeptTheirWholeTime) {
  generation_.Stop(At(2), absl::Seconds(3), {1}, "", true);
  EXPECT_EQ(generation_.Deadline(true), MonoTime::Never());
  generation_.LookEnded(At(6));
  EXPECT_THAT(Stops(), ElementsAre("3s keep 1"));
  EXPECT_EQ(generation_.Deadline(true), At(9));
}

TEST_F(GenerationTest, Kept_WaitForTheNextOne) {
  generation_.Stop(At(2), absl::Seconds(5), {1}, "", false);
  generation_.OnAllGone({1, 500, {1}});
  EXPECT_FALSE(generation_.EndIfClear());
  EXPECT_TRUE(generation_.OnWaits({1, 1, "why"}, At(3)));
  EXPECT_FALSE(generation_.OnWaits({1, 1, "why"}, At(3)));
  EXPECT_TRUE(generation_.EndIfClear());
  EXPECT_EQ(generation_.phase(), Phase::kHolding);
  v1::Assign assign;
  assign.set_local_world_size(2);
  generation_.Start(At(4), {7, 2}, assign, true);
  EXPECT_TRUE(generation_.workers().at(1).rejoined);
  EXPECT_EQ(generation_.workers().at(1).pid, 101);
  EXPECT_EQ(generation_.workers().at(0).pid, 0);
}

TEST_F(GenerationTest, WhoDoesNotComeInTime_IsStoppedToo) {
  generation_.Stop(At(2), absl::Seconds(5), {0, 1}, "", false);
  generation_.OnWaits({1, 1, "why"}, At(3));
  Stops();
  EXPECT_EQ(generation_.Deadline(true), At(7));
  generation_.OnDeadlines(At(7), true, absl::Seconds(5));
  EXPECT_THAT(Stops(), ElementsAre("0 keep 1"));
  EXPECT_TRUE(generation_.OnDied({1, 0, {}}, At(7), "n", ""));
  EXPECT_TRUE(generation_.workers().at(0).exit.late());
}

TEST_F(GenerationTest, OnlyTheFirstFailureOfARunningGeneration_IsKept) {
  v1::WorkerExit exit;
  exit.set_exit_code(3);
  EXPECT_TRUE(generation_.OnDied({1, 1, exit}, At(2), "n", ""));
  EXPECT_FALSE(generation_.OnDied({1, 1, exit}, At(2), "n", "")) << "told twice";
  exit.set_exit_code(4);
  EXPECT_TRUE(generation_.OnDied({1, 0, exit}, At(2), "n", ""));
  ASSERT_TRUE(generation_.failure().has_value());
  EXPECT_EQ(generation_.failure()->exit().exit_code(), 3);
}

TEST_F(GenerationTest, WhoIsFenced_DidNotFail) {
  generation_.Fenced();
  v1::WorkerExit exit;
  exit.set_signal(SIGKILL);
  EXPECT_TRUE(generation_.OnDied({1, 0, exit}, At(2), "n", "no answer"));
  EXPECT_FALSE(generation_.failure().has_value());
  EXPECT_EQ(generation_.workers().at(0).exit.cause(), v1::NODE_LOST);
  EXPECT_EQ(generation_.workers().at(0).exit.exit().ended_with(), "no answer");
}

TEST_F(GenerationTest, AWorkerThatIsNotHere_IsIgnored) {
  generation_.OnRuns({1, 9, 100}, At(2), true);
  EXPECT_FALSE(generation_.OnDied({1, 9, {}}, At(2), "n", ""));
  EXPECT_EQ(generation_.workers().size(), 2u);
}

TEST_F(GenerationTest, WhatWasImportedIsSaidAndSaidAgainOnANewConnection) {
  v1::ProgramImports imports;
  imports.set_worker_us(1800000);
  out_.set_connected(true);
  generation_.OnImported({2, imports}, At(1), true);
  EXPECT_THAT(out_.Take(), IsEmpty()) << "another generation";
  generation_.OnImported({1, imports}, At(1), false);
  EXPECT_THAT(out_.Take(), IsEmpty());
  generation_.SpeakAgain(true);
  int64_t said = 0;
  for (const AgentCommand& command : out_.Take()) {
    const auto* up = std::get_if<SendUp>(&command);
    if (up != nullptr && up->message.has_imports()) said = up->message.imports().worker_us();
  }
  EXPECT_EQ(said, 1800000);
  out_.set_server(rpc::VersionBefore());
  generation_.SpeakAgain(true);
  for (const AgentCommand& command : out_.Take()) {
    const auto* up = std::get_if<SendUp>(&command);
    EXPECT_FALSE(up != nullptr && up->message.has_imports()) << "0.2 does not know it";
  }
}

}  // namespace
}  // namespace cadre::agent
