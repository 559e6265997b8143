// Labelled pictures, and batches of them that are made ahead of time. Thread safe but for
// BatchLoader.
#ifndef CADRE_EXAMPLES_IMAGENET_TEMPLATE_DATASET_H_
#define CADRE_EXAMPLES_IMAGENET_TEMPLATE_DATASET_H_

#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cadre/result.h"
#include "picture.h"

namespace cadre::imagenet {

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual int64_t classes() const = 0;
  virtual int64_t label(int64_t i) const = 0;
  virtual Result<Picture> Read(int64_t i) const = 0;
};

// The .jpg, .jpeg and .ppm files in `directory`: one subdirectory for each class, classes in the
// order of their names. NOT_FOUND: there is no such directory, or no picture in it.
Result<std::unique_ptr<Dataset>> OpenFolder(const std::string& directory);

// Pictures of 64 by 64 points in ten colors, which are their classes.
std::unique_ptr<Dataset> DrawDataset(int64_t size, uint64_t seed);

struct Batch {
  // [n, 3, side, side] and [n].
  std::vector<float> pixels;
  std::vector<int64_t> labels;
};

struct LoaderOptions {
  int batch_size = 1;
  // Batches that are made at the same time, each by a thread; 0: only when they are asked for.
  int workers = 0;
  int side = 224;
  // Whether parts are cut out and mirrored at random; else the middle is taken.
  bool augment = false;
  // The same pictures for the same seed, however many workers there are.
  uint64_t seed = 0;
  // Leave out a last batch that is not full, unless it is the only one.
  bool drop_last = false;
};

// One thread.
class BatchLoader {
 public:
  // `order` says which pictures, and when; `dataset` outlives this.
  BatchLoader(const Dataset& dataset, std::vector<int64_t> order, const LoaderOptions& options);

  int64_t batches() const { return batches_; }
  // nullopt after the last one. Errors are Dataset::Read()'s.
  Result<std::optional<Batch>> Next();

 private:
  Result<Batch> Make(int64_t batch) const;
  void Order();

  const Dataset& dataset_;
  const std::vector<int64_t> order_;
  const LoaderOptions options_;
  int64_t batches_ = 0;
  int64_t next_ = 0;
  // Their destructors wait: nothing runs longer than this lives.
  std::deque<std::future<Result<Batch>>> ordered_;
};

}  // namespace cadre::imagenet

#endif  // CADRE_EXAMPLES_IMAGENET_TEMPLATE_DATASET_H_
