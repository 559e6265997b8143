// A training with DeterministicReduction that is to be done on so many ranks for so many steps,
// then on others: where the ranks are not those of the step it says so, and waits to be ended.
//
//   same_bits_worker DIRECTORY RANKSxSTEPS...
//
// Each step is saved in the directory; the parameters in which the last one ends are written to
// DIRECTORY/parameters.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cadre/checkpoint.h"
#include "cadre/connect.h"
#include "cadre/status_macros.h"
#include "cadre/torch/archive_file.h"
#include "cadre/torch/deterministic_reduction.h"
#include "torch/nn/modules/activation.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/adam.h"
#include "torch/serialize.h"
#include "torch/utils.h"

namespace cadre {
namespace {

constexpr int kRowsOfAPart = 5;
constexpr std::chrono::nanoseconds kTimeout = std::chrono::minutes(1);

// On so many ranks until that step.
struct Stretch {
  int ranks = 0;
  int64_t end = 0;
};

torch::Tensor Images(int64_t step, int part) {
  const torch::Tensor numbers = torch::arange(kRowsOfAPart * 12) + 31 * part + 1009 * step;
  return (numbers * 0.37).sin().view({kRowsOfAPart, 12});
}

class Training {
 public:
  Training(const World& world, std::string directory)
      : world_(world),
        directory_(std::move(directory)),
        checkpoints_(directory_ + "/checkpoints"),
        net_(torch::nn::Linear(12, 24), torch::nn::Tanh(), torch::nn::Linear(24, 1)),
        adam_(net_->parameters(), torch::optim::AdamOptions(0.01)) {}

  Status Run(const std::vector<Stretch>& stretches) {
    CADRE_ASSIGN_OR_RETURN(int64_t done, Resume());
    CADRE_ASSIGN_OR_RETURN(auto reduction,
                           nn::DeterministicReduction::Create(*net_, *world_.communicator));
    for (const Stretch& stretch : stretches) {
      if (done >= stretch.end) continue;
      std::printf("step %lld on %d ranks\n", static_cast<long long>(done),
                  world_.worker->world_size());
      if (stretch.ranks != world_.worker->world_size()) {
        std::printf("waits for %d ranks\n", stretch.ranks);
        for (;;) pause();
      }
      while (done < stretch.end) {
        CADRE_RETURN_IF_ERROR(Step(++done, *reduction));
        CADRE_RETURN_IF_ERROR(SaveCheckpoint(
            *world_.worker, checkpoints_, done,
            [this](const std::string& path) { return Write(path); }, kTimeout));
      }
    }
    if (world_.worker->rank() == 0) WriteParameters();
    return OkStatus();
  }

 private:
  Result<int64_t> Resume() {
    CADRE_ASSIGN_OR_RETURN(const NewestCheckpoint newest,
                           LoadNewest(*world_.worker, checkpoints_, kTimeout));
    if (!newest.checkpoint) return 0;
    torch::serialize::InputArchive archive, net, adam;
    archive.load_from(newest.checkpoint->path);
    archive.read("net", net);
    archive.read("adam", adam);
    net_->load(net);
    adam_.load(adam);
    return newest.checkpoint->step;
  }

  Status Step(int64_t step, nn::DeterministicReduction& reduction) {
    for (int part = reduction.parts().begin; part < reduction.parts().end; ++part) {
      net_->forward(Images(step, part)).pow(2).mean().backward();
      CADRE_RETURN_IF_ERROR(reduction.Take());
    }
    CADRE_RETURN_IF_ERROR(reduction.Finish());
    adam_.step();
    adam_.zero_grad();
    return OkStatus();
  }

  Status Write(const std::string& path) {
    torch::serialize::OutputArchive archive, net, adam;
    net_->save(net);
    adam_.save(adam);
    archive.write("net", net);
    archive.write("adam", adam);
    return SaveArchive(archive, path);
  }

  void WriteParameters() {
    std::ofstream file(directory_ + "/parameters", std::ios::binary);
    for (const torch::Tensor& parameter : net_->parameters()) {
      file.write(static_cast<const char*>(parameter.data_ptr()),
                 static_cast<std::streamsize>(parameter.nbytes()));
    }
  }

  const World& world_;
  const std::string directory_;
  const CheckpointDirectory checkpoints_;
  torch::nn::Sequential net_;
  torch::optim::Adam adam_;
};

Status Run(const std::string& directory, const std::vector<std::string>& plan) {
  std::vector<Stretch> stretches;
  int64_t end = 0;
  for (const std::string& one : plan) {
    const std::vector<std::string> parts = absl::StrSplit(one, 'x');
    Stretch stretch;
    int64_t steps = 0;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &stretch.ranks) ||
        !absl::SimpleAtoi(parts[1], &steps)) {
      return InvalidArgumentError(absl::StrCat("'", one, "' is not RANKSxSTEPS"));
    }
    stretch.end = end += steps;
    stretches.push_back(stretch);
  }
  CADRE_ASSIGN_OR_RETURN(const World world, Connect());
  return Training(world, directory).Run(stretches);
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc < 3) return EXIT_FAILURE;
  torch::manual_seed(1);
  const cadre::Status status = cadre::Run(argv[1], {argv + 2, argv + argc});
  if (status.ok()) return EXIT_SUCCESS;
  std::printf("error: %s\n", status.ToString().c_str());
  return EXIT_FAILURE;
}
