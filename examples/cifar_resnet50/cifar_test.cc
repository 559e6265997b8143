#include "cifar.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "augment.h"
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

// Red grows with x, green with y, blue is 0.
std::vector<uint8_t> Gradient() {
  std::vector<uint8_t> image(kPixels, 0);
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      image[y * kSide + x] = static_cast<uint8_t>(x + 1);
      image[(kSide + y) * kSide + x] = static_cast<uint8_t>(y + 1);
    }
  }
  return image;
}

std::vector<float> Normalized(const Augmentation& augmentation) {
  std::vector<float> out(kPixels);
  Normalize(Gradient().data(), augmentation, out.data());
  return out;
}

float Red(int value) { return (value / 255.0f - 0.4914f) / 0.2023f; }
float Green(int value) { return (value / 255.0f - 0.4822f) / 0.1994f; }

TEST(AugmentTest, WithoutAugmentationOnlyNormalizes) {
  const std::vector<float> out = Normalized({});
  EXPECT_FLOAT_EQ(out[5], Red(6));
  EXPECT_FLOAT_EQ(out[31 * kSide], Red(1));
  EXPECT_FLOAT_EQ(out[(kSide + 7) * kSide + 3], Green(8));
  EXPECT_FLOAT_EQ(out[2 * kSide * kSide], (0 - 0.4465f) / 0.2010f);
}

TEST(AugmentTest, CutsOutOfThePaddedImage) {
  const std::vector<float> out = Normalized({/*left=*/0, /*top=*/8, /*flip=*/false});
  // The four columns on the left are black, and the lowest four rows are beyond the image.
  EXPECT_FLOAT_EQ(out[3], Red(0));
  EXPECT_FLOAT_EQ(out[4], Red(1));
  EXPECT_FLOAT_EQ(out[31], Red(28));
  EXPECT_FLOAT_EQ(out[kSide * kSide + 4], Green(5));
  EXPECT_FLOAT_EQ(out[(kSide + 27) * kSide + 4], Green(32));
  EXPECT_FLOAT_EQ(out[(kSide + 28) * kSide + 4], Green(0));
}

TEST(AugmentTest, Mirrors) {
  const std::vector<float> out = Normalized({/*left=*/kPadding, /*top=*/kPadding, /*flip=*/true});
  EXPECT_FLOAT_EQ(out[0], Red(32));
  EXPECT_FLOAT_EQ(out[31], Red(1));
  EXPECT_FLOAT_EQ(out[(kSide + 7) * kSide + 3], Green(8));
}

TEST(AugmentTest, DrawsEveryAugmentation) {
  std::mt19937_64 random(1);
  std::set<std::tuple<int, int, bool>> seen;
  for (int i = 0; i < 3000; ++i) {
    const Augmentation drawn = DrawAugmentation(random);
    ASSERT_GE(drawn.left, 0);
    ASSERT_LE(drawn.left, 2 * kPadding);
    seen.insert({drawn.left, drawn.top, drawn.flip});
  }
  EXPECT_EQ(seen.size(), 9u * 9u * 2u);
}

}  // namespace

}  // namespace cadre::cifar
