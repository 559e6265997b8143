// Fits a line to points, on all workers of a job.
#include <cstdio>
#include <random>
#include <vector>

#include "base/status_macros.h"
#include "worker_runtime/connect.h"
#include "worker_runtime/reducer.h"
#include "worker_runtime/sampler.h"
#include "worker_runtime/worker.h"

absl::Status Train() {
  CADRE_ASSIGN_OR_RETURN(auto worker, cadre::Worker::Connect());
  CADRE_ASSIGN_OR_RETURN(auto communicator, cadre::Connect(*worker, {}));

  std::vector<float> xs(1000);
  std::mt19937 random(7);  // the same points on every rank
  for (float& x : xs) x = std::uniform_real_distribution<float>(-1, 1)(random);

  float line[2] = {0, 0};  // slope and intercept
  CADRE_ASSIGN_OR_RETURN(auto reducer,
                         cadre::Reducer::Create(*communicator, {{"line", {line, 2}, {2}}}, {}));
  CADRE_ASSIGN_OR_RETURN(auto sampler, cadre::DistributedSampler::Create(
                                           {1000, worker->world_size(), worker->rank()}));
  for (int epoch = 0; epoch < 30; ++epoch) {
    CADRE_RETURN_IF_ERROR(reducer->BeginStep());
    auto* gradient = static_cast<float*>(reducer->Gradient(0).data);
    float loss = gradient[0] = gradient[1] = 0;
    for (const int64_t i : sampler.Epoch(epoch)) {  // this rank's share
      const float error = line[0] * xs[i] + line[1] - (3 * xs[i] + 2);
      gradient[0] += error * xs[i] / sampler.size();
      gradient[1] += error / sampler.size();
      loss += error * error / sampler.size();
    }
    CADRE_RETURN_IF_ERROR(reducer->MarkReady(0));
    CADRE_RETURN_IF_ERROR(reducer->Finish(absl::Minutes(1)).status());  // averages over the ranks
    for (int i = 0; i < 2; ++i) line[i] -= gradient[i];
    if (worker->rank() == 0) std::printf("epoch %d: loss %.6f\n", epoch, loss);
  }
  std::printf("rank %d of %d: y = %.2f x + %.2f\n", worker->rank(), worker->world_size(), line[0],
              line[1]);
  return absl::OkStatus();
}

int main() {
  const absl::Status status = Train();
  if (!status.ok()) std::fprintf(stderr, "plain_cpp: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
