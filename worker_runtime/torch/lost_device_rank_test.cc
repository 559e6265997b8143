// A rank is killed or stopped at any moment while a model trains on connected devices: the other
// ranks' Finish() names it in time, their devices are free, and they train on in place with the
// process that replaces it.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status_matchers.h"
#include "cadre/connect.h"
#include "cadre/status_macros.h"
#include "cadre/torch/data_parallel.h"
#include "gtest/gtest.h"
#include "torch/nn/module.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "worker_runtime/testing/lost_rank_moments.h"
#include "worker_runtime/torch/pretend_device/pretend_communicator.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"

namespace cadre::nn {
namespace {

// The parameters' gradients are the argument of forward().
struct Scales : torch::nn::Module {
  explicit Scales(torch::Device device) {
    for (const char* const name : {"first", "second", "third"}) {
      register_parameter(name, torch::ones({20000}, torch::device(device)));
    }
  }
  torch::Tensor forward(float input) {
    torch::Tensor sum;
    for (const torch::Tensor& scale : parameters()) {
      const torch::Tensor more = (scale * input).sum();
      sum = sum.defined() ? sum + more : more;
    }
    return sum;
  }
};

using Model = DataParallel<Scales>;

// Runs one rank in one generation.
class Rank {
 public:
  Rank(Worker& worker, const testing::Moment& moment, std::shared_ptr<Scales> net)
      : worker_(worker), moment_(moment), net_(std::move(net)), optimizer_(net_->parameters(), 0) {}

  Status Train(std::atomic<int64_t>& steps) {
    CADRE_RETURN_IF_ERROR(Connect());
    CADRE_RETURN_IF_ERROR(Step());
    for (const torch::Tensor& parameter : net_->parameters()) {
      const torch::Tensor average = parameter.grad().cpu();
      EXPECT_TRUE(average.equal(torch::full_like(average, 2.0f))) << "of 1, 2 and 3";
    }
    // No rank may be lost before all have checked the first step.
    CADRE_RETURN_IF_ERROR(host_->Barrier()->Wait(kLong));
    while (true) {
      ++steps;
      CADRE_RETURN_IF_ERROR(Step());
    }
  }

 private:
  static constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

  Status Connect() {
    const std::string name = moment_.name();
    CADRE_ASSIGN_OR_RETURN(host_, ConnectCommunicator(worker_, {name.c_str(), moment_.timeout()}));
    DataParallelOptions options;
    options.connect_device = pretend::ConnectPretendDevices;
    // The coin chooses between a bucket for each parameter and one for all.
    if (moment_.coin) options.reducer.first_bucket_bytes = options.reducer.bucket_bytes = 1;
    options.reducer.timeout = options.timeout = kLong;
    CADRE_ASSIGN_OR_RETURN(model_, Model::Create(net_, *host_, options));
    return OkStatus();
  }

  Status Step() {
    optimizer_.zero_grad();
    model_->forward(static_cast<float>(worker_.rank() + 1)).backward();
    CADRE_RETURN_IF_ERROR(model_->Finish().status());
    optimizer_.step();
    return OkStatus();
  }

  Worker& worker_;
  const testing::Moment& moment_;
  const std::shared_ptr<Scales> net_;
  torch::optim::SGD optimizer_;
  std::unique_ptr<Communicator> host_;
  std::unique_ptr<Model> model_;
};

testing::RankEnd Live(Worker& worker, const testing::Moment& moment, std::atomic<int64_t>& steps) {
  torch::set_num_threads(1);
  pretend::Install(testing::kRanksOfAMoment);
  // The parameters stay in memory from generation to generation.
  static const auto net = std::make_shared<Scales>(pretend::Device(worker.rank()));
  const Status cause = Rank(worker, moment, net).Train(steps);
  for (const torch::Tensor& parameter : net->parameters()) parameter.detach().cpu();
  return {cause, MonoNow()};
}

// Fault (collective): A rank is killed or stopped while a model trains on connected devices -> The
// other ranks' `Finish()` names it within 10 s (a stopped rank: the communicator's timeout), and
// they train on in place
TEST(LostDeviceRank, TheOthersHaveTheCauseAndTrainOnInPlace) { testing::RunMoments(15, 1, Live); }

TEST(LostDeviceRank, AHundredTimes) { testing::RunMoments(100, 2, Live); }

}  // namespace
}  // namespace cadre::nn
