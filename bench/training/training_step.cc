// Trains a model on several processes of this machine, one thread each. Prints two numbers of
// milliseconds for rank 0: the median time of a step, and the processor time that a step takes,
// which other load on the machine hardly changes.
//
//   training_step MODEL ENGINE RANKS STEPS
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "bench/training/engine.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "worker_runtime/testing/forked_workers.h"

namespace cadre::bench {
namespace {

constexpr int kWarmUp = 4;

// Of all threads of this process, in milliseconds.
double ProcessorTime() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto milliseconds = [](const timeval& time) {
    return time.tv_sec * 1e3 + time.tv_usec / 1e3;
  };
  return milliseconds(usage.ru_utime) + milliseconds(usage.ru_stime);
}

int RunRank(Worker& worker, const std::string& model_name, const std::string& engine_name,
            int steps, const std::string& folder) {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  const std::shared_ptr<Model> model = MakeModel(model_name);
  if (model == nullptr) return 64;
  const auto engine =
      absl::StartsWith(engine_name, "c10d")
          ? MakeC10dEngine(worker, model, folder, /*drops_gradients=*/engine_name == "c10d-drop")
          : MakeOwnEngine(engine_name, worker, model);
  if (engine == nullptr) return 1;
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1e-3));
  torch::manual_seed(worker.rank());
  const torch::Tensor input = model->Batch();
  std::vector<double> times;
  double processor = 0;
  for (int step = 0; step < kWarmUp + steps; ++step) {
    const MonoTime begin = MonoNow();
    if (step == kWarmUp) processor = ProcessorTime();
    engine->ZeroGrad();
    engine->Forward(input).pow(2).mean().backward();
    if (!engine->Finish()) return 1;
    optimizer.step();
    if (step >= kWarmUp) times.push_back(absl::ToDoubleMilliseconds(MonoNow() - begin));
  }
  processor = (ProcessorTime() - processor) / steps;
  std::sort(times.begin(), times.end());
  if (worker.rank() == 0) std::printf("%.3f %.3f\n", times[times.size() / 2], processor);
  std::fflush(stdout);
  if (!worker.Barrier("end", std::chrono::minutes(2)).ok()) return 1;
  // Without destructors: the peers' engines end in no order.
  std::_Exit(0);
}

}  // namespace
}  // namespace cadre::bench

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: training_step MODEL ENGINE RANKS STEPS\n");
    return 64;
  }
  std::string folder = "/tmp/training_step_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 70;
  cadre::testing::ForkedWorkers workers(std::atoi(argv[3]));
  workers.Start([&](cadre::Worker& worker) {
    try {
      return cadre::bench::RunRank(worker, argv[1], argv[2], std::atoi(argv[4]), folder);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 1;
    }
  });
  const int status = workers.WaitForAll();
  std::filesystem::remove_all(folder);
  return status;
}
