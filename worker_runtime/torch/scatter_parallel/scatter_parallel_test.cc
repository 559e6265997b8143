#include "cadre/torch/scatter_parallel.h"

#include <exception>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/status_matchers.h"
#include "c10/core/StreamGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "cadre/torch/autocast.h"
#include "cadre/torch/checkpointed.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/nn/functional/loss.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "worker_runtime/torch/scatter_parallel/scattered_net_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() {
    reset();
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : parameters()) {
      parameter.copy_(0.3 * (torch::arange(parameter.numel()) * 0.7).sin().view_as(parameter));
    }
  }
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, 8));
    last = register_module("last", torch::nn::Linear(8, 2));
  }
  torch::Tensor forward(const torch::Tensor& input) { return last(torch::tanh(first(input))); }

  torch::nn::Linear first{nullptr}, last{nullptr};
};

torch::Tensor Numbers(int64_t rows, int64_t columns, int step) {
  return ((torch::arange(rows * columns) * 7 + step * 13) % 17)
      .to(torch::kFloat32)
      .div(17)
      .sub(0.5)
      .view({rows, columns});
}

// Returns the parameters after `steps` steps; with 0 devices it trains on the host.
std::vector<torch::Tensor> Train(int devices, int64_t samples, int steps = 25) {
  auto net = std::make_shared<NetImpl>();
  const auto model = devices > 0 ? OnDevices(devices, net) : nullptr;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    const torch::Tensor input = Numbers(samples, 6, step);
    const torch::Tensor output = model == nullptr ? net->forward(input) : model->forward(input);
    optimizer.zero_grad();
    torch::nn::functional::mse_loss(output, Numbers(samples, 2, step + 1).to(output.device()))
        .backward();
    optimizer.step();
  }
  std::vector<torch::Tensor> parameters;
  for (const torch::Tensor& parameter : net->parameters()) {
    parameters.push_back(parameter.detach().cpu());
  }
  return parameters;
}

class ScatterParallelTraining : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(ScatterParallelTraining, IsThatOfOneDevice) {
  const auto [devices, samples] = GetParam();
  const auto expected = Train(0, samples), trained = Train(devices, samples);
  for (size_t p = 0; p < expected.size(); ++p) {
    EXPECT_TRUE(trained[p].allclose(expected[p], 1e-5, 1e-6)) << trained[p] - expected[p];
  }
  EXPECT_FALSE(expected[0].equal(Train(0, samples, 0)[0])) << "nothing was trained";
}

TEST_P(ScatterParallelTraining, HasTheSameBitsEachTime) {
  const auto [devices, samples] = GetParam();
  const auto once = Train(devices, samples, 3), again = Train(devices, samples, 3);
  for (size_t p = 0; p < once.size(); ++p) EXPECT_TRUE(once[p].equal(again[p]));
}

