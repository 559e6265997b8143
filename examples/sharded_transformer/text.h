// A text as numbers: each different byte in it has a number. Includes libtorch.
#ifndef CADRE_EXAMPLES_SHARDED_TRANSFORMER_TEXT_H_
#define CADRE_EXAMPLES_SHARDED_TRANSFORMER_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cadre/result.h"
#include "torch/types.h"

namespace cadre::transformer {

// The shape is {sequences, context}; each target is the byte after the input at its position.
struct Batch {
  torch::Tensor inputs, targets;
};

class Text {
 public:
  // An empty path means the sonnets that come with the example. Fails with NOT_FOUND if the file
  // cannot be read, and with INVALID_ARGUMENT if it is too short for a sequence of `context` and
  // the next byte.
  static Result<Text> Load(const std::string& path, int64_t context);

  // Returns the number of different bytes.
  int64_t vocabulary() const { return static_cast<int64_t>(bytes_.size()); }
  // Returns sequences `first` to `first + count` - 1 of a step. They do not depend on the rank that
  // asks or on the number of ranks.
  Batch Sequences(int64_t step, int64_t first, int64_t count) const;
  // Fails with INVALID_ARGUMENT if a byte is not in the text.
  Result<torch::Tensor> Encode(const std::string& text) const;
  char Decode(int64_t id) const { return bytes_[static_cast<size_t>(id)]; }

 private:
  Text(const std::string& text, int64_t context);

  const int64_t context_;
  std::string bytes_;  // indexed by their number
  torch::Tensor ids_;
};

}  // namespace cadre::transformer

#endif  // CADRE_EXAMPLES_SHARDED_TRANSFORMER_TEXT_H_
