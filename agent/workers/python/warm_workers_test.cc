#include "agent/workers/python/warm_workers.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<supervisor::StartFrame> Workers() {
  std::vector<supervisor::StartFrame> workers(2);
  for (size_t i = 0; i < workers.size(); ++i) {
    workers[i].argv = {"python3", "-u", "train.py"};
    const std::string rank = "RANK=" + std::to_string(i);
    workers[i].environment = {"PATH=/bin",         rank,
                              "MASTER_PORT=5",     "CUDA_VISIBLE_DEVICES=" + std::to_string(i),
                              "SLURM_NODEID=0",    "SLURM_JOB_ID=7",
                              "SSH_TTY=/dev/pts/1"};
    workers[i].assignment = {rank, "MASTER_PORT=5"};
  }
  return workers;
}

TEST(WarmWorkersTest, ATemplateKnowsNothingThatIsAnotherForEachWorkerOrGeneration) {
  auto workers = Workers();
  AllowWarmStart({}, "/d", workers);
  EXPECT_EQ(workers[1].warm.directory, "/d");
  EXPECT_EQ(workers[1].warm.script, "train.py");
  EXPECT_THAT(workers[1].warm.rank_variables, ElementsAre("CUDA_VISIBLE_DEVICES", "MASTER_PORT",
                                                          "RANK", "SLURM_NODEID", "SSH_TTY"));
}

TEST(WarmWorkersTest, OnlyPythonIsStartedWarm_AndOnlyWhereTheJobWantsIt) {
  auto workers = Workers();
  workers[0].argv = {"./train"};
  v1::RestartPolicy restart;
  restart.add_preload("scipy");
  AllowWarmStart(restart, "/d", workers);
  EXPECT_THAT(workers[0].warm.script, IsEmpty());
  EXPECT_EQ(workers[0].warm.directory, "/d");
  EXPECT_THAT(workers[1].warm.preload, ElementsAre("scipy"));
  workers = Workers();
  restart.set_warm(false);
  AllowWarmStart(restart, "/d", workers);
  EXPECT_THAT(workers[1].warm.script, IsEmpty());
  EXPECT_EQ(workers[1].warm.directory, "/d");  // its interpreter gets the start hook all the same
}

supervisor::StartedFrame Cold(const std::string& why) {
  supervisor::StartedFrame started;
  started.why_plain = why;
  return started;
}

TEST(WarmNotes, WhyAWorkerIsNotWarmIsSaidOnceAGenerationAndNotOfTheFirst) {
  WarmNotes notes;
  EXPECT_EQ(notes.OnStarted(Cold("its first start"), 1, false), "");
  EXPECT_EQ(notes.OnStarted(Cold(""), 2, true), "");
  EXPECT_EQ(notes.OnStarted(Cold("no room"), 2, true), "started plainly, not warm: no room");
  EXPECT_EQ(notes.OnStarted(Cold("no room"), 2, true), "");
  EXPECT_EQ(notes.OnStarted(Cold("no room"), 3, true), "started plainly, not warm: no room");
}

TEST(WarmNotes, WhatATemplateHasImportedStaysAndWhatWorkersDoIsTheirGenerations) {
  WarmNotes notes;
  notes.OnTemplate({7, 1200, 2100, {}});
  notes.OnImported({1, 1800});
  EXPECT_EQ(notes.imports().worker_us(), 1800000);
  notes.BeginGeneration();
  EXPECT_EQ(notes.imports().worker_us(), 0);
  notes.OnImported({2, 0});
  EXPECT_EQ(notes.imports().worker_us(), 1);
  notes.OnTemplate({0, 0, 0, {"a note"}});
  EXPECT_EQ(notes.imports().template_modules(), 1200u);
  EXPECT_EQ(notes.imports().template_us(), 2100000);
  notes.OnTemplate({0, 0, 0, {}});
  EXPECT_EQ(notes.imports().template_modules(), 0u);
}

TEST(WarmNotes, PackagesThatAreLeftToTheWorkersAreKeptOnce_AndNotSaid) {
  const std::string left = "warm start: not imported beforehand: ";
  WarmNotes notes;
  EXPECT_THAT(notes.OnTemplate({0, 0, 0, {left + "a: reads RANK"}}), IsEmpty());
  EXPECT_THAT(notes.OnTemplate({7, 9, 9, {left + "a: reads RANK", left + "b: so"}}), IsEmpty());
  EXPECT_THAT(notes.imports().left_to_workers(), ElementsAre("a: reads RANK", "b: so"));
  EXPECT_THAT(notes.OnTemplate({0, 0, 0, {"no warm start: x"}}), ElementsAre("no warm start: x"));
}

}  // namespace
}  // namespace cadre::agent
