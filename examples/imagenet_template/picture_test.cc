#include "picture.h"

#include <fstream>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::imagenet {
namespace {

using ::testing::HasSubstr;

std::string Path(const std::string& name) { return ::testing::TempDir() + "/" + name; }

// Red grows to the right and green downwards, by two per pixel.
Picture Gradient(int width, int height) {
  Picture picture = {width, height, {}};
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      picture.points.insert(picture.points.end(),
                            {static_cast<uint8_t>(2 * x), static_cast<uint8_t>(2 * y), 0});
    }
  }
  return picture;
}

// Undoes the normalization of the first channel.
float Red(float normalized) { return (normalized * 0.229f + 0.485f) * 255; }

TEST(PictureTest, ReadsWhatWasWritten) {
  const Picture picture = Gradient(7, 3);
  ASSERT_OK(WritePpm(picture, Path("a.ppm")));
  const Result<Picture> read = ReadPpm(Path("a.ppm"));
  ASSERT_OK(read);
  EXPECT_EQ(read->width, 7);
  EXPECT_EQ(read->height, 3);
  EXPECT_EQ(read->points, picture.points);
}

TEST(PictureTest, SaysWhatIsWrongWithAFile) {
  EXPECT_THAT(ReadPpm(Path("nowhere.ppm")),
              StatusIs(StatusCode::kNotFound, HasSubstr("nowhere.ppm")));
  for (const std::string content : {"", "P5\n1 1\n255\nabc", "P6\n0 1\n255\n",
                                    "P6\n99999 1\n255\nabc", "P6\n1 1\n65535\nabc"}) {
    std::ofstream(Path("bad.ppm")) << content;
    EXPECT_THAT(ReadPpm(Path("bad.ppm")),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("bad.ppm: not a binary")))
        << content;
  }
  std::ofstream(Path("short.ppm")) << "P6\n2 1\n255\nabc";
  EXPECT_THAT(ReadPpm(Path("short.ppm")),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("shorter than 2 by 1")));
}

TEST(PictureTest, ResamplesABox) {
  const Picture picture = Gradient(100, 100);
  std::vector<float> out(3 * 4 * 4);
  // One pixel of the result is the middle of 10 by 10 pixels of the picture.
  Resample(picture, {20, 40, 40, 40}, /*flip=*/false, 4, out.data());
  EXPECT_NEAR(Red(out[0]), 2 * 24.5f, 0.01f);
  EXPECT_NEAR(Red(out[3]), 2 * 54.5f, 0.01f);
  EXPECT_NEAR((out[16 + 4] * 0.224f + 0.456f) * 255, 2 * 54.5f, 0.01f);
  EXPECT_NEAR(out[2 * 16], -0.406f / 0.225f, 0.001f);
  Resample(picture, {20, 40, 40, 40}, /*flip=*/true, 4, out.data());
  EXPECT_NEAR(Red(out[0]), 2 * 54.5f, 0.01f);
}

TEST(PictureTest, BoxesLieInThePicture) {
  const Picture picture = Gradient(120, 50);
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const Box box = RandomBox(picture, random);
    ASSERT_GE(box.left, 0);
    ASSERT_GE(box.top, 0);
    ASSERT_LE(box.left + box.width, 120.01f);
    ASSERT_LE(box.top + box.height, 50.01f);
    ASSERT_GE(box.width * box.height, 0.079f * 120 * 50);
    ASSERT_GE(box.width / box.height, 0.749f);
    ASSERT_LE(box.width / box.height, 1.334f);
  }
  const Box center = CenterBox(picture);
  EXPECT_FLOAT_EQ(center.width, 43.75f);
  EXPECT_FLOAT_EQ(center.left, (120 - 43.75f) / 2);
}

}  // namespace
}  // namespace cadre::imagenet
