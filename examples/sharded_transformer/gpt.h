// A transformer that predicts the next byte, of GPT-2's kind. Includes libtorch.
#ifndef CADRE_EXAMPLES_SHARDED_TRANSFORMER_GPT_H_
#define CADRE_EXAMPLES_SHARDED_TRANSFORMER_GPT_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cadre/torch/checkpointed.h"
#include "cadre/torch/meta_device.h"
#include "cadre/torch/sharded_unit.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/normalization.h"
#include "torch/types.h"
#include "torch/utils.h"

namespace cadre::transformer {

struct Shape {
  int64_t layers = 4;
  int64_t width = 64;  // a multiple of `heads`
  int64_t heads = 4;
  int64_t context = 64;
  int64_t vocabulary = 0;
  // Whether a block's intermediate results are recomputed in the backward pass instead of being
  // kept.
  bool checkpoint_activations = false;
};

class Block : public torch::nn::Module {
 public:
  explicit Block(const Shape& shape)
      : heads_(shape.heads),
        before_attention_(Norm("before_attention", shape.width)),
        before_mlp_(Norm("before_mlp", shape.width)),
        projections_(Linear("projections", shape.width, 3 * shape.width)),
        attended_(Linear("attended", shape.width, shape.width)),
        wider_(Linear("wider", shape.width, 4 * shape.width)),
        narrower_(Linear("narrower", 4 * shape.width, shape.width)) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor attended = x + Attention(before_attention_(x));
    return attended + narrower_(torch::gelu(wider_(before_mlp_(attended))));
  }

 private:
  torch::nn::LayerNorm Norm(const std::string& name, int64_t width) {
    return register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  }
  torch::nn::Linear Linear(const std::string& name, int64_t from, int64_t to) {
    return register_module(name, torch::nn::Linear(from, to));
  }

  // Causal attention: each position attends to itself and to those before it.
  torch::Tensor Attention(const torch::Tensor& x) {
    const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    const std::vector<torch::Tensor> parts = projections_(x)
                                                 .view({batch, length, 3, heads_, width / heads_})
                                                 .permute({2, 0, 3, 1, 4})
                                                 .unbind(0);
    const torch::Tensor scores =
        parts[0].matmul(parts[1].transpose(2, 3)) / std::sqrt(static_cast<double>(width / heads_));
    const torch::Tensor later =
        torch::ones({length, length}, x.options().dtype(torch::kBool)).triu(1);
    const torch::Tensor weights =
        scores.masked_fill(later, -std::numeric_limits<double>::infinity()).softmax(-1);
    return attended_(weights.matmul(parts[2]).transpose(1, 2).reshape({batch, length, width}));
  }

  const int64_t heads_;
  torch::nn::LayerNorm before_attention_, before_mlp_;
  torch::nn::Linear projections_, attended_, wider_, narrower_;
};

// Initialize(), and not the constructor, sets the initial values, because a model that is made on
// the meta device has no memory in the constructor.
class Gpt : public torch::nn::Module {
 public:
  explicit Gpt(const Shape& shape)
      : shape_(shape),
        tokens_(register_module("tokens", torch::nn::Embedding(shape.vocabulary, shape.width))),
        places_(register_module("places", torch::nn::Embedding(shape.context, shape.width))),
        last_(register_module("last",
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width})))),
        head_(register_module("head", torch::nn::Linear(shape.width, shape.vocabulary))) {
    for (int64_t i = 0; i < shape.layers; ++i) {
      blocks_.push_back(register_module(BlockName(i), std::make_shared<Block>(shape)));
    }
  }

  // Sets the initial values of one of the model's modules.
  static bool Initialize(torch::nn::Module& module) {
    if (!nn::ResetParameters(module)) return false;
    for (torch::Tensor& parameter : module.parameters(/*recurse=*/false)) {
      if (parameter.dim() == 2) parameter.normal_(0, 0.02);
    }
    return true;
  }

  const Shape& shape() const { return shape_; }

  // The name of a block, which FullySharded shards as a unit.
  static std::string BlockName(int64_t layer) { return "block" + std::to_string(layer); }

  // Maps {sequences, length}, where length is at most the context, to {sequences, length,
  // vocabulary}.
  torch::Tensor forward(const torch::Tensor& ids) {
    torch::Tensor x = tokens_(ids) + places_->weight.narrow(0, 0, ids.size(1));
    for (const auto& block : blocks_) {
      x = shape_.checkpoint_activations ? nn::Checkpointed(*block, x) : nn::CallUnit(*block, x);
    }
    return head_(last_(x));
  }

 private:
  const Shape shape_;
  torch::nn::Embedding tokens_, places_;
  std::vector<std::shared_ptr<Block>> blocks_;
  torch::nn::LayerNorm last_;
  torch::nn::Linear head_;
};

}  // namespace cadre::transformer

#endif  // CADRE_EXAMPLES_SHARDED_TRANSFORMER_GPT_H_
