// One contestant: a way to turn each rank's gradients into the average.
#ifndef CADRE_BENCH_TRAINING_ENGINE_H_
#define CADRE_BENCH_TRAINING_ENGINE_H_

#include <memory>
#include <string>

#include "bench/training/models.h"
#include "cadre/worker.h"

namespace cadre::bench {

class Engine {
 public:
  virtual ~Engine() = default;
  // Before gradients are computed anew.
  virtual void ZeroGrad() = 0;
  virtual torch::Tensor Forward(const torch::Tensor& input) = 0;
  // After the backward pass. False: it failed.
  virtual bool Finish() = 0;
};

// "cadre" over shared memory, "cadre-sockets", or "local" without any exchange. Null: it failed.
std::unique_ptr<Engine> MakeOwnEngine(const std::string& name, Worker& worker,
                                      std::shared_ptr<Model> model);
// c10d's reducer over its Gloo; `folder` is for its rendezvous. Before a step it drops gradients
// (zero_grad(set_to_none=True)) or fills them with zeros; which is faster depends on the model.
// Null with torch from PyPI.
std::unique_ptr<Engine> MakeC10dEngine(Worker& worker, std::shared_ptr<Model> model,
                                       const std::string& folder, bool drops_gradients);

}  // namespace cadre::bench

#endif  // CADRE_BENCH_TRAINING_ENGINE_H_
