// SINGA's CNN on MNIST, trained by all ranks of a job, in one file: see README.md.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "cadre/connect.h"
#include "cadre/status_macros.h"
#include "cadre/torch/distributed_optimizer.h"
#include "cadre/wait_or_abort.h"
#include "torch/torch.h"

namespace {

using cadre::nn::DistributedOptimizer;

constexpr std::chrono::minutes kTimeout(5);

struct Options {
  std::string data_dir, dist_option = "plain";
  int epochs = 10, batch = 64;
  double learning_rate = 0.005, spars = 0.05;
};

struct Net : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    return fc2(torch::relu(fc1(x.flatten(1))));
  }
  torch::nn::Conv2d conv1{register_module("conv1", torch::nn::Conv2d(1, 20, 5))};
  torch::nn::Conv2d conv2{register_module("conv2", torch::nn::Conv2d(20, 50, 5))};
  torch::nn::Linear fc1{register_module("fc1", torch::nn::Linear(4 * 4 * 50, 500))};
  torch::nn::Linear fc2{register_module("fc2", torch::nn::Linear(500, 10))};
};

// Returns the bytes after the header of one of MNIST's files, which must be unpacked.
cadre::Result<torch::Tensor> Read(const std::string& path, size_t header) {
  std::ifstream file(path, std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), {});
  if (all.size() <= header) return cadre::NotFoundError(path + ": expected a file of MNIST's");
  const auto size = static_cast<int64_t>(all.size() - header);
  torch::Tensor bytes = torch::empty({size}, torch::kUInt8);
  all.copy(static_cast<char*>(bytes.data_ptr()), all.size() - header, header);
  return bytes;
}

struct Samples {
  torch::Tensor images, labels;
};

// SINGA's data_partition(): each rank has its part, all parts of one size.
cadre::Result<Samples> Load(const std::string& prefix, int rank, int size) {
  CADRE_ASSIGN_OR_RETURN(const torch::Tensor pixels, Read(prefix + "-images-idx3-ubyte", 16));
  CADRE_ASSIGN_OR_RETURN(const torch::Tensor labels, Read(prefix + "-labels-idx1-ubyte", 8));
  const int64_t part = labels.size(0) / size;
  const torch::Tensor images = pixels.view({-1, 1, 28, 28}).to(torch::kFloat32) / 255;
  return Samples{images.narrow(0, rank * part, part),
                 labels.to(torch::kInt64).narrow(0, rank * part, part)};
}

cadre::Status Update(const Options& options, const torch::Tensor& loss, DistributedOptimizer& sgd) {
  if (options.dist_option == "half") return sgd.BackwardAndUpdateHalf(loss);
  if (options.dist_option == "partialUpdate") return sgd.BackwardAndPartialUpdate(loss);
  const bool top_k = options.dist_option == "sparseTopK";
  if (!top_k && options.dist_option != "sparseThreshold") return sgd.BackwardAndUpdate(loss);
  return sgd.BackwardAndSparseUpdate(loss, cadre::hooks::kFusionThreshold, options.spars, top_k);
}

// SINGA's reduce_variable().
cadre::Status Sum(cadre::Communicator& ranks, torch::Tensor& numbers) {
  const cadre::Buffer buffer = {numbers.data_ptr(), static_cast<size_t>(numbers.numel()),
                                cadre::DataType::kFloat32};
  return WaitOrAbort(ranks, ranks.AllReduce(buffer, cadre::ReduceOp::kSum), kTimeout);
}

cadre::Status Train(const Options& options) {
  CADRE_ASSIGN_OR_RETURN(const cadre::World world, cadre::Connect());
  const int rank = world.worker->rank(), size = world.worker->world_size();
  CADRE_ASSIGN_OR_RETURN(const Samples train, Load(options.data_dir + "/train", rank, size));
  CADRE_ASSIGN_OR_RETURN(const Samples test, Load(options.data_dir + "/t10k", rank, size));
  torch::manual_seed(0);
  const auto net = std::make_shared<Net>();
  torch::optim::SGD sgd(
      net->parameters(),
      torch::optim::SGDOptions(options.learning_rate).momentum(0.9).weight_decay(1e-5));
  // SINGA's opt.DistOpt(sgd).
  CADRE_ASSIGN_OR_RETURN(const auto optimizer,
                         DistributedOptimizer::Create(sgd, *world.communicator, kTimeout));
  const int64_t batches = train.labels.size(0) / options.batch;
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    const auto start = std::chrono::steady_clock::now();
    if (rank == 0) std::printf("Starting Epoch %d:\n", epoch);
    const torch::Tensor order = torch::randperm(train.labels.size(0));
    torch::Tensor sums = torch::zeros({4});  // loss, hits, hits of the test, images of the test
    for (int64_t b = 0; b < batches; ++b) {
      const torch::Tensor which = order.narrow(0, b * options.batch, options.batch);
      const torch::Tensor labels = train.labels.index_select(0, which);
      const torch::Tensor scores = net->forward(train.images.index_select(0, which));
      const torch::Tensor loss = torch::nn::functional::cross_entropy(scores, labels);
      CADRE_RETURN_IF_ERROR(Update(options, loss, *optimizer));
      sums[0] += loss.detach();
      sums[1] += scores.argmax(1).eq(labels).sum();
    }
    const torch::NoGradGuard no_grad;
    sums[2] = net->forward(test.images).argmax(1).eq(test.labels).sum();
    sums[3] = test.labels.size(0);
    CADRE_RETURN_IF_ERROR(Sum(*world.communicator, sums));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (rank != 0) continue;
    std::printf("Training loss = %f, training accuracy = %f\n", sums[0].item<float>(),
                sums[1].item<float>() / static_cast<float>(batches * options.batch * size));
    std::printf("Evaluation accuracy = %f, Elapsed Time = %fs\n",
                sums[2].item<float>() / sums[3].item<float>(), took.count());
  }
  return cadre::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Options options;
  CLI::App app("SINGA's CNN on MNIST.");
  app.add_option("data", options.data_dir, "folder with MNIST's files, unpacked")->required();
  app.add_option("-m,--max-epoch", options.epochs)->capture_default_str();
  app.add_option("-b,--batch-size", options.batch, "of each rank")->capture_default_str();
  app.add_option("-l,--learning-rate", options.learning_rate)->capture_default_str();
  app.add_option("-d,--dist_option", options.dist_option)
      ->check(CLI::IsMember({"plain", "half", "partialUpdate", "sparseTopK", "sparseThreshold"}));
  app.add_option("-s,--spars", options.spars)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const cadre::Status status = Train(options);
  if (!status.ok()) std::fprintf(stderr, "singa_mnist: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
