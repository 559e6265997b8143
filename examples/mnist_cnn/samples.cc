#include "samples.h"

#include "cadre/status_macros.h"
#include "digits.h"
#include "idx.h"

namespace cadre::mnist {
namespace {

constexpr size_t kSide = 28;
// These are the mean and the deviation of the whole MNIST training set.
constexpr float kMean = 0.1307f;
constexpr float kDeviation = 0.3081f;

}  // namespace

// Every node draws its own digits, once, before any worker reads them. A worker that comes later
// finds them, or draws them without the others, which have passed this point.
Result<std::string> FindSamples(Worker& worker, const std::string& directory,
                                std::chrono::nanoseconds timeout) {
  if (!directory.empty()) return directory;
  if (worker.place().restart_count > 0) return DrawnDigitsDirectory();
  Result<std::string> drawn = std::string();
  if (worker.place().local_rank == 0) drawn = DrawnDigitsDirectory();
  CADRE_RETURN_IF_ERROR(drawn.status());
  CADRE_RETURN_IF_ERROR(worker.Barrier("digits drawn", timeout));
  return DrawnDigitsDirectory();
}

Result<Samples> LoadSamples(const std::string& directory, const std::string& prefix, int limit,
                            const torch::Device& device) {
  CADRE_ASSIGN_OR_RETURN(ImageSet set, ReadImageSet(directory, prefix, limit));
  if (set.rows != kSide || set.columns != kSide) {
    return InvalidArgumentError("the images in " + directory + " are " + std::to_string(set.rows) +
                                " by " + std::to_string(set.columns) + "; expected 28 by 28");
  }
  const auto count = static_cast<int64_t>(set.size());
  const torch::Tensor pixels = torch::from_blob(
      set.pixels.data(), {count, 1, int64_t{kSide}, int64_t{kSide}}, torch::kUInt8);
  const torch::Tensor labels = torch::from_blob(set.labels.data(), {count}, torch::kUInt8);
  return Samples{((pixels.to(torch::kFloat32) / 255 - kMean) / kDeviation).to(device),
                 labels.to(torch::kInt64).to(device)};
}

}  // namespace cadre::mnist
