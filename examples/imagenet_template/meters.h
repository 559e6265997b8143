// The output lines of PyTorch's ImageNet program. Pure.
#ifndef CADRE_EXAMPLES_IMAGENET_TEMPLATE_METERS_H_
#define CADRE_EXAMPLES_IMAGENET_TEMPLATE_METERS_H_

#include <cstdint>
#include <string>
#include <utility>

namespace cadre::imagenet {

// The format in which a number is written.
struct NumberFormat {
  int width = 0;
  int precision = 0;
  bool scientific = false;
};

inline constexpr NumberFormat kSeconds = {6, 3, false};
inline constexpr NumberFormat kLoss = {0, 4, true};
inline constexpr NumberFormat kPercent = {6, 2, false};

// Keeps the latest value and the average.
class AverageMeter {
 public:
  AverageMeter(std::string name, NumberFormat format) : name_(std::move(name)), format_(format) {}

  void Update(double value, double count = 1);
  double average() const { return count_ == 0 ? 0 : sum_ / count_; }
  // Returns, for example, "Time  0.250 ( 0.500)".
  std::string Text() const;

 private:
  const std::string name_;
  const NumberFormat format_;
  double value_ = 0;
  double sum_ = 0;
  double count_ = 0;
};

// Returns, for example, "Epoch: [0][ 10/100]", which goes before the meters; batches count from 1.
std::string BatchText(const std::string& before, int64_t batch, int64_t batches);

}  // namespace cadre::imagenet

#endif  // CADRE_EXAMPLES_IMAGENET_TEMPLATE_METERS_H_
