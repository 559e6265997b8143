#include <exception>
#include <future>
#include <stdexcept>
#include <string>

#include "base/status_matchers.h"
#include "cadre/torch/scatter_parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/nn/modules/linear.h"
#include "worker_runtime/torch/scatter_parallel/scattered_net_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The pretend device has another name in each libtorch.
std::string NameOf(int device) { return pretend::Device(device).str(); }

// What the call throws; `E` must be its very type.
template <typename E, typename Call>
std::string Thrown(const Call& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

torch::Tensor Identity(TensorProbe&, torch::Tensor x) { return x; }

Status CreateOn(const std::vector<torch::Device>& devices, torch::nn::Linear linear) {
  ScatterParallelOptions options;
  options.devices = devices;
  return ScatterParallel<torch::nn::LinearImpl>::Create(linear.ptr(), options).status();
}

TEST(ScatterParallelErrors, DevicesThatCannotBe) {
  torch::nn::Linear linear(2, 2);
  linear->to(pretend::Device(0));
  const auto invalid = [](const std::string& text) {
    return StatusIs(StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(CreateOn({pretend::Device(0), pretend::Device(1), pretend::Device(0)}, linear),
              invalid("device " + NameOf(0) + " is named twice"));
  EXPECT_THAT(CreateOn({pretend::Device(0), torch::kCPU}, linear),
              invalid("devices of two kinds: " + NameOf(0) + " and cpu"));
  EXPECT_THAT(
      CreateOn({pretend::Device(1), pretend::Device(0)}, linear),
      invalid("parameter 'weight' is on " + NameOf(0) + ", and the first device is " + NameOf(1)));
}

TEST(ScatterParallelErrors, DevicesThatLibtorchDoesNotKnow) {
  torch::nn::Linear linear(2, 2);
  EXPECT_THAT(
      CreateOn({c10::DeviceType::FPGA}, linear),
      StatusIs(StatusCode::kInternal, HasSubstr("not linked with support for fpga devices")));
}

TEST(ScatterParallelErrors, ABufferIsNamed) {
  const auto probe = std::make_shared<TensorProbe>(Identity);
  probe->weight.set_data(probe->weight.to(pretend::Device(0)));
  EXPECT_THAT(ScatterParallel<TensorProbe>::Create(probe, {FirstDevices(2)}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("buffer 'count' is on cpu")));
}

TEST(ScatterParallel, WithoutDevicesItTakesAllOfTheModulesKind) {
  torch::nn::Linear linear(2, 2);
  EXPECT_EQ((*ScatterParallel<torch::nn::LinearImpl>::Create(linear.ptr()))->devices(),
            std::vector<torch::Device>{torch::kCPU});
  linear->to(pretend::Device(0));
  EXPECT_EQ((*ScatterParallel<torch::nn::LinearImpl>::Create(linear.ptr()))->devices(),
            FirstDevices(4));
}

TEST(ScatterParallelErrors, LibtorchsOwnNamesTheDevice) {
  const auto model = OnDevices(3, std::make_shared<TensorProbe>([](TensorProbe&, torch::Tensor x) {
                                 TORCH_CHECK_INDEX(x.device().index() != 1, "out of what there is");
                                 return x;
                               }));
  EXPECT_THAT(Thrown<c10::IndexError>([&] {
                model->forward(torch::ones({3, 1}));
              }),
              AllOf(HasSubstr("out of what there is"), HasSubstr(NameOf(1))));
}

TEST(ScatterParallelErrors, AnyOtherNamesItToo) {
  const auto model = OnDevices(2, std::make_shared<TensorProbe>([](TensorProbe&, torch::Tensor x) {
                                 if (x.device().index() == 1) throw std::out_of_range("too far");
                                 return x;
                               }));
  std::string inner;
  const auto call = [&] {
    try {
      model->forward(torch::ones({2, 1}));
    } catch (const std::exception& error) {
      inner = Thrown<std::out_of_range>([&] { std::rethrow_if_nested(error); });
      throw;
    }
  };
  EXPECT_THAT(Thrown<std::runtime_error>(call), AllOf(HasSubstr("too far"), HasSubstr(NameOf(1))));
  EXPECT_EQ(inner, "too far");
}

// The others go on to their ends, and a later call is as good as if nothing had been.
TEST(ScatterParallelErrors, OneIsThrownWhenAllHaveEnded) {
  std::promise<void> second_has_failed;
  bool fails = true;
  const auto model = OnDevices(2, std::make_shared<TensorProbe>([&](TensorProbe&, torch::Tensor x) {
                                 if (!fails) return x;
                                 if (x.device().index() == 1) {
                                   second_has_failed.set_value();
                                 } else {
                                   second_has_failed.get_future().wait();
                                 }
                                 TORCH_CHECK(false, "both fail");
                               }));
  EXPECT_THAT(Thrown<c10::Error>([&] {
                model->forward(torch::ones({2, 1}));
              }),
              AllOf(HasSubstr(NameOf(0)), Not(HasSubstr(NameOf(1)))));
  fails = false;
  EXPECT_TRUE(model->forward(torch::ones({2, 1})).cpu().equal(torch::ones({2, 1})));
}

TEST(ScatterParallelErrors, ArgumentsOfDifferentNumbersOfSamples) {
  using Two = Probe<torch::Tensor, torch::Tensor, torch::Tensor>;
  const auto model = OnDevices(
      2, std::make_shared<Two>([](Two&, torch::Tensor x, const torch::Tensor&) { return x; }));
  EXPECT_THAT(Thrown<c10::Error>([&] { model->forward(torch::ones({6}), torch::ones({4})); }),
              HasSubstr("arguments have 6 and 4 samples in dimension 0"));
}

TEST(ScatterParallelErrors, PartsThatReturnDifferentThings) {
  using Tensors = std::vector<torch::Tensor>;
  using Many = Probe<Tensors, torch::Tensor>;
  const auto returned = [](const std::function<Tensors(const torch::Tensor&)>& result) {
    const auto model = OnDevices(
        2, std::make_shared<Many>([&](Many&, const torch::Tensor& x) { return result(x); }));
    return Thrown<c10::Error>([&] { model->forward(torch::ones({2})); });
  };
  EXPECT_THAT(returned([](const torch::Tensor& x) {
                return x.device().index() == 0 ? Tensors{x} : Tensors{x, x};
              }),
              HasSubstr("one part returned 1 tensors, and another 2"));
  EXPECT_THAT(returned([](const torch::Tensor& x) {
                return x.device().index() == 0 ? Tensors{x} : Tensors{torch::Tensor()};
              }),
              HasSubstr("one part returned a tensor and another none"));
}

TEST(ScatterParallelErrors, AModuleThatCannotBeCopied) {
  struct Plain : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& x) { return x * weight; }
    torch::Tensor weight = register_parameter("weight", torch::ones({1}));
  };
  const auto model = OnDevices(2, std::make_shared<Plain>());
  EXPECT_THAT(Thrown<c10::Error>([&] { model->forward(torch::ones({2})); }),
              HasSubstr("clone() has not been implemented"));
  // One part needs no copy.
  EXPECT_TRUE(model->forward(torch::ones({1})).cpu().equal(torch::ones({1})));
}

}  // namespace
}  // namespace cadre::nn
