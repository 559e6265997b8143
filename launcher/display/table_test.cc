#include "launcher/display/table.h"

#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

TEST(TableTest, Columns_AreAsWideAsTheirWidestCell) {
  EXPECT_EQ(FormatTable({"JOB", "PHASE"}, {{"mnist-long", "running"}, {"a", ""}}),
            "JOB         PHASE\nmnist-long  running\na\n");
}

TEST(TableTest, Cells_AreEscaped) { EXPECT_EQ(FormatTable({"A"}, {{"x\ny"}}), "A\nx\\ny\n"); }

}  // namespace
}  // namespace cadre::launcher
