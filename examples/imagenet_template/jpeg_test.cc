#include "jpeg.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

// This comes after <cstdio>, which it needs.
#include <jpeglib.h>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::imagenet {
namespace {

using ::testing::HasSubstr;

std::string Path(const std::string& name) { return ::testing::TempDir() + "/" + name; }

// A smooth picture: red grows to the right and green downwards.
Picture Gradient(int width, int height) {
  Picture picture = {width, height, {}};
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      picture.points.insert(picture.points.end(),
                            {static_cast<uint8_t>(4 * x), static_cast<uint8_t>(4 * y), 100});
    }
  }
  return picture;
}

// Writes a picture of one value per component, of another kind than WriteJpeg() writes.
void WritePlain(const std::string& path, J_COLOR_SPACE kind, std::vector<JSAMPLE> value) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  jpeg_stdio_dest(&info, file);
  info.image_width = info.image_height = 1;
  info.input_components = static_cast<int>(value.size());
  info.in_color_space = kind;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 100, TRUE);
  jpeg_start_compress(&info, TRUE);
  JSAMPROW row = value.data();
  jpeg_write_scanlines(&info, &row, 1);
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::fclose(file);
}

TEST(JpegTest, ReadsAboutWhatWasWritten) {
  const Picture picture = Gradient(60, 40);
  ASSERT_OK(WriteJpeg(picture, Path("a.jpg"), 100));
  const Result<Picture> read = ReadJpeg(Path("a.jpg"));
  ASSERT_OK(read);
  EXPECT_EQ(read->width, 60);
  EXPECT_EQ(read->height, 40);
  ASSERT_EQ(read->points.size(), picture.points.size());
  for (size_t i = 0; i < picture.points.size(); ++i) {
    ASSERT_LE(std::abs(read->points[i] - picture.points[i]), 8) << i;
  }
}

TEST(JpegTest, GreyBecomesThreeEqualChannels) {
  WritePlain(Path("grey.jpg"), JCS_GRAYSCALE, {90});
  const Result<Picture> read = ReadJpeg(Path("grey.jpg"));
  ASSERT_OK(read);
  ASSERT_EQ(read->points.size(), 3u);
  for (const uint8_t point : read->points) EXPECT_NEAR(point, 90, 2);
}

// The library writes Adobe's marker, and the values unchanged, so they say how little ink there is.
TEST(JpegTest, InksBecomeLight) {
  WritePlain(Path("cmyk.jpg"), JCS_CMYK, {200, 100, 0, 204});
  const Result<Picture> read = ReadJpeg(Path("cmyk.jpg"));
  ASSERT_OK(read);
  ASSERT_EQ(read->points.size(), 3u);
  EXPECT_NEAR(read->points[0], 160, 3);
  EXPECT_NEAR(read->points[1], 80, 3);
  EXPECT_NEAR(read->points[2], 0, 3);
}

TEST(JpegTest, ASideHasALimit) {
  ASSERT_OK(WriteJpeg(Gradient(kMaxPictureSide, 1), Path("long.jpg"), 90));
  EXPECT_OK(ReadJpeg(Path("long.jpg")));
  ASSERT_OK(WriteJpeg(Gradient(kMaxPictureSide + 1, 1), Path("longer.jpg"), 90));
  EXPECT_THAT(ReadJpeg(Path("longer.jpg")),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("longer.jpg: not a JPEG picture that can be read: it has sides of "
                                 "16385 and 1 points; expected at most 16384")));
}

TEST(JpegTest, SaysWhatIsWrongWithAFile) {
  EXPECT_THAT(ReadJpeg(Path("nowhere.jpg")),
              StatusIs(StatusCode::kNotFound, HasSubstr("nowhere.jpg")));
  for (const std::string content : {"", "P6\n1 1\n255\nabc"}) {
    std::ofstream(Path("bad.jpg")) << content;
    EXPECT_THAT(ReadJpeg(Path("bad.jpg")),
                StatusIs(StatusCode::kInvalidArgument,
                         HasSubstr("bad.jpg: not a JPEG picture that can be read: ")))
        << content;
  }
  ASSERT_OK(WriteJpeg(Gradient(60, 40), Path("whole.jpg"), 90));
  std::ostringstream whole;
  whole << std::ifstream(Path("whole.jpg"), std::ios::binary).rdbuf();
  std::ofstream(Path("short.jpg"), std::ios::binary)
      << whole.str().substr(0, whole.str().size() * 3 / 4);
  EXPECT_THAT(ReadJpeg(Path("short.jpg")),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("short.jpg: ends within")));
  EXPECT_FALSE(WriteJpeg(Gradient(1, 1), "/nowhere/a.jpg", 90).ok());
}

}  // namespace
}  // namespace cadre::imagenet
