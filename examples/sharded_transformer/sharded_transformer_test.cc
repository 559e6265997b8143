#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gpt.h"
#include "gtest/gtest.h"
#include "precision.h"
#include "text.h"
#include "torch/autograd.h"
#include "torch/utils.h"
#include "torch/version.h"

namespace cadre::transformer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

// Returns how many autograd nodes the backward pass from `output` visits; each keeps tensors for
// it.
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

TEST(PrecisionTest, TypesHaveNames) {
  EXPECT_EQ(*TypeNamed("float32"), torch::kFloat32);
  EXPECT_EQ(*TypeNamed("bfloat16"), torch::kBFloat16);
  EXPECT_EQ(*TypeNamed("float16"), torch::kFloat16);
  EXPECT_THAT(TypeNamed("int8"), StatusIs(StatusCode::kInvalidArgument, HasSubstr("int8")));
}

TEST(PrecisionTest, OperatorsComputeInItAndTheResultIsFloat32) {
  const torch::Tensor ones = torch::ones({2, 2});
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    torch::ScalarType within = torch::kInt;
    const torch::Tensor given = ForwardIn(type, torch::kCPU, [&] {
      const torch::Tensor product = torch::matmul(ones, ones);
      within = product.scalar_type();
      return product;
    });
    EXPECT_EQ(within, type);
    EXPECT_EQ(given.scalar_type(), torch::kFloat32);
  }
  EXPECT_EQ(torch::matmul(ones, ones).scalar_type(), torch::kFloat32);
}

TEST(PrecisionTest, WhatTheModelCannotBeTrainedInIsNamed) {
  EXPECT_OK(CheckTrains(torch::kCPU, torch::kFloat32));
  EXPECT_OK(CheckTrains(torch::kCPU, torch::kBFloat16));
  const Status half = CheckTrains(torch::kCPU, torch::kFloat16);
  if (TORCH_VERSION_MAJOR < 2) {
    EXPECT_THAT(half, StatusIs(StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("--precision float16: libtorch 1."),
                                     HasSubstr("cannot train the model in it on cpu ("))));
  } else {
    EXPECT_OK(half);
  }
}

TEST(Text, ATargetIsWhatComesNext) {
  const auto text = Text::Load("", 16);
  ASSERT_OK(text);
  const Batch batch = text->Sequences(3, 0, 4);
  EXPECT_TRUE(batch.inputs.narrow(1, 1, 15).equal(batch.targets.narrow(1, 0, 15)));
  EXPECT_FALSE(batch.inputs[0].equal(batch.inputs[1]));
}

TEST(Text, SequencesAreTheSameOnAnyNumberOfRanks) {
  const auto text = Text::Load("", 16);
  ASSERT_OK(text);
  const Batch all = text->Sequences(5, 0, 6), half = text->Sequences(5, 3, 3);
  EXPECT_TRUE(all.inputs.narrow(0, 3, 3).equal(half.inputs));
}

TEST(Text, EncodesAndDecodes) {
  const std::string path = ::testing::TempDir() + "/text";
  std::ofstream(path) << "abcab";
  const auto text = Text::Load(path, 4);
  ASSERT_OK(text);
  EXPECT_EQ(text->vocabulary(), 3);
  EXPECT_EQ(text->Decode((*text->Encode("cab"))[0].item<int64_t>()), 'c');
  EXPECT_THAT(text->Encode("bad").status().message(), HasSubstr("byte 3 of \"bad\""));
}

TEST(Text, TooShortOrNotThere) {
  const std::string path = ::testing::TempDir() + "/short";
  std::ofstream(path) << "abcd";
  EXPECT_THAT(Text::Load(path, 4).status().message(), HasSubstr("has 4 bytes; a sequence needs 5"));
  EXPECT_EQ(Text::Load("/no/such", 4).status().code(), StatusCode::kNotFound);
}

}  // namespace

}  // namespace cadre::transformer
