// Programs that start ranks of their own, in the manner of those that people have: each runs under
// `cadre run` as it does by itself, without a flag. With the Python of tools/python_env.
#include <stdlib.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"
#include "tests/testing/pypi_python.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// A program and its ranks each import torch: where a fresh machine reads its libraries for the
// first time and has other things to do, that takes minutes.
constexpr absl::Duration kTimeout = absl::Minutes(10);

class OwnRanksTest : public PypiPythonTest {
 protected:
  // The command line behind "cadre run --standalone": flags, and what the interpreter is told.
  void Trains(std::vector<std::string> flags, const std::string& program,
              const std::vector<std::string>& arguments, int world, int groups = 1) {
    for (const char* word : {"--log-dir", logs_.c_str(), "--"}) flags.emplace_back(word);
    flags.insert(flags.end(), before_.begin(), before_.end());
    flags.push_back(python_);
    flags.insert(flags.end(), options_.begin(), options_.end());
    flags.push_back(absl::StrCat("tests/compatibility/own_ranks/", program));
    flags.insert(flags.end(), arguments.begin(), arguments.end());
    // Of this run alone; people have it in the program.
    setenv("TUTORIAL_PORT", absl::StrCat(FreePort()).c_str(), 1);
    const auto run = StartStandalone(flags);
    EXPECT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
    for (int rank = 0; rank < world; ++rank) {
      const std::string line = absl::StrCat("trained: rank ", rank, " of ", world);
      int found = 0;
      const std::string said = run->standard_output();
      for (size_t at = said.find(line); at != said.npos; at = said.find(line, at + 1)) ++found;
      EXPECT_EQ(found, groups) << line << OutputOf(*run);
    }
  }

  const std::string logs_ = MakeTempDir("logs");
  std::vector<std::string> before_, options_;
};

TEST_F(OwnRanksTest, DdpTutorial) { Trains({}, "ddp_tutorial.py", {}, 2); }

// Fault (store): A program starts ranks of its own inside a worker, and several workers do so with
// the same address -> These ranks find each other as without Cadre
TEST_F(OwnRanksTest, DdpTutorialBySeveralWorkers) {
  Trains({"--nproc-per-node", "2"}, "ddp_tutorial.py", {}, 2, 2);
}

TEST_F(OwnRanksTest, DdpTutorialWithoutWarmStart) {
  Trains({"--no-warm"}, "ddp_tutorial.py", {}, 2);
}

TEST_F(OwnRanksTest, DdpTutorialInAnIsolatedInterpreter) {
  options_ = {"-I"};
  Trains({}, "ddp_tutorial.py", {}, 2);
}

TEST_F(OwnRanksTest, DdpTutorialInAScript) {
  before_ = {"/bin/sh", "-c", "\"$@\"", "sh"};
  Trains({}, "ddp_tutorial.py", {}, 2);
}

TEST_F(OwnRanksTest, FairscaleTutorial) { Trains({}, "fairscale_tutorial.py", {}, 2); }

TEST_F(OwnRanksTest, FairscaleTutorialBySeveralWorkers) {
  Trains({"--nproc-per-node", "2"}, "fairscale_tutorial.py", {}, 2, 2);
}

TEST_F(OwnRanksTest, LightningByItself) { Trains({}, "lightning_trainer.py", {"ddp"}, 2); }
TEST_F(OwnRanksTest, LightningThatSpawns) { Trains({}, "lightning_trainer.py", {"ddp_spawn"}, 2); }
TEST_F(OwnRanksTest, LightningThatForks) { Trains({}, "lightning_trainer.py", {"ddp_fork"}, 2); }

TEST_F(OwnRanksTest, LightningThatIsLaunched) {
  Trains({"--nproc-per-node", "2"}, "lightning_trainer.py", {"ddp"}, 2);
}

TEST_F(OwnRanksTest, AcceleratesLauncherForNotebooks) {
  Trains({}, "accelerate_launcher.py", {"notebook"}, 2);
}

TEST_F(OwnRanksTest, AcceleratesLauncherForDebugging) {
  Trains({}, "accelerate_launcher.py", {"debug"}, 2);
}

TEST_F(OwnRanksTest, ImagenetTemplateByItself) { Trains({}, "imagenet_template.py", {}, 1); }

TEST_F(OwnRanksTest, ImagenetTemplateOfWorkers) {
  Trains({"--nproc-per-node", "2"}, "imagenet_template.py", {}, 2);
}

TEST_F(OwnRanksTest, ImagenetTemplateWithARankForEachDevice) {
  Trains({}, "imagenet_template.py", {"--multiprocessing-distributed"}, 2);
}

TEST_F(OwnRanksTest, ImagenetTemplateWithARankForEachDeviceOfSeveralWorkers) {
  Trains({"--nproc-per-node", "2"}, "imagenet_template.py", {"--multiprocessing-distributed"}, 4);
}

// As its page says it for one node.
TEST_F(OwnRanksTest, ImagenetTemplateAtAnAddress) {
  Trains({}, "imagenet_template.py",
         {"--dist-url", absl::StrCat("tcp://127.0.0.1:", FreePort()),
          "--multiprocessing-distributed", "--world-size", "1", "--rank", "0"},
         2);
}

TEST_F(OwnRanksTest, SingaWithMultiprocessing) { Trains({}, "singa_multiprocess.py", {}, 2); }

TEST_F(OwnRanksTest, PoolsOfProcesses) {
  Trains({"--nproc-per-node", "2"}, "other_starts.py", {"pool"}, 2, 2);
}

TEST_F(OwnRanksTest, TorchrunInAWorker) {
  Trains({"--nproc-per-node", "2"}, "other_starts.py", {"torchrun"}, 2, 2);
}

// The job's own group, by processes below its workers.
TEST_F(OwnRanksTest, WorkersThatOnlyStartTheProgram) {
  Trains({"--nproc-per-node", "2"}, "other_starts.py", {"wrapper"}, 2);
  Trains({"--nproc-per-node", "2"}, "other_starts.py", {"watched"}, 2);
}

}  // namespace
}  // namespace cadre
