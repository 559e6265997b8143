// Adoption of what a killed agent leaves, with the real supervisor.
#include "agent/adoption.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "agent/local/local_directory.h"
#include "agent/supervisor/supervisor_rig.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using supervisor::SupervisorRig;
using supervisor::WaitUntilDead;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::AgentRun TheRun() {
  v1::AgentRun run;
  run.set_job("j");
  run.set_node("n");
  run.set_working_dir("/w");
  run.set_rendezvous("h:1,");
  run.add_command("./train");
  run.set_slots(2);
  return run;
}

// An agent that has started one of its two workers; Complete() starts the other.
class FindAdoptionTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(parent_.data()), nullptr);
    auto directory = LocalDirectory::Make(parent_);
    ASSERT_OK(directory);
    directory_ = *std::move(directory);
    v1::AgentRun run = TheRun();
    run.set_frames_version(supervisor::kFramesVersion);
    run.set_incarnation(77);
    run.set_generation(3);
    run.set_first_group(5);
    run.mutable_assign()->set_local_world_size(2);
    const auto keep =
        OfferForAdoption(directory_->path(), directory_->token(), absl::Hours(1), run);
    ASSERT_OK(keep);
    rig_.Send(*keep);
    StartWorker(0);
  }
  void TearDown() override { std::filesystem::remove_all(parent_); }

  void StartWorker(uint32_t local_rank) {
    rig_.Send(rig_.Shell("exec sleep 1000", 5 + local_rank));
    rig_.Until([&] { return rig_.Started(5 + local_rank).has_value(); });
  }
  void Complete() { StartWorker(1); }
  std::optional<Adoption> Find(const v1::AgentRun& wanted) {
    FoundWorkers found = FindAdoption(wanted, &notices_, parent_);
    unfit_ = std::move(found.unfit);
    return std::move(found.adoption);
  }
  bool SupervisorEnds() { return WaitUntilDead(rig_.ready().pid); }
  bool SupervisorLives() { return !WaitUntilDead(rig_.ready().pid, absl::ZeroDuration()); }

  // A short path, because of the sockets in it.
  std::string parent_ = "/tmp/cadre_test_XXXXXX";
  SupervisorRig rig_;
  std::unique_ptr<LocalDirectory> directory_;
  std::vector<std::string> notices_;
  std::vector<UnfitWorkers> unfit_;
};

TEST_F(FindAdoptionTest, WhatAnAgentOfTheSameRunLeft) {
  Complete();
  rig_.Die();
  std::optional<Adoption> found = Find(TheRun());
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->directory, directory_->path());
  EXPECT_EQ(found->run.incarnation(), 77u);
  EXPECT_THAT(found->inventory.groups, ElementsAre(5, 6));
  EXPECT_THAT(notices_, IsEmpty());
  found.reset();
  EXPECT_TRUE(SupervisorEnds()) << "the one who carried on has ended";
}

TEST_F(FindAdoptionTest, OneOfThemIsGone) {
  Complete();
  rig_.Stop(0, 5);
  rig_.Die();
  std::optional<Adoption> found = Find(TheRun());
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(found->inventory.groups, ElementsAre(6, 5));
}

TEST_F(FindAdoptionTest, AnotherRunIsLeftAlone) {
  Complete();
  rig_.Die();
  v1::AgentRun other = TheRun();
  other.set_node("m");
  EXPECT_FALSE(Find(other).has_value());
  other = TheRun();
  other.set_working_dir("/v");
  EXPECT_FALSE(Find(other).has_value());
  other = TheRun();
  other.set_rendezvous("h:2,");
  EXPECT_FALSE(Find(other).has_value());
  EXPECT_THAT(notices_, IsEmpty());
  EXPECT_TRUE(SupervisorLives());
}

// Fault (node): A launcher with `--adopt-timeout` is killed, and one that would run something else
// is admitted -> The old workers are stopped once the server has admitted it
TEST_F(FindAdoptionTest, WhoWouldRunSomethingElseStopsThem_OnceItIsTaken) {
  Complete();
  rig_.Die();
  v1::AgentRun other = TheRun();
  other.add_command("--epochs=2");
  EXPECT_FALSE(Find(other).has_value());
  EXPECT_TRUE(SupervisorLives());
  EXPECT_THAT(notices_, IsEmpty());
  ASSERT_EQ(unfit_.size(), 1u);
  const std::vector<UnfitWorkers> unfit = unfit_;
  // No line yet, since the right launcher may still come.
  {
    const std::optional<Adoption> found = Find(TheRun());
    ASSERT_TRUE(found.has_value());
    found->supervisor->Release();
  }
  EXPECT_TRUE(SupervisorLives());
  EXPECT_THAT(StopUnfit(unfit[0]), HasSubstr("left on this node, because it ran another command"));
  EXPECT_TRUE(SupervisorEnds());
  EXPECT_EQ(StopUnfit(unfit[0]), "");
}

TEST_F(FindAdoptionTest, WhoDiedWhileItStartedThemLeftNothingToCarryOn) {
  rig_.Die();
  EXPECT_FALSE(Find(TheRun()).has_value());
  EXPECT_TRUE(SupervisorLives());
  ASSERT_EQ(unfit_.size(), 1u);
  EXPECT_THAT(StopUnfit(unfit_[0]),
              HasSubstr("left on this node, because it had started only 1 of its 2 workers"));
  EXPECT_TRUE(SupervisorEnds());
}

TEST_F(FindAdoptionTest, AnotherVersionsAreLeftToThemselves) {
  v1::AgentRun run = TheRun();
  run.set_frames_version(supervisor::kFramesVersion + 1);
  std::ofstream(directory_->path() + "/run") << run.SerializeAsString();
  rig_.Die();
  EXPECT_FALSE(Find(TheRun()).has_value());
  EXPECT_THAT(notices_, ElementsAre(HasSubstr("this version of cadre cannot take over")));
  EXPECT_TRUE(SupervisorLives());
}

TEST_F(FindAdoptionTest, NobodyTakesThemFromALiveAgent) {
  EXPECT_FALSE(Find(TheRun()).has_value());
  EXPECT_THAT(notices_, ElementsAre(HasSubstr("their launcher still runs")));
  EXPECT_TRUE(SupervisorLives());
}

TEST_F(FindAdoptionTest, NothingIsLeft) {
  rig_.Close();
  EXPECT_FALSE(Find(TheRun()).has_value());
  EXPECT_THAT(notices_, IsEmpty());
}

}  // namespace
}  // namespace cadre::agent
