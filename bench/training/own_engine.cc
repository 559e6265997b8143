#include <cstdio>
#include <utility>

#include "bench/training/engine.h"
#include "cadre/torch/data_parallel.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/sockets/socket_communicator.h"

namespace cadre::bench {
namespace {

bool Ok(const Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok();
}

class Local : public Engine {
 public:
  explicit Local(std::shared_ptr<Model> model) : model_(std::move(model)) {}
  void ZeroGrad() override {
    for (torch::Tensor& parameter : model_->parameters())
      parameter.mutable_grad() = torch::Tensor();
  }
  torch::Tensor Forward(const torch::Tensor& input) override { return model_->forward(input); }
  bool Finish() override { return true; }

 private:
  const std::shared_ptr<Model> model_;
};

class Cadre : public Engine {
 public:
  Cadre(std::unique_ptr<Communicator> communicator, std::unique_ptr<nn::DataParallel<Model>> model)
      : communicator_(std::move(communicator)), model_(std::move(model)) {}
  void ZeroGrad() override { model_->ZeroGrad(); }
  torch::Tensor Forward(const torch::Tensor& input) override { return model_->forward(input); }
  bool Finish() override { return Ok(model_->Finish().status()); }

 private:
  const std::unique_ptr<Communicator> communicator_;
  const std::unique_ptr<nn::DataParallel<Model>> model_;
};

}  // namespace

std::unique_ptr<Engine> MakeOwnEngine(const std::string& name, Worker& worker,
                                      std::shared_ptr<Model> model) {
  if (name == "local") return std::make_unique<Local>(std::move(model));
  auto communicator = name == "cadre"
                          ? shared_memory::ConnectSharedMemory(worker, CommunicatorOptions())
                          : sockets::ConnectSockets(worker, CommunicatorOptions());
  if (!Ok(communicator.status())) return nullptr;
  auto parallel = nn::DataParallel<Model>::Create(std::move(model), **communicator);
  if (!Ok(parallel.status())) return nullptr;
  return std::make_unique<Cadre>(*std::move(communicator), *std::move(parallel));
}

}  // namespace cadre::bench
