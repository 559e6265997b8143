#include "digits.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <system_error>
#include <vector>

#include "cadre/status_macros.h"
#include "unlike_name.h"

namespace cadre::mnist {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSide = 28;
constexpr size_t kTrainCount = 6000;
constexpr size_t kTestCount = 1000;
constexpr uint64_t kTrainSeed = 1;
constexpr uint64_t kTestSeed = 2;

struct Point {
  float x, y;
};
using Stroke = std::vector<Point>;

Stroke Arc(Point center, float rx, float ry, float from_degrees, float to_degrees) {
  constexpr int kPieces = 10;
  constexpr float kRadians = 3.14159265f / 180;
  Stroke stroke;
  for (int i = 0; i <= kPieces; ++i) {
    const float angle = (from_degrees + (to_degrees - from_degrees) * i / kPieces) * kRadians;
    stroke.push_back({center.x + rx * std::cos(angle), center.y + ry * std::sin(angle)});
  }
  return stroke;
}

// The coordinates lie in a box from (-0.5, -1) at the top left to (0.5, 1).
std::vector<Stroke> Shape(int digit) {
  switch (digit) {
    case 0:
      return {Arc({0, 0}, 0.5f, 1, 0, 360)};
    case 1:
      return {{{-0.25f, -0.65f}, {0.05f, -1}, {0.05f, 1}}};
    case 2:
      return {Arc({0, -0.5f}, 0.5f, 0.5f, -170, 40), {{0.38f, -0.18f}, {-0.5f, 1}, {0.5f, 1}}};
    case 3:
      return {Arc({-0.05f, -0.5f}, 0.5f, 0.5f, -150, 90),
              Arc({-0.05f, 0.5f}, 0.55f, 0.5f, -90, 150)};
    case 4:
      return {{{0.25f, 1}, {0.25f, -1}, {-0.5f, 0.35f}, {0.5f, 0.35f}}};
    case 5:
      return {{{0.45f, -1}, {-0.4f, -1}, {-0.4f, -0.1f}},
              Arc({-0.05f, 0.4f}, 0.5f, 0.58f, -130, 140)};
    case 6:
      return {Arc({0.25f, 0.3f}, 0.75f, 1.3f, 180, 265), Arc({0, 0.45f}, 0.5f, 0.55f, 0, 360)};
    case 7:
      return {{{-0.5f, -1}, {0.5f, -1}, {-0.1f, 1}}};
    case 8:
      return {Arc({0, -0.5f}, 0.42f, 0.48f, 0, 360), Arc({0, 0.5f}, 0.5f, 0.5f, 0, 360)};
    default:
      return {Arc({0, -0.45f}, 0.5f, 0.55f, 0, 360), {{0.5f, -0.45f}, {0.4f, 0.4f}, {0.1f, 1}}};
  }
}

float DistanceToSegment(Point p, Point a, Point b) {
  const float dx = b.x - a.x, dy = b.y - a.y;
  const float length2 = dx * dx + dy * dy;
  float t = length2 > 0 ? ((p.x - a.x) * dx + (p.y - a.y) * dy) / length2 : 0;
  t = std::clamp(t, 0.0f, 1.0f);
  return std::hypot(p.x - (a.x + t * dx), p.y - (a.y + t * dy));
}

class Random {
 public:
  explicit Random(uint64_t seed) : bits_(seed) {}
  // Implemented here, because the standard distributions differ between libraries.
  float Between(float low, float high) {
    return low + (high - low) * static_cast<float>(bits_() >> 40) / static_cast<float>(1 << 24);
  }

 private:
  std::mt19937_64 bits_;
};

std::vector<Stroke> Distort(std::vector<Stroke> strokes, Random& random) {
  const float scale_x = random.Between(6, 10), scale_y = random.Between(7, 10);
  const float angle = random.Between(-0.3f, 0.3f), slant = random.Between(-0.25f, 0.25f);
  const Point center = {kSide / 2.0f + random.Between(-3, 3), kSide / 2.0f + random.Between(-3, 3)};
  for (Stroke& stroke : strokes) {
    for (Point& p : stroke) {
      const float x = (p.x + slant * p.y + random.Between(-0.04f, 0.04f)) * scale_x;
      const float y = (p.y + random.Between(-0.04f, 0.04f)) * scale_y;
      p = {center.x + x * std::cos(angle) - y * std::sin(angle),
           center.y + x * std::sin(angle) + y * std::cos(angle)};
    }
  }
  return strokes;
}

void Draw(const std::vector<Stroke>& strokes, Random& random, uint8_t* pixels) {
  const float radius = random.Between(0.7f, 1.6f);
  const float noise = random.Between(0, 40);
  for (size_t row = 0; row < kSide; ++row) {
    for (size_t column = 0; column < kSide; ++column) {
      const Point here = {column + 0.5f, row + 0.5f};
      float distance = kSide;
      for (const Stroke& stroke : strokes) {
        for (size_t i = 1; i < stroke.size(); ++i) {
          distance = std::min(distance, DistanceToSegment(here, stroke[i - 1], stroke[i]));
        }
      }
      const float ink = 255 * std::clamp(radius + 0.5f - distance, 0.0f, 1.0f);
      const float value = ink + random.Between(-noise, noise);
      pixels[row * kSide + column] = static_cast<uint8_t>(std::clamp(value, 0.0f, 255.0f));
    }
  }
}

Result<fs::path> CacheDirectory() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return fs::path(cache);
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return fs::path(home) / ".cache";
  return NotFoundError(
      "neither XDG_CACHE_HOME nor HOME says where to put the drawn digits; set one or pass "
      "--data-dir");
}

}  // namespace

ImageSet DrawDigits(size_t count, uint64_t seed) {
  Random random(seed);
  ImageSet set;
  set.rows = set.columns = kSide;
  set.pixels.resize(count * kSide * kSide);
  for (size_t i = 0; i < count; ++i) {
    const int digit = static_cast<int>(i % 10);
    set.labels.push_back(static_cast<uint8_t>(digit));
    Draw(Distort(Shape(digit), random), random, &set.pixels[i * kSide * kSide]);
  }
  return set;
}

Result<std::string> DrawnDigitsDirectory() {
  CADRE_ASSIGN_OR_RETURN(const fs::path cache, CacheDirectory());
  const fs::path target =
      cache / "cadre" /
      ("digits-1-" + std::to_string(kTrainCount) + "-" + std::to_string(kTestCount));
  std::error_code error;
  if (fs::exists(target, error)) return target.string();
  const fs::path partial = target.string() + "." + UnlikeName();
  fs::create_directories(partial, error);
  if (error) return UnavailableError(partial.string() + ": " + error.message());
  CADRE_RETURN_IF_ERROR(WriteImageSet(DrawDigits(kTrainCount, kTrainSeed), partial, "train"));
  CADRE_RETURN_IF_ERROR(WriteImageSet(DrawDigits(kTestCount, kTestSeed), partial, "t10k"));
  fs::rename(partial, target, error);
  if (!error) return target.string();
  const std::string reason = error.message();
  fs::remove_all(partial, error);
  // Another process may have created it first.
  if (fs::exists(target, error)) return target.string();
  return UnavailableError(target.string() + ": " + reason);
}

}  // namespace cadre::mnist
