#include "agent/workers/python/warm_trial.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::HasSubstr;

constexpr char kPython[] = "/usr/bin/python3";

class WarmTrialTest : public testing::Test {
 protected:
  void SetUp() override {
    if (access(kPython, X_OK) != 0) GTEST_SKIP() << "there is no " << kPython;
    folder_ = absl::StrCat(getenv("TEST_TMPDIR"), "/interpreters");
    std::filesystem::create_directories(folder_);
  }
  // A program with this name that runs the machine's interpreter by a script.
  std::string Interpreter(const std::string& script) {
    const std::string path = folder_ + "/python3";
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    chmod(path.c_str(), 0755);
    return path;
  }

  std::string folder_;
};

TEST_F(WarmTrialTest, AWorkerIsForkedAndSaysHello) {
  const WarmTrial trial = TryWarmStart(kPython);
  EXPECT_EQ(trial.failed, "");
  EXPECT_THAT(trial.version, testing::StartsWith("3."));
  EXPECT_GT(trial.modules, 0u);
  EXPECT_GT(trial.warm, absl::ZeroDuration());
  EXPECT_LT(trial.warm, trial.plain);
}

TEST_F(WarmTrialTest, AnInterpreterThatDoesNotReachTheHookIsNamed) {
  const WarmTrial trial = TryWarmStart(Interpreter("exec /usr/bin/python3 -I \"$@\""));
  EXPECT_THAT(trial.failed, HasSubstr("does not import sitecustomize"));
  EXPECT_THAT(trial.version, testing::StartsWith("3."));
}

TEST_F(WarmTrialTest, WhatIsNoInterpreterIsNamedWithItsLastLine) {
  EXPECT_THAT(TryWarmStart(Interpreter("echo broken >&2; exit 3")).failed,
              HasSubstr("does not run: broken"));
  EXPECT_THAT(TryWarmStart(folder_ + "/missing").failed, HasSubstr("No such file"));
}

}  // namespace
}  // namespace cadre::agent
