// Fits a line to points, on all workers of a job.
#include <chrono>
#include <cstdio>
#include <random>
#include <vector>

#include "cadre/connect.h"
#include "cadre/reducer.h"
#include "cadre/sampler.h"
#include "cadre/status_macros.h"

cadre::Status Train() {
  CADRE_ASSIGN_OR_RETURN(const cadre::World world, cadre::Connect());
  const int rank = world.worker->rank(), world_size = world.worker->world_size();

  std::vector<float> xs(1000);
  std::mt19937 random(7);  // the same points on every rank
  for (float& x : xs) x = std::uniform_real_distribution<float>(-1, 1)(random);

  float line[2] = {0, 0};  // slope and intercept
  CADRE_ASSIGN_OR_RETURN(
      auto reducer, cadre::Reducer::Create(*world.communicator, {{"line", {line, 2}, {2}}}, {}));
  CADRE_ASSIGN_OR_RETURN(auto sampler, cadre::DistributedSampler::Create({1000, world_size, rank}));
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
    // Finish() averages the gradients over the ranks.
    CADRE_RETURN_IF_ERROR(reducer->Finish(std::chrono::minutes(1)).status());
    for (int i = 0; i < 2; ++i) line[i] -= gradient[i];
    if (rank == 0) std::printf("epoch %d: loss %.6f\n", epoch, loss);
  }
  std::printf("rank %d of %d: y = %.2f x + %.2f\n", rank, world_size, line[0], line[1]);
  return cadre::OkStatus();
}

int main() {
  const cadre::Status status = Train();
  if (!status.ok()) std::fprintf(stderr, "plain_cpp: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
