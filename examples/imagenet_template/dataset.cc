#include "dataset.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <random>
#include <utility>

#include "cadre/status_macros.h"
#include "jpeg.h"

namespace cadre::imagenet {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDrawnClasses = 10;
constexpr int kDrawnSide = 64;

// Returns ".jpeg" for "a.JPEG".
std::string Extension(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& letter : extension) letter = static_cast<char>(std::tolower(letter));
  return extension;
}

bool IsJpeg(const fs::path& path) {
  return Extension(path) == ".jpg" || Extension(path) == ".jpeg";
}

std::vector<std::string> Sorted(const std::string& directory, bool directories) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const bool wanted = directories ? it->is_directory() : IsJpeg(*it) || Extension(*it) == ".ppm";
    if (wanted) paths.push_back(it->path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

class Folder : public Dataset {
 public:
  explicit Folder(const std::string& directory) {
    for (const std::string& path : Sorted(directory, /*directories=*/true)) {
      for (std::string& picture : Sorted(path, /*directories=*/false)) {
        pictures_.push_back(std::move(picture));
        labels_.push_back(classes_);
      }
      ++classes_;
    }
  }

  int64_t size() const override { return labels_.size(); }
  int64_t classes() const override { return classes_; }
  int64_t label(int64_t i) const override { return labels_[i]; }
  Result<Picture> Read(int64_t i) const override {
    const std::string& path = pictures_[i];
    return IsJpeg(path) ? ReadJpeg(path) : ReadPpm(path);
  }

 private:
  std::vector<std::string> pictures_;
  std::vector<int64_t> labels_;
  int64_t classes_ = 0;
};

class Drawn : public Dataset {
 public:
  Drawn(int64_t size, uint64_t seed) : size_(size), seed_(seed) {}

  int64_t size() const override { return size_; }
  int64_t classes() const override { return kDrawnClasses; }
  int64_t label(int64_t i) const override { return i % kDrawnClasses; }
  Result<Picture> Read(int64_t i) const override {
    std::mt19937_64 random(seed_ + i);
    Picture picture = {kDrawnSide, kDrawnSide, {}};
    picture.points.reserve(size_t{kChannels} * kDrawnSide * kDrawnSide);
    for (int point = 0; point < kDrawnSide * kDrawnSide; ++point) {
      for (int channel = 0; channel < kChannels; ++channel) {
        const int64_t color = (label(i) + 1) * (channel + 2) * 37 % 200;
        picture.points.push_back(static_cast<uint8_t>(color + random() % 56));
      }
    }
    return picture;
  }

 private:
  const int64_t size_;
  const uint64_t seed_;
};

}  // namespace

Result<std::unique_ptr<Dataset>> OpenFolder(const std::string& directory) {
  auto folder = std::make_unique<Folder>(directory);
  if (folder->size() > 0) return folder;
  return NotFoundError(
      directory +
      ": no pictures; expected one subdirectory per class with .jpg, .jpeg or .ppm files in it");
}

std::unique_ptr<Dataset> DrawDataset(int64_t size, uint64_t seed) {
  return std::make_unique<Drawn>(size, seed);
}

BatchLoader::BatchLoader(const Dataset& dataset, std::vector<int64_t> order,
                         const LoaderOptions& options)
    : dataset_(dataset), order_(std::move(order)), options_(options) {
  const auto count = static_cast<int64_t>(order_.size());
  batches_ = (count + options_.batch_size - 1) / options_.batch_size;
  if (options_.drop_last && batches_ > 1) batches_ = count / options_.batch_size;
  for (int i = 0; i < std::max(1, options_.workers); ++i) Order();
}

// Starts one more batch, if there is one.
void BatchLoader::Order() {
  if (next_ == batches_) return;
  const auto when = options_.workers > 0 ? std::launch::async : std::launch::deferred;
  ordered_.push_back(std::async(when, [this, batch = next_++] { return Make(batch); }));
}

Result<Batch> BatchLoader::Make(int64_t batch) const {
  const size_t from = batch * options_.batch_size;
  const size_t to = std::min(order_.size(), from + options_.batch_size);
  const size_t picture_size = size_t{kChannels} * options_.side * options_.side;
  Batch result;
  result.pixels.resize((to - from) * picture_size);
  for (size_t i = from; i < to; ++i) {
    CADRE_ASSIGN_OR_RETURN(const Picture picture, dataset_.Read(order_[i]));
    std::seed_seq seeds = {static_cast<int64_t>(options_.seed), order_[i]};
    std::mt19937_64 random(seeds);
    const Box box = options_.augment ? RandomBox(picture, random) : CenterBox(picture);
    const bool flip = options_.augment && random() % 2 == 1;
    Resample(picture, box, flip, options_.side, result.pixels.data() + (i - from) * picture_size);
    result.labels.push_back(dataset_.label(order_[i]));
  }
  return result;
}

Result<std::optional<Batch>> BatchLoader::Next() {
  if (ordered_.empty()) return std::nullopt;
  CADRE_ASSIGN_OR_RETURN(Batch batch, ordered_.front().get());
  ordered_.pop_front();
  Order();
  return batch;
}

}  // namespace cadre::imagenet
