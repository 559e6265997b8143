#include "augment.h"

#include <set>
#include <tuple>
#include <vector>

#include "cifar.h"
#include "gtest/gtest.h"

namespace cadre::cifar {
namespace {

// Red grows with x, green with y, blue is black.
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
  // Four black columns on the left, and the lowest four rows are beyond the image.
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
