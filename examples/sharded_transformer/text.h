// A text as numbers: each byte that is in it has one. Includes libtorch.
#ifndef CADRE_EXAMPLES_SHARDED_TRANSFORMER_TEXT_H_
#define CADRE_EXAMPLES_SHARDED_TRANSFORMER_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cadre/result.h"
#include "torch/types.h"

namespace cadre::transformer {

// Of {sequences, context}; each target is what comes after the input at its place.
struct Batch {
  torch::Tensor inputs, targets;
};

class Text {
 public:
  // Empty: the sonnets that come with the example. NOT_FOUND: it cannot be read; INVALID_ARGUMENT:
  // it is too short for a sequence of `context` and what comes after it.
  static Result<Text> Load(const std::string& path, int64_t context);

  // Different bytes.
  int64_t vocabulary() const { return static_cast<int64_t>(bytes_.size()); }
  // Sequences `first` to `first + count` - 1 of a step, wherever they are computed: the same for
  // any number of ranks.
  Batch Sequences(int64_t step, int64_t first, int64_t count) const;
  // INVALID_ARGUMENT: a byte is not in the text.
  Result<torch::Tensor> Encode(const std::string& text) const;
  char Decode(int64_t id) const { return bytes_[static_cast<size_t>(id)]; }

 private:
  Text(const std::string& text, int64_t context);

  const int64_t context_;
  std::string bytes_;  // by their number
  torch::Tensor ids_;
};

}  // namespace cadre::transformer

#endif  // CADRE_EXAMPLES_SHARDED_TRANSFORMER_TEXT_H_
