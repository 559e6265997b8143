#include "gpt.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "torch/autograd.h"
#include "torch/utils.h"

namespace cadre::transformer {
namespace {

Gpt Net(bool checkpoint_activations) {
  torch::manual_seed(1);
  Shape shape;
  shape.layers = 3;
  shape.width = 8;
  shape.heads = 2;
  shape.context = 4;
  shape.vocabulary = 5;
  shape.checkpoint_activations = checkpoint_activations;
  return Gpt(shape);
}

const torch::Tensor& Ids() {
  static const torch::Tensor ids = torch::tensor({0, 1, 4, 2, 2, 3, 0, 1}).view({2, 4});
  return ids;
}

// What the backward pass goes through, and what is kept for it with each.
size_t GraphSize(const torch::Tensor& output) {
  std::set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> next = {output.grad_fn().get()};
  while (!next.empty()) {
    torch::autograd::Node* const node = next.back();
    next.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    for (const auto& edge : node->next_edges()) next.push_back(edge.function.get());
  }
  return seen.size();
}

TEST(GptTest, EachPlaceSeesWhatIsBeforeItOnly) {
  Gpt net = Net(false);
  const torch::NoGradGuard no_grad;
  torch::Tensor other = Ids().clone();
  other.index_put_({0, 3}, 0);
  const torch::Tensor before = net.forward(Ids())[0], after = net.forward(other)[0];
  EXPECT_TRUE(before.narrow(0, 0, 3).equal(after.narrow(0, 0, 3)));
  EXPECT_FALSE(before[3].equal(after[3]));
}

TEST(GptTest, CheckpointedActivationsAreNotKeptAndGradientsAreTheSame) {
  Gpt kept = Net(false), computed_again = Net(true);
  const torch::Tensor output = kept.forward(Ids()), same = computed_again.forward(Ids());
  EXPECT_TRUE(same.equal(output));
  EXPECT_LT(GraphSize(same), GraphSize(output) / 3);
  output.pow(2).sum().backward();
  same.pow(2).sum().backward();
  const auto parameters = kept.parameters(), others = computed_again.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(parameters[i].grad().equal(others[i].grad())) << i;
  }
}

}  // namespace
}  // namespace cadre::transformer
