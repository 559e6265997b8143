// Modules and helpers for the tests of ScatterParallel.
#ifndef CADRE_WORKER_RUNTIME_TORCH_SCATTER_PARALLEL_SCATTERED_NET_FOR_TEST_H_
#define CADRE_WORKER_RUNTIME_TORCH_SCATTER_PARALLEL_SCATTERED_NET_FOR_TEST_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/torch/scatter_parallel.h"
#include "gtest/gtest.h"
#include "torch/nn/cloneable.h"
#include "torch/types.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"

namespace cadre::nn {

// Installs the devices before the first backward pass of the process, because autograd counts the
// devices then.
class FourDevices : public ::testing::Environment {
  void SetUp() override { pretend::Install(4); }
};
inline ::testing::Environment* const four_devices =
    ::testing::AddGlobalTestEnvironment(new FourDevices);

inline std::vector<torch::Device> FirstDevices(int count) {
  std::vector<torch::Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back(pretend::Device(i));
  return devices;
}

// A module with one parameter, which is 1, and one buffer, which is 0. `body` is its forward pass.
template <typename Output, typename... Inputs>
struct Probe : torch::nn::Cloneable<Probe<Output, Inputs...>> {
  using Body = std::function<Output(Probe&, Inputs...)>;
  explicit Probe(Body body) : body(std::move(body)) { reset(); }
  void reset() override {
    weight = this->register_parameter("weight", torch::ones({1}));
    count = this->register_buffer("count", torch::zeros({1}));
  }
  Output forward(Inputs... inputs) { return body(*this, std::move(inputs)...); }

  torch::Tensor weight, count;
  Body body;
};

using TensorProbe = Probe<torch::Tensor, torch::Tensor>;

// Moves the module to the first of `count` devices and wraps it in a ScatterParallel over all of
// them.
template <typename Module>
std::unique_ptr<ScatterParallel<Module>> OnDevices(int count, std::shared_ptr<Module> module,
                                                   ScatterParallelOptions options = {}) {
  options.devices = FirstDevices(count);
  module->to(options.devices[0]);
  auto model = ScatterParallel<Module>::Create(std::move(module), std::move(options));
  EXPECT_OK(model);
  return *std::move(model);
}

// Collects values that the replicas report, by device index. Thread safe.
template <typename Value>
class ByDevice {
 public:
  void Add(const torch::Tensor& there, Value value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_.emplace(there.device().index(), std::move(value));
  }
  const std::multimap<int, Value>& values() const { return values_; }

 private:
  std::mutex mutex_;
  std::multimap<int, Value> values_;
};

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_SCATTER_PARALLEL_SCATTERED_NET_FOR_TEST_H_
