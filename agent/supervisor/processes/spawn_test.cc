// What is prepared before the fork; starting processes is tested by groups_test.
#include "agent/supervisor/processes/spawn.h"

#include <errno.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

using ::testing::ElementsAre;

TEST(WorkerEnvironment, HasTheMarkerFirst_AndNoOnesElsesDescriptors) {
  StartFrame start;
  start.environment = {"A=1", "CADRE_SUPERVISED_BY=other", "CADRE_PROGRESS_FD=9",
                       "CADRE_STANDS_BY=8"};
  EXPECT_THAT(WorkerEnvironment(start, "id.7"),
              ElementsAre("CADRE_SUPERVISED_BY=id.7", "CADRE_PROGRESS_FD=3", "A=1"));
  start.stands_by = true;
  EXPECT_THAT(
      WorkerEnvironment(start, "id.7"),
      ElementsAre("CADRE_SUPERVISED_BY=id.7", "CADRE_PROGRESS_FD=3", "CADRE_STANDS_BY=4", "A=1"));
}

TEST(ProgramCandidates, AreThoseOfTheWorkersPath) {
  EXPECT_THAT(ProgramCandidates("train", {"PATH=/a:/b"}), ElementsAre("/a/train", "/b/train"));
  EXPECT_THAT(ProgramCandidates("train", {"PATH=/a::"}), ElementsAre("/a/train", "train", "train"))
      << "an empty entry is the working directory";
  EXPECT_THAT(ProgramCandidates("train", {}),
              ElementsAre("/usr/local/bin/train", "/usr/bin/train", "/bin/train"));
  EXPECT_THAT(ProgramCandidates("./train", {"PATH=/a"}), ElementsAre("./train"));
}

TEST(Spawn, WhatCannotBeRunNamesItsStep) {
  StartFrame start;
  SpawnRequest request;
  request.start = &start;
  const Spawned nothing = Spawn(request);
  EXPECT_EQ(nothing.pid, 0);
  EXPECT_EQ(nothing.failed_step, "exec");
  EXPECT_EQ(nothing.error, ENOENT);
  start.argv = {"true"};
  start.cpus = {1u << 20};
  EXPECT_EQ(Spawn(request).failed_step, "bind cpus");
}

}  // namespace
}  // namespace cadre::supervisor
