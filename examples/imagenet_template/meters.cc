#include "meters.h"

#include <cstdio>

namespace cadre::imagenet {
namespace {

std::string Written(double value, const NumberFormat& format) {
  char text[64];
  if (format.scientific) {
    std::snprintf(text, sizeof(text), "%*.*e", format.width, format.precision, value);
  } else {
    std::snprintf(text, sizeof(text), "%*.*f", format.width, format.precision, value);
  }
  return text;
}

}  // namespace

void AverageMeter::Update(double value, double count) {
  value_ = value;
  sum_ += value * count;
  count_ += count;
}

std::string AverageMeter::Text() const {
  return name_ + " " + Written(value_, format_) + " (" + Written(average(), format_) + ")";
}

std::string BatchText(const std::string& before, int64_t batch, int64_t batches) {
  const std::string all = std::to_string(batches);
  std::string one = std::to_string(batch);
  if (one.size() < all.size()) one.insert(0, all.size() - one.size(), ' ');
  return before + "[" + one + "/" + all + "]";
}

}  // namespace cadre::imagenet
