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
  EXPECT_EQ(workers[1].warm.directory, "/d");  // its interpreter has the start hook all the same
}

}  // namespace
}  // namespace cadre::agent
