#include "agent/workers/gpus.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

}  // namespace
}  // namespace cadre::agent
