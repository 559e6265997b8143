#include "digits.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::mnist {
namespace {

TEST(DrawDigits, DrawsEveryDigitEachTimeDifferently) {
  const ImageSet set = DrawDigits(40, 3);
  ASSERT_EQ(set.size(), 40u);
  std::set<std::vector<uint8_t>> different;
  for (size_t i = 0; i < set.size(); ++i) {
    EXPECT_EQ(set.labels[i], i % 10);
    const auto begin = set.pixels.begin() + i * 784;
    different.insert(std::vector<uint8_t>(begin, begin + 784));
    // There is ink, and more background than ink.
    const auto ink = std::count_if(begin, begin + 784, [](uint8_t p) { return p > 128; });
    EXPECT_GT(ink, 20);
    EXPECT_LT(ink, 300);
  }
  EXPECT_EQ(different.size(), 40u);
}

TEST(DrawDigits, DependsOnTheSeedAlone) {
  EXPECT_EQ(DrawDigits(20, 5).pixels, DrawDigits(20, 5).pixels);
  EXPECT_NE(DrawDigits(20, 5).pixels, DrawDigits(20, 6).pixels);
}

TEST(DrawnDigitsDirectory, IsMadeOnceHoweverManyAsk) {
  std::string cache = ::testing::TempDir() + "/digits_XXXXXX";
  ASSERT_NE(mkdtemp(cache.data()), nullptr);
  ASSERT_EQ(setenv("XDG_CACHE_HOME", cache.c_str(), 1), 0);
  // A process of the same pid in another container might be creating this directory now.
  const std::string others = cache + "/cadre/digits-1-6000-1000." + std::to_string(getpid());
  ASSERT_TRUE(std::filesystem::create_directories(others));
  const auto first = DrawnDigitsDirectory();
  ASSERT_OK(first);
  EXPECT_TRUE(std::filesystem::remove(others)) << "it was taken";
  const auto written = std::filesystem::last_write_time(*first + "/train-images-idx3-ubyte");
  const auto second = DrawnDigitsDirectory();
  ASSERT_OK(second);
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(std::filesystem::last_write_time(*second + "/train-images-idx3-ubyte"), written);
  const auto train = ReadImageSet(*second, "train", 0);
  ASSERT_OK(train);
  EXPECT_EQ(train->size(), 6000u);
  const auto test = ReadImageSet(*second, "t10k", 0);
  ASSERT_OK(test);
  EXPECT_EQ(test->size(), 1000u);
  // No temporary directory is left beside it.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(cache + "/cadre"),
                          std::filesystem::directory_iterator()),
            1);
}

}  // namespace
}  // namespace cadre::mnist
