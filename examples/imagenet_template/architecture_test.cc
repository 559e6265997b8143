#include "architecture.h"

#include <map>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/utils.h"

namespace cadre::imagenet {
namespace {

using ::testing::HasSubstr;

ArchitectureOptions Named(const std::string& name) {
  ArchitectureOptions options;
  options.name = name;
  return options;
}

std::map<std::string, std::vector<int64_t>> Shapes(const ImageNetwork& network) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& parameter : network.named_parameters()) {
    shapes[parameter.key()] = parameter.value().sizes().vec();
  }
  return shapes;
}

int64_t Parameters(const ImageNetwork& network) {
  int64_t count = 0;
  for (const torch::Tensor& parameter : network.parameters()) count += parameter.numel();
  return count;
}

// torchvision's documentation gives these numbers.
TEST(ArchitectureTest, HasAsManyParametersAsTorchvisions) {
  const std::map<std::string, int64_t> documented = {
      {"resnet18", 11689512}, {"resnet50", 25557032}, {"alexnet", 61100840}, {"vgg16", 138357544}};
  for (const auto& [name, count] : documented) {
    const auto network = MakeNetwork(Named(name));
    ASSERT_OK(network);
    EXPECT_EQ(Parameters(**network), count) << name;
  }
}

TEST(ArchitectureTest, HasTorchvisionsNames) {
  using Shape = std::vector<int64_t>;
  const auto resnet = MakeNetwork(Named("resnet18"));
  ASSERT_OK(resnet);
  EXPECT_EQ(Shapes(**resnet)["layer2.0.conv1.weight"], (Shape{128, 64, 3, 3}));
  EXPECT_EQ(Shapes(**resnet)["layer2.0.downsample.0.weight"], (Shape{128, 64, 1, 1}));
  EXPECT_EQ(Shapes(**resnet)["fc.weight"], (Shape{1000, 512}));
  const auto alexnet = MakeNetwork(Named("alexnet"));
  ASSERT_OK(alexnet);
  EXPECT_EQ(Shapes(**alexnet)["features.10.weight"], (Shape{256, 256, 3, 3}));
  EXPECT_EQ(Shapes(**alexnet)["classifier.6.bias"], (Shape{1000}));
}

TEST(ArchitectureTest, GivesAScoreForEachClass) {
  torch::NoGradGuard no_grad;
  for (const std::string name : {"resnet18", "alexnet"}) {
    ArchitectureOptions options = Named(name);
    options.classes = 7;
    options.side = 64;
    const auto network = MakeNetwork(options);
    ASSERT_OK(network);
    const torch::Tensor scores = (*network)->forward(torch::zeros({2, 3, 64, 64}));
    EXPECT_EQ(scores.sizes().vec(), (std::vector<int64_t>{2, 7})) << name;
  }
}

// One process with several devices copies them in this way.
TEST(ArchitectureTest, CanBeCopied) {
  torch::NoGradGuard no_grad;
  for (const std::string name : {"resnet18", "alexnet"}) {
    ArchitectureOptions options = Named(name);
    options.classes = 7;
    options.side = 64;
    const auto network = MakeNetwork(options);
    ASSERT_OK(network);
    (*network)->eval();
    const auto copy = std::dynamic_pointer_cast<ImageNetwork>((*network)->clone());
    ASSERT_NE(copy, nullptr) << name;
    EXPECT_FALSE(copy->is_training());
    const torch::Tensor pictures = torch::randn({2, 3, 64, 64});
    EXPECT_TRUE(torch::equal(copy->forward(pictures), (*network)->forward(pictures))) << name;
    (*network)->parameters()[0].zero_();
    EXPECT_FALSE(torch::equal(copy->forward(pictures), (*network)->forward(pictures))) << name;
  }
}

TEST(ArchitectureTest, AResidualNetworkCanBeSmaller) {
  ArchitectureOptions options = Named("resnet18");
  options.blocks = {1, 1};
  options.width = 8;
  const auto network = MakeNetwork(options);
  ASSERT_OK(network);
  EXPECT_EQ(Shapes(**network)["fc.weight"], (std::vector<int64_t>{1000, 16}));
}

TEST(ArchitectureTest, SaysWhatIsNotThere) {
  EXPECT_THAT(MakeNetwork(Named("resnet51")),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("--arch resnet51: expected")));
  ArchitectureOptions narrow = Named("vgg16");
  narrow.width = 8;
  EXPECT_THAT(MakeNetwork(narrow), StatusIs(StatusCode::kInvalidArgument, HasSubstr("no blocks")));
  ArchitectureOptions small = Named("alexnet");
  small.side = 32;
  EXPECT_THAT(MakeNetwork(small), StatusIs(StatusCode::kInvalidArgument,
                                           HasSubstr("--side 32 is too small for alexnet; expec")));
}

}  // namespace
}  // namespace cadre::imagenet
