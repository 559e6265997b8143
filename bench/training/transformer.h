// A transformer of GPT-2's kind; models.py has the same one. Needs libtorch 2.0 or newer.
#ifndef CADRE_BENCH_TRAINING_TRANSFORMER_H_
#define CADRE_BENCH_TRAINING_TRANSFORMER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cadre/torch/sharded_unit.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/normalization.h"
#include "torch/types.h"
#include "torch/utils.h"

namespace cadre::bench {

// GPT-2's smallest: 124 million parameters.
struct TransformerShape {
  int64_t layers = 12;
  int64_t width = 768;
  int64_t heads = 12;
  int64_t vocabulary = 50257;
  int64_t context = 1024;
};

struct Block : torch::nn::Module {
  Block(int64_t width, int64_t heads)
      : heads(heads),
        before_attention(Norm("before_attention", width)),
        before_mlp(Norm("before_mlp", width)),
        projections(Linear("projections", width, 3 * width)),
        attended(Linear("attended", width, width)),
        wider(Linear("wider", width, 4 * width)),
        narrower(Linear("narrower", 4 * width, width)) {}

  torch::Tensor Attention(const torch::Tensor& x) {
    const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    const std::vector<torch::Tensor> qkv = Apply(projections, x)
                                               .view({batch, length, 3, heads, width / heads})
                                               .permute({2, 0, 3, 1, 4})
                                               .unbind(0);
    const torch::Tensor y =
        at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], /*attn_mask=*/{},
                                         /*dropout_p=*/0.0, /*is_causal=*/true);
    return Apply(attended, y.transpose(1, 2).reshape({batch, length, width}));
  }

  torch::Tensor forward(torch::Tensor x) {
    x = x + Attention(before_attention(x));
    return x + Apply(narrower, at::gelu(Apply(wider, before_mlp(x)), "tanh"));
  }

  const int64_t heads;
  torch::nn::LayerNorm before_attention, before_mlp;
  torch::nn::Linear projections, attended, wider, narrower;

 private:
  // As PyTorch's Linear computes: the one of C++ adds the bias in a pass of its own.
  static torch::Tensor Apply(const torch::nn::Linear& linear, const torch::Tensor& x) {
    return at::linear(x, linear->weight, linear->bias);
  }
  torch::nn::LayerNorm Norm(const std::string& name, int64_t width) {
    return register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  }
  torch::nn::Linear Linear(const std::string& name, int64_t from, int64_t to) {
    return register_module(name, torch::nn::Linear(from, to));
  }
};

struct Transformer : torch::nn::Module {
  explicit Transformer(const TransformerShape& shape)
      : tokens(register_module("tokens", torch::nn::Embedding(shape.vocabulary, shape.width))),
        positions(register_module("positions", torch::nn::Embedding(shape.context, shape.width))),
        last(register_module("last",
                             torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width})))) {
    for (int64_t i = 0; i < shape.layers; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i),
                                       std::make_shared<Block>(shape.width, shape.heads)));
    }
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : parameters()) {
      if (parameter.dim() == 2) parameter.normal_(0, 0.02);
    }
  }

  torch::Tensor forward(torch::Tensor ids) {
    torch::Tensor x = tokens(ids) + positions->weight.narrow(0, 0, ids.size(1));
    for (const auto& block : blocks) x = nn::CallUnit(*block, x);
    // What reads the words also writes them.
    return at::linear(last(x), tokens->weight).flatten(0, 1);
  }

  torch::nn::Embedding tokens, positions;
  std::vector<std::shared_ptr<Block>> blocks;
  torch::nn::LayerNorm last;
};

}  // namespace cadre::bench

#endif  // CADRE_BENCH_TRAINING_TRANSFORMER_H_
