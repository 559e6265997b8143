// Reads pictures, and cuts out what a network sees. Pure except for ReadPpm(); thread safe.
#ifndef CADRE_EXAMPLES_IMAGENET_TEMPLATE_PICTURE_H_
#define CADRE_EXAMPLES_IMAGENET_TEMPLATE_PICTURE_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre::imagenet {

constexpr int kChannels = 3;
// The largest width and height of a picture.
constexpr int kMaxPictureSide = 16384;

struct Picture {
  int width = 0;
  int height = 0;
  // Row by row; red, green and blue of each pixel.
  std::vector<uint8_t> points;
};

// Reads a binary PPM file ("P6", 255 levels). Fails with NOT_FOUND, or with INVALID_ARGUMENT, which
// names the file and what is wrong.
Result<Picture> ReadPpm(const std::string& path);
Status WritePpm(const Picture& picture, const std::string& path);

// A rectangular part of a picture.
struct Box {
  float left = 0;
  float top = 0;
  float width = 0;
  float height = 0;
};

// For training: returns 8 to 100 % of the area with a ratio of 3/4 to 4/3, at any position.
Box RandomBox(const Picture& picture, std::mt19937_64& random);
// For evaluation: returns the square in the middle, with 224/256 of the shorter side.
Box CenterBox(const Picture& picture);

// Writes the box as `side` by `side` interpolated pixels, normalized with ImageNet's means and
// standard deviations: all red values, then green, then blue.
void Resample(const Picture& picture, const Box& box, bool flip, int side, float* out);

}  // namespace cadre::imagenet

#endif  // CADRE_EXAMPLES_IMAGENET_TEMPLATE_PICTURE_H_
