#include "agent/workers/node_hardware.h"

#include <stdlib.h>

#include <fstream>

#include "absl/time/clock.h"
#include "agent/workers/node_usage.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two NUMA nodes of four cores with two hyperthreads each.
std::vector<CpuCore> TwoSockets() {
  const auto cores = FindCores("numa:2 core:4 pu:2");
  EXPECT_OK(cores);
  return cores.value_or(std::vector<CpuCore>{});
}

TEST(FindCores, Synthetic_CountsCoresAndKnowsTheirNumaNodes) {
  const std::vector<CpuCore> cores = TwoSockets();
  ASSERT_EQ(cores.size(), 8u);
  EXPECT_THAT(cores[5].cpus, ElementsAre(10, 11));
  EXPECT_EQ(cores[3].numa, 0u);
  EXPECT_EQ(cores[4].numa, 1u);
}

TEST(FindCores, ThisMachine_HasAtLeastOne) {
  const auto cores = FindCores();
  ASSERT_OK(cores);
  EXPECT_FALSE(cores->empty());
}

TEST(FindCores, DescriptionThatIsNone_IsRefused) {
  EXPECT_THAT(FindCores("core:zero"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(PlanBinding, None_BindsNobody) {
  const auto plan = PlanBinding("none", 2, {});
  ASSERT_OK(plan);
  EXPECT_THAT(*plan, ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(PlanBinding, Core_SharesNoCore) {
  const auto plan = PlanBinding("core", 3, TwoSockets());
  ASSERT_OK(plan);
  EXPECT_THAT(*plan, ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7),
                                 ElementsAre(8, 9, 10, 11)));
}

TEST(PlanBinding, Core_MoreWorkersThanCores_SaysBothNumbers) {
  EXPECT_THAT(PlanBinding("core", 9, TwoSockets()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("9 workers, but only 8")));
}

TEST(PlanBinding, Numa_WorkersShareWholeNodesInBlocks) {
  const auto plan = PlanBinding("numa", 4, TwoSockets());
  ASSERT_OK(plan);
  ASSERT_EQ(plan->size(), 4u);
  EXPECT_THAT((*plan)[0], ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ((*plan)[0], (*plan)[1]);
  EXPECT_THAT((*plan)[2], ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
  EXPECT_EQ((*plan)[2], (*plan)[3]);
}

TEST(PlanBinding, Gpu_TakesTheCpusNextToIt) {
  const auto plan = PlanBinding("gpu", 2, {}, {{4, 5}, {6, 7}});
  ASSERT_OK(plan);
  EXPECT_THAT(*plan, ElementsAre(ElementsAre(4, 5), ElementsAre(6, 7)));
}

TEST(PlanBinding, UnknownWord_IsRefusedByName) {
  EXPECT_THAT(PlanBinding("socket", 1, TwoSockets()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("socket")));
}

std::vector<Gpu> Three() {
  return {{0, "GPU-aaaa", "H", {}}, {1, "GPU-abbb", "H", {}}, {2, "GPU-cccc", "H", {}}};
}

std::vector<uint32_t> Indices(const GpuList& list) {
  std::vector<uint32_t> indices;
  for (const Gpu& gpu : list.gpus) indices.push_back(gpu.index);
  return indices;
}

TEST(VisibleGpus, Unset_ShowsAll) {
  EXPECT_THAT(Indices(VisibleGpus(Three(), std::nullopt)), ElementsAre(0, 1, 2));
}

TEST(VisibleGpus, Lists_AreReadAsCudaReadsThem) {
  EXPECT_THAT(Indices(VisibleGpus(Three(), "2,0")), ElementsAre(2, 0));
  EXPECT_THAT(Indices(VisibleGpus(Three(), " 1 , 2")), ElementsAre(1, 2));
  EXPECT_THAT(Indices(VisibleGpus(Three(), "GPU-cc,GPU-ab")), ElementsAre(2, 1));
  EXPECT_THAT(Indices(VisibleGpus(Three(), "1,-1,2")), ElementsAre(1));
  EXPECT_THAT(Indices(VisibleGpus(Three(), "1,1,2")), ElementsAre(1));
  EXPECT_THAT(Indices(VisibleGpus(Three(), "0,7")), ElementsAre(0));
}

TEST(VisibleGpus, NothingVisible_SaysWhatHidesThem) {
  for (const char* hidden : {"", "-1", "NoDevFiles", "9"}) {
    const GpuList list = VisibleGpus(Three(), hidden);
    EXPECT_THAT(list.gpus, IsEmpty());
    EXPECT_THAT(list.reason, HasSubstr("CUDA_VISIBLE_DEVICES"));
  }
}

TEST(FindGpus, AnyMachine_GivesGpusOrAReason) {
  const GpuList list = FindGpus();
  EXPECT_NE(list.gpus.empty(), list.reason.empty());
  for (const Gpu& gpu : list.gpus) EXPECT_THAT(gpu.uuid, HasSubstr("GPU-"));
}

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
  // Polls until the thread has measured. The first measurement has nothing to be compared with.
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
