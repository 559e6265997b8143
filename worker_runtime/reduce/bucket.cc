#include "worker_runtime/reduce/bucket.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"

namespace cadre::reduce {
namespace {

struct OpenBucket {
  Bucket members;
  size_t bytes = 0;
  // Which of the limits holds for this bucket.
  size_t limit = 0;
  // Position in the order of the first member.
  size_t opened = 0;
};

}  // namespace

std::vector<Bucket> AssignBuckets(Span<const GradientShape> gradients, Span<const size_t> limits,
                                  Span<const size_t> order) {
  std::vector<Bucket> buckets;
  std::map<std::pair<DataType, int>, OpenBucket> open;
  for (size_t position = 0; position < order.size(); ++position) {
    CADRE_CHECK(order[position] < gradients.size(), "the order names gradient ", order[position],
                " of ", gradients.size());
    const GradientShape& gradient = gradients[order[position]];
    OpenBucket& bucket = open[{gradient.type, gradient.kind}];
    if (bucket.members.empty()) bucket.opened = position;
    bucket.members.push_back(order[position]);
    bucket.bytes += gradient.bytes;
    if (limits.empty() || bucket.bytes < limits[bucket.limit]) continue;
    buckets.push_back(std::move(bucket.members));
    bucket.members.clear();
    bucket.bytes = 0;
    bucket.limit = std::min(bucket.limit + 1, limits.size() - 1);
  }
  std::vector<OpenBucket> rest;
  for (auto& [key, bucket] : open) {
    if (!bucket.members.empty()) rest.push_back(std::move(bucket));
  }
  std::sort(rest.begin(), rest.end(),
            [](const OpenBucket& a, const OpenBucket& b) { return a.opened < b.opened; });
  for (OpenBucket& bucket : rest) buckets.push_back(std::move(bucket.members));
  return buckets;
}

std::vector<size_t> ReverseOrder(size_t count) {
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) order[i] = count - 1 - i;
  return order;
}

}  // namespace cadre::reduce
