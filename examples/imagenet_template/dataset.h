// Labelled pictures, and batches of them that are made ahead of time. Thread safe except for
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

// Finds the .jpg, .jpeg and .ppm files in `directory`, which has one subdirectory for each class;
// classes are in the order of their names. Fails with NOT_FOUND if there is no such directory, or
// no picture in it.
Result<std::unique_ptr<Dataset>> OpenFolder(const std::string& directory);

// Draws pictures of 64 by 64 pixels in ten colors; the color is the class.
std::unique_ptr<Dataset> DrawDataset(int64_t size, uint64_t seed);

struct Batch {
  // The shapes are [n, 3, side, side] and [n].
  std::vector<float> pixels;
  std::vector<int64_t> labels;
};

struct LoaderOptions {
  int batch_size = 1;
  // The number of batches that are made at the same time, each by a thread; with 0 a batch is made
  // only when it is asked for.
  int workers = 0;
  int side = 224;
  // Whether parts are cut out and mirrored at random; otherwise the middle is taken.
  bool augment = false;
  // The same seed gives the same pictures, however many workers there are.
  uint64_t seed = 0;
  // Whether a last batch that is not full is left out, unless it is the only one.
  bool drop_last = false;
};

// Used by one thread.
class BatchLoader {
 public:
  // `order` lists the pictures in the order in which they are used; `dataset` must outlive this.
  BatchLoader(const Dataset& dataset, std::vector<int64_t> order, const LoaderOptions& options);

  int64_t batches() const { return batches_; }
  // Returns nullopt after the last batch. Errors are those of Dataset::Read().
  Result<std::optional<Batch>> Next();

 private:
  Result<Batch> Make(int64_t batch) const;
  void Order();

  const Dataset& dataset_;
  const std::vector<int64_t> order_;
  const LoaderOptions options_;
  int64_t batches_ = 0;
  int64_t next_ = 0;
  // The futures' destructors wait, so that no thread outlives this object.
  std::deque<std::future<Result<Batch>>> ordered_;
};

}  // namespace cadre::imagenet

#endif  // CADRE_EXAMPLES_IMAGENET_TEMPLATE_DATASET_H_
