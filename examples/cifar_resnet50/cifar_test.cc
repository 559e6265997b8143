#include "cifar.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::cifar {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Path(const std::string& name) { return ::testing::TempDir() + "/" + name; }

TEST(CifarTest, ReadsWhatWasWritten) {
  const Images images = DrawImages(12, 1);
  ASSERT_OK(WriteImages(images, Path("a.bin")));
  EXPECT_EQ(std::filesystem::file_size(Path("a.bin")), 12 * 3073u);
  const Result<Images> read = ReadImages({Path("a.bin"), Path("a.bin")}, 0);
  ASSERT_OK(read);
  ASSERT_EQ(read->size(), 24u);
  for (size_t i = 0; i < 24; ++i) {
    EXPECT_EQ(read->labels[i], images.labels[i % 12]);
    EXPECT_TRUE(std::equal(read->image(i), read->image(i) + kPixels, images.image(i % 12)));
  }
}

TEST(CifarTest, ReadsAsManyAsAskedFor) {
  ASSERT_OK(WriteImages(DrawImages(5, 1), Path("five.bin")));
  const Result<Images> read = ReadImages({Path("five.bin"), Path("five.bin")}, 7);
  ASSERT_OK(read);
  EXPECT_EQ(read->size(), 7u);
  EXPECT_EQ(read->pixels.size(), 7 * kPixels);
}

TEST(CifarTest, TrainsOnTheFilesThatAreThere) {
  const std::string directory = Path("two_files");
  std::filesystem::create_directory(directory);
  ASSERT_OK(WriteImages(DrawImages(3, 1), directory + "/data_batch_1.bin"));
  ASSERT_OK(WriteImages(DrawImages(4, 2), directory + "/data_batch_2.bin"));
  const Result<Images> training = ReadTrainingImages(directory, 0);
  ASSERT_OK(training);
  EXPECT_EQ(training->size(), 7u);
  EXPECT_THAT(ReadTestImages(directory, 0),
              StatusIs(StatusCode::kNotFound, HasSubstr("two_files/test_batch.bin")));
  EXPECT_THAT(ReadTrainingImages(Path("nowhere"), 0),
              StatusIs(StatusCode::kNotFound, HasSubstr("nowhere/data_batch_1.bin")));
}

TEST(CifarTest, SaysWhatIsWrongWithAFile) {
  std::ofstream(Path("short.bin")) << std::string(3000, 'x');
  EXPECT_THAT(ReadImages({Path("short.bin")}, 0),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("short.bin"), HasSubstr("3000 bytes"), HasSubstr("3073"))));
  Images images = DrawImages(2, 1);
  images.labels[1] = 10;
  ASSERT_OK(WriteImages(images, Path("label.bin")));
  EXPECT_THAT(ReadImages({Path("label.bin")}, 0),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("record 1 has label 10")));
}

TEST(CifarTest, DrawnImagesAreTheSameForOneSeed) {
  const Images one = DrawImages(100, 3);
  EXPECT_EQ(one.pixels, DrawImages(100, 3).pixels);
  EXPECT_NE(one.pixels, DrawImages(100, 4).pixels);
  EXPECT_EQ(std::set<uint8_t>(one.labels.begin(), one.labels.end()).size(), 10u);
}

}  // namespace
}  // namespace cadre::cifar
