// The order in which the parts of a batch are summed, on whichever ranks they are. Pure.
#ifndef CADRE_TORCH_SUMMATION_TREE_H_
#define CADRE_TORCH_SUMMATION_TREE_H_

#include <utility>
#include <vector>

namespace cadre::nn {

// Parts `begin` to `end` - 1.
struct PartRange {
  int begin = 0;
  int end = 0;

  int size() const { return end - begin; }
};

// The parts of one rank: the counts of any two ranks differ by at most one.
inline PartRange PartsOf(int rank, int ranks, int parts) {
  return {rank * parts / ranks, (rank + 1) * parts / ranks};
}

// Whether two adjacent ranges are the halves of a node of the tree over all parts, in which each
// node's left half has as many parts as its right one, or one less.
inline bool AreHalves(PartRange left, PartRange right, int parts) {
  for (PartRange node = {0, parts}; node.size() > 1;) {
    const int middle = (node.begin + node.end) / 2;
    if (node.begin == left.begin && node.end == right.end) return middle == left.end;
    if (right.end <= middle) {
      node.end = middle;
    } else if (left.begin >= middle) {
      node.begin = middle;
    } else {
      return false;
    }
  }
  return false;
}

// Sums adjacent parts, each tree node as soon as both halves exist, so that the same additions are
// made however the parts were grouped before.
template <typename Value>
class TreeSum {
 public:
  struct Node {
    PartRange range;
    Value value;
  };

  explicit TreeSum(int parts) : parts_(parts) {}

  // `range` begins where the previous one ended. `add(a, b)` adds `b` to `a`.
  template <typename Add>
  void Push(PartRange range, Value value, const Add& add) {
    nodes_.push_back({range, std::move(value)});
    while (nodes_.size() > 1) {
      Node& left = nodes_[nodes_.size() - 2];
      const Node& right = nodes_.back();
      if (!AreHalves(left.range, right.range, parts_)) return;
      add(left.value, right.value);
      left.range.end = right.range.end;
      nodes_.pop_back();
    }
  }

  // The sums not combined yet: one node if all parts are present, otherwise at most twice the
  // tree's height.
  const std::vector<Node>& nodes() const { return nodes_; }
  void Clear() { nodes_.clear(); }

 private:
  const int parts_;
  std::vector<Node> nodes_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_SUMMATION_TREE_H_
