#include "cadre/exit_codes.h"

#include "base/exit_codes.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

TEST(ExitCodesTest, AreThoseThatTheLauncherKnows) {
  EXPECT_EQ(kWorkerExitNeverRestart, kExitNeverRestart);
  EXPECT_EQ(kWorkerExitForNextGeneration, kExitForNextGeneration);
}

}  // namespace
}  // namespace cadre
