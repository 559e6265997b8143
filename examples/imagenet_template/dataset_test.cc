#include "dataset.h"

#include <filesystem>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jpeg.h"

namespace cadre::imagenet {
namespace {

using ::testing::HasSubstr;

// Returns the labels and pixels of all the loader's batches, concatenated.
Batch All(const Dataset& dataset, const LoaderOptions& options, std::vector<int64_t> order) {
  BatchLoader loader(dataset, std::move(order), options);
  Batch all;
  for (int64_t batches = 0;; ++batches) {
    Result<std::optional<Batch>> batch = loader.Next();
    EXPECT_OK(batch);
    if (!batch.ok() || !*batch) {
      EXPECT_EQ(batches, loader.batches());
      return all;
    }
    all.labels.insert(all.labels.end(), (*batch)->labels.begin(), (*batch)->labels.end());
    all.pixels.insert(all.pixels.end(), (*batch)->pixels.begin(), (*batch)->pixels.end());
  }
}

LoaderOptions Small() {
  LoaderOptions options;
  options.batch_size = 2;
  options.side = 8;
  return options;
}

TEST(DatasetTest, AFolderHasAClassPerDirectory) {
  const std::string directory = ::testing::TempDir() + "/folder";
  std::filesystem::create_directories(directory + "/cat");
  std::filesystem::create_directories(directory + "/dog");
  const Picture one = {1, 1, {1, 2, 3}}, two = {1, 1, {4, 5, 6}};
  ASSERT_OK(WritePpm(one, directory + "/dog/b.ppm"));
  ASSERT_OK(WritePpm(two, directory + "/dog/a.ppm"));
  ASSERT_OK(WritePpm(one, directory + "/cat/c.ppm"));
  const auto folder = OpenFolder(directory);
  ASSERT_OK(folder);
  ASSERT_EQ((*folder)->size(), 3);
  EXPECT_EQ((*folder)->classes(), 2);
  EXPECT_EQ((*folder)->label(0), 0);
  EXPECT_EQ((*folder)->label(1), 1);
  EXPECT_EQ((*folder)->label(2), 1);
  EXPECT_EQ((*folder)->Read(1)->points, two.points);
  EXPECT_THAT(OpenFolder(directory + "/cat"),
              StatusIs(StatusCode::kNotFound, HasSubstr("folder/cat: no pictures")));
}

TEST(DatasetTest, AFolderHasPicturesOfBothKinds) {
  const std::string directory = ::testing::TempDir() + "/kinds";
  std::filesystem::create_directories(directory + "/cat");
  const Picture grey = {8, 8, std::vector<uint8_t>(3 * 8 * 8, 90)};
  ASSERT_OK(WriteJpeg(grey, directory + "/cat/a.JPEG", 95));
  ASSERT_OK(WriteJpeg(grey, directory + "/cat/b.jpg", 95));
  ASSERT_OK(WritePpm(grey, directory + "/cat/c.ppm"));
  ASSERT_OK(WritePpm(grey, directory + "/cat/d.png"));
  const auto folder = OpenFolder(directory);
  ASSERT_OK(folder);
  ASSERT_EQ((*folder)->size(), 3);
  for (int i = 0; i < 3; ++i) {
    const Result<Picture> picture = (*folder)->Read(i);
    ASSERT_OK(picture);
    EXPECT_EQ(picture->width, 8);
    EXPECT_NEAR(picture->points[0], 90, 2);
  }
}

TEST(DatasetTest, BatchesComeInOrder) {
  const auto drawn = DrawDataset(20, 1);
  EXPECT_EQ(All(*drawn, Small(), {3, 12, 5, 7, 0}).labels, (std::vector<int64_t>{3, 2, 5, 7, 0}));
}

TEST(DatasetTest, TheNumberOfWorkersDoesNotShow) {
  const auto drawn = DrawDataset(20, 1);
  LoaderOptions options = Small();
  options.augment = true;
  const std::vector<int64_t> order = {1, 4, 3, 2, 9, 8, 7, 0, 6};
  const Batch alone = All(*drawn, options, order);
  EXPECT_EQ(alone.pixels.size(), 9u * 3 * 8 * 8);
  options.workers = 3;
  EXPECT_EQ(All(*drawn, options, order).pixels, alone.pixels);
  options.seed = 1;
  EXPECT_NE(All(*drawn, options, order).pixels, alone.pixels);
}

TEST(DatasetTest, AnIncompleteBatchIsLeftOutOnRequest) {
  const auto drawn = DrawDataset(20, 1);
  LoaderOptions options = Small();
  options.drop_last = true;
  EXPECT_EQ(All(*drawn, options, {1, 2, 3}).labels.size(), 2u);
  EXPECT_EQ(All(*drawn, options, {1}).labels.size(), 1u);
  EXPECT_EQ(All(*drawn, options, {}).labels.size(), 0u);
}

TEST(DatasetTest, APictureThatCannotBeReadIsAnError) {
  const std::string directory = ::testing::TempDir() + "/broken";
  std::filesystem::create_directories(directory + "/cat");
  ASSERT_OK(WritePpm({1, 1, {1, 2, 3}}, directory + "/cat/a.ppm"));
  const auto folder = OpenFolder(directory);
  ASSERT_OK(folder);
  std::filesystem::remove(directory + "/cat/a.ppm");
  for (const int workers : {0, 2}) {
    LoaderOptions options = Small();
    options.workers = workers;
    BatchLoader loader(**folder, {0}, options);
    EXPECT_THAT(loader.Next(), StatusIs(StatusCode::kNotFound, HasSubstr("cat/a.ppm")));
  }
}

}  // namespace
}  // namespace cadre::imagenet