// The numbers of samples give equal parts, unequal ones, and fewer parts than devices.
INSTANTIATE_TEST_SUITE_P(All, ScatterParallelTraining,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(12, 7, 5, 2, 1)),
                         [](const auto& info) {
                           return "Devices" + std::to_string(std::get<0>(info.param)) + "Samples" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(ScatterParallel, PartsAndTheirDevices) {
  const auto parts_of = [](int devices, int64_t samples) {
    auto rows = std::make_shared<ByDevice<int64_t>>();
    const auto model =
        OnDevices(devices, std::make_shared<TensorProbe>([rows](TensorProbe&, torch::Tensor x) {
                    rows->Add(x, x.size(0));
                    return x;
                  }));
    const torch::Tensor input = Numbers(samples, 3, 0);
    EXPECT_TRUE(model->forward(input).cpu().equal(input));
    return rows->values();
  };
  EXPECT_THAT(parts_of(4, 8), ElementsAre(Pair(0, 2), Pair(1, 2), Pair(2, 2), Pair(3, 2)));
  EXPECT_THAT(parts_of(3, 7), ElementsAre(Pair(0, 3), Pair(1, 3), Pair(2, 1)));
  EXPECT_THAT(parts_of(4, 5), ElementsAre(Pair(0, 2), Pair(1, 2), Pair(2, 1)));
  EXPECT_THAT(parts_of(4, 1), ElementsAre(Pair(0, 1)));
  EXPECT_THAT(parts_of(4, 0), ElementsAre(Pair(0, 0)));
  EXPECT_THAT(parts_of(1, 5), ElementsAre(Pair(0, 5)));
}

TEST(ScatterParallel, EachPartHasAThread) {
  ByDevice<std::thread::id> threads;
  const auto model =
      OnDevices(3, std::make_shared<TensorProbe>([&threads](TensorProbe&, torch::Tensor x) {
                  threads.Add(x, std::this_thread::get_id());
                  return x;
                }));
  model->forward(Numbers(3, 1, 0));
  ASSERT_THAT(threads.values(), SizeIs(3));
  EXPECT_EQ(threads.values().find(0)->second, std::this_thread::get_id());
  EXPECT_NE(threads.values().find(1)->second, std::this_thread::get_id());
  EXPECT_NE(threads.values().find(1)->second, threads.values().find(2)->second);
}

using Outputs = std::tuple<torch::Tensor, std::vector<torch::Tensor>, torch::Tensor>;
using ManyProbe = Probe<Outputs, torch::Tensor, std::vector<torch::Tensor>, torch::Tensor, double>;

TEST(ScatterParallel, ManyArgumentsAndResults) {
  ScatterParallelOptions options;
  options.dimension = 1;
  options.output_device = pretend::Device(2);
  const auto model =
      OnDevices(3,
                std::make_shared<ManyProbe>([](ManyProbe&, const torch::Tensor& x,
                                               const std::vector<torch::Tensor>& pair,
                                               const torch::Tensor& scalar, double factor) {
                  return Outputs{x * factor, {pair[0] * scalar, pair[1]}, x.sum()};
                }),
                options);
  const torch::Tensor x = Numbers(2, 4, 0), y = Numbers(3, 4, 1).to(pretend::Device(1));
  const auto [scaled, pair, sums] =
      model->forward(x, std::vector<torch::Tensor>{y, torch::Tensor()}, torch::tensor(3.0f), 2);
  EXPECT_EQ(scaled.device(), pretend::Device(2));
  EXPECT_TRUE(scaled.cpu().equal(x * 2));
  EXPECT_TRUE(pair[0].cpu().equal(y.cpu() * 3));
  EXPECT_FALSE(pair[1].defined());
  // The batch is split into two parts, although there are three devices.
  EXPECT_TRUE(sums.cpu().allclose(x.view({2, 2, 2}).sum(torch::IntArrayRef({0, 2}))));
}

TEST(ScatterParallel, GradientsOfWhatGoesIn) {
  const auto model =
      OnDevices(4, std::make_shared<TensorProbe>(
                       [](TensorProbe& self, torch::Tensor x) { return x * x * self.weight; }));
  const torch::Tensor input = Numbers(6, 2, 0).set_requires_grad(true);
  model->forward(input).sum().backward();
  EXPECT_TRUE(input.grad().allclose(2 * input.detach()));
  EXPECT_TRUE(model->module().weight.grad().cpu().allclose(input.detach().square().sum().view(1)));
}

// Accumulation of gradients does this.
TEST(ScatterParallel, TwoForwardPassesBeforeTheirBackwardPasses) {
  const auto model =
      OnDevices(3, std::make_shared<TensorProbe>([](TensorProbe& self, torch::Tensor x) {
                  return x * self.weight * self.weight;
                }));
  const torch::Tensor first = model->forward(Numbers(6, 1, 0)).sum();
  const torch::Tensor second = model->forward(Numbers(5, 1, 1)).sum();
  first.backward();
  second.backward();
  const torch::Tensor sum = Numbers(6, 1, 0).sum() + Numbers(5, 1, 1).sum();
  EXPECT_TRUE(model->module().weight.grad().cpu().allclose(2 * sum.view(1)));
}

TEST(ScatterParallel, WhatAPartDoesNotUse) {
  const auto only_on = [](int device) {
    return OnDevices(3, std::make_shared<TensorProbe>([device](TensorProbe& self, torch::Tensor x) {
                       return x.device().index() == device ? x * self.weight : x;
                     }));
  };
  const torch::Tensor input = Numbers(3, 1, 0).add(1).set_requires_grad(true);
  for (int device = 0; device < 3; ++device) {
    const auto model = only_on(device);
    model->forward(input).sum().backward();
    EXPECT_TRUE(model->module().weight.grad().cpu().allclose(input.detach()[device]));
  }
  const auto nowhere = only_on(-1);
  nowhere->forward(input).sum().backward();
  EXPECT_FALSE(nowhere->module().weight.grad().defined());
}

TEST(ScatterParallel, FrozenParametersNeedNoGraph) {
  ByDevice<bool> needs;
  const auto probe = std::make_shared<TensorProbe>([&](TensorProbe& self, torch::Tensor x) {
    needs.Add(x, self.weight.requires_grad());
    return x * self.weight;
  });
  probe->weight.set_requires_grad(false);
  const auto model = OnDevices(2, probe);
  EXPECT_FALSE(model->forward(Numbers(2, 1, 0)).requires_grad());
  EXPECT_THAT(needs.values(), ElementsAre(Pair(0, false), Pair(1, false)));
}

TEST(ScatterParallel, BuffersAreOfTheFirstDevicesPart) {
  const auto model =
      OnDevices(3, std::make_shared<TensorProbe>([](TensorProbe& self, torch::Tensor x) {
                  self.count.add_(x.sum());
                  return x;
                }));
  const torch::Tensor input = Numbers(6, 1, 0);
  model->forward(input);
  EXPECT_TRUE(model->module().count.cpu().allclose(input.narrow(0, 0, 2).sum().view(1)));
  model->forward(input);
  EXPECT_TRUE(model->module().count.cpu().allclose(2 * input.narrow(0, 0, 2).sum().view(1)));
}

TEST(ScatterParallel, EvaluationIsEvaluationEverywhere) {
  ByDevice<bool> training;
  const auto model =
      OnDevices(2, std::make_shared<TensorProbe>([&](TensorProbe& self, torch::Tensor x) {
                  training.Add(x, self.is_training());
                  return x;
                }));
  model->module().eval();
  model->forward(Numbers(2, 1, 0));
  EXPECT_THAT(training.values(), ElementsAre(Pair(0, false), Pair(1, false)));
}

TEST(ScatterParallel, GradientModeIsTheCallers) {
  ByDevice<bool> enabled;
  const auto model =
      OnDevices(2, std::make_shared<TensorProbe>([&](TensorProbe& self, torch::Tensor x) {
                  enabled.Add(x, torch::GradMode::is_enabled());
                  return x * self.weight;
                }));
  EXPECT_TRUE(model->forward(Numbers(2, 1, 0)).requires_grad());
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(model->forward(Numbers(2, 1, 0)).requires_grad());
  EXPECT_THAT(enabled.values(),
              ElementsAre(Pair(0, true), Pair(0, false), Pair(1, true), Pair(1, false)));
}

TEST(ScatterParallel, AutocastIsTheCallers) {
  const torch::DeviceType kind = pretend::Device().type();
  ByDevice<std::vector<bool>> states;
  const auto model =
      OnDevices(2, std::make_shared<TensorProbe>([&](TensorProbe&, torch::Tensor x) {
                  const AutocastState host = CurrentAutocast(torch::kCPU);
                  const AutocastState device = CurrentAutocast(kind);
                  states.Add(x, {host.enabled && host.type == torch::kBFloat16,
                                 device.enabled && device.type == torch::kFloat16, host.cache});
                  return x;
                }));
  const auto see = [&] { model->forward(Numbers(2, 1, 0)); };
  see();
  {
    const Autocast on_host(torch::kCPU, {true, torch::kBFloat16, /*cache=*/false});
    see();
  }
  const std::vector<bool> none = {false, false, true}, on_host = {true, false, false};
  if (!HasAutocast(kind)) {
    EXPECT_THAT(states.values(),
                ElementsAre(Pair(0, none), Pair(0, on_host), Pair(1, none), Pair(1, on_host)));
    return;
  }
  {
    const Autocast on_device(kind, torch::kFloat16);
    see();
  }
  const std::vector<bool> on_device = {false, true, true};
  EXPECT_THAT(states.values(), ElementsAre(Pair(0, none), Pair(0, on_host), Pair(0, on_device),
                                           Pair(1, none), Pair(1, on_host), Pair(1, on_device)));
}

TEST(ScatterParallel, StreamsAreTheCallers) {
  const c10::impl::VirtualGuardImpl devices(pretend::Device().type());
  ByDevice<c10::Stream> streams;
  const auto model = OnDevices(2, std::make_shared<TensorProbe>([&](TensorProbe&, torch::Tensor x) {
                                 streams.Add(x, devices.getStream(x.device()));
                                 return x;
                               }));
  const c10::Stream own =
      devices.getStreamFromGlobalPool(pretend::Device(1), /*isHighPriority=*/false);
  const c10::StreamGuard on(own);
  model->forward(Numbers(2, 1, 0));
  EXPECT_EQ(streams.values().find(0)->second, devices.getStream(pretend::Device(0)));
  EXPECT_EQ(streams.values().find(1)->second, own);
  EXPECT_EQ(devices.getDevice(), pretend::Device(1)) << "the caller's device has changed";
}

// A clone's reset() draws initial values.
TEST(ScatterParallel, TheHostsRandomNumbersStayAsTheyWere) {
  const auto model = OnDevices(3, std::make_shared<NetImpl>());
  torch::manual_seed(7);
  const torch::Tensor expected = torch::rand({4});
  torch::manual_seed(7);
  model->forward(Numbers(6, 6, 0));
  EXPECT_TRUE(torch::rand({4}).equal(expected));
}

// The second run, in the backward pass, calls modules of the replicas.
TEST(ScatterParallel, PartsOfTheModuleMayBeCheckpointed) {
  struct Checked : torch::nn::Cloneable<Checked> {
    Checked() { reset(); }
    void reset() override { net = register_module("net", std::make_shared<NetImpl>()); }
    torch::Tensor forward(const torch::Tensor& input) { return Checkpointed(*net, input); }
    std::shared_ptr<NetImpl> net;
  };
  const auto checked = std::make_shared<Checked>();
  const auto model = OnDevices(3, checked);
  const auto plain = OnDevices(3, std::make_shared<NetImpl>());
  model->forward(Numbers(6, 6, 0)).square().sum().backward();
  plain->forward(Numbers(6, 6, 0)).square().sum().backward();
  const auto gradients = model->module().parameters();
  const auto expected = plain->module().parameters();
  ASSERT_EQ(gradients.size(), expected.size());
  for (size_t p = 0; p < gradients.size(); ++p) {
    EXPECT_TRUE(gradients[p].grad().cpu().allclose(expected[p].grad().cpu()));
  }
}

// The pretend device's name differs between versions of libtorch.
std::string NameOf(int device) { return pretend::Device(device).str(); }

// Returns the text of the exception that the call throws; its type must be exactly `E`.
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

// The other replicas finish, and a later call works as if nothing had happened.
//
// Fault (collective): One part of the batch fails on one of several devices of a process -> When
// all parts have ended the caller gets one error that names the device
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
  // A single part needs no replica.
  EXPECT_TRUE(model->forward(torch::ones({1})).cpu().equal(torch::ones({1})));
}

}  // namespace

}  // namespace cadre::nn
