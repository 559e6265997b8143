#include "agent/workers/node_usage.h"

#include <stdlib.h>

#include <fstream>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

TEST(ParseCpuTimes, WaitingForADiskIsIdle_AndGuestsCountOnce) {
  const auto times = ParseCpuTimes("cpu  10 1 20 100 50 3 4 2 7 7\ncpu0 1 2 3 4\n");
  ASSERT_TRUE(times.has_value());
  EXPECT_EQ(times->busy, 40u);
  EXPECT_EQ(times->all, 190u);
  for (const char* text : {"", "cpu", "cpu 1 2 3", "cpu a b c d", "intr 1 2 3 4 5"}) {
    EXPECT_FALSE(ParseCpuTimes(text).has_value()) << text;
  }
}

TEST(ParseMemory, UsedIsWhatCannotBeHad) {
  v1::NodeUsage usage;
  ASSERT_TRUE(ParseMemory("MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable:   40 kB\n", &usage));
  EXPECT_EQ(usage.memory_total(), 102400u);
  EXPECT_EQ(usage.memory_used(), 61440u);
  for (const char* text : {"", "MemTotal: 1 kB\n", "MemTotal: 1 kB\nMemAvailable: 2 kB\n",
                           "MemTotal: x kB\nMemAvailable: 2 kB\n"}) {
    EXPECT_FALSE(ParseMemory(text, &usage)) << text;
  }
}

class UsageWatchTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(&proc_[0]), nullptr); }
  void Write(const std::string& cpu) {
    std::ofstream(proc_ + "/stat") << cpu << "\n";
    std::ofstream(proc_ + "/meminfo") << "MemTotal: 4 kB\nMemAvailable: 1 kB\n";
  }
  // Until the thread has measured; the first time there is nothing to compare with.
  std::optional<v1::NodeUsage> Next(UsageWatch& watch) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (absl::Now() < deadline) {
      if (auto usage = watch.Poll(MonoNow())) return usage;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return std::nullopt;
  }
  std::string proc_ = testing::TempDir() + "/proc_XXXXXX";
};

TEST_F(UsageWatchTest, OfThisMachine) {
  UsageWatch watch("/proc", absl::Milliseconds(50));
  const auto usage = Next(watch);
  ASSERT_TRUE(usage.has_value());
  EXPECT_GE(usage->cpu(), 0);
  EXPECT_LE(usage->cpu(), 1);
  EXPECT_GT(usage->memory_used(), 0u);
  EXPECT_LT(usage->memory_used(), usage->memory_total());
  EXPECT_LE(usage->gpu_memory_used(), usage->gpu_memory_total());
}

TEST_F(UsageWatchTest, NotMoreOftenThanItsInterval) {
  Write("cpu 1 0 0 1");
  UsageWatch watch(proc_, absl::Hours(1));
  const MonoTime start = MonoNow();
  EXPECT_FALSE(watch.Poll(start).has_value());
  for (int i = 1; i < 1000; ++i) EXPECT_FALSE(watch.Poll(start + absl::Seconds(3 * i)).has_value());
}

}  // namespace
}  // namespace cadre::agent
