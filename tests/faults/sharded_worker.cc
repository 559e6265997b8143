// A rank of a sharded training (FullySharded, AdamW) of which, in each of the first generations,
// one rank kills itself: in a gather, in a unit's forward pass, in a reduce-scatter, in the
// optimizer's step, or while the state is saved, in turn; which rank, step and moment, the number
// of the generation says.
//
//   sharded_worker memory|directory DIRECTORY STEPS KILLS
//
// memory: each rank saves its part of the state in its node's memory; directory: in a checkpoint in
// DIRECTORY. The parameters in which it ends are written to DIRECTORY/parameters.
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "cadre/in_place.h"
#include "cadre/memory_checkpoint.h"
#include "cadre/sharded_checkpoint.h"
#include "cadre/status_macros.h"
#include "cadre/torch/fully_sharded.h"
#include "cadre/torch/sharded_checkpoint.h"
#include "tests/faults/mortal_communicator.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/adamw.h"
#include "torch/utils.h"

namespace cadre {
namespace {

constexpr std::chrono::nanoseconds kTimeout = std::chrono::minutes(1);
constexpr int kBlocks = 3;
constexpr int kWidth = 24;

enum Phase { kGather, kForward, kReduceScatter, kStep, kSave, kPhases };
constexpr const char* kPhaseNames[kPhases] = {"gather", "forward", "reduce-scatter", "step",
                                              "save"};

// When this process ends, if it does.
class Doom {
 public:
  Doom() = default;
  Doom(const WorkerPlace& place, int kills, int64_t after) {
    if (place.generation > static_cast<uint64_t>(kills)) return;
    std::mt19937 random(static_cast<unsigned>(place.generation));
    phase_ = static_cast<Phase>((place.generation - 1) % kPhases);
    const int victim = static_cast<int>(random() % static_cast<unsigned>(place.world_size));
    step_ = after + 1 + static_cast<int64_t>(random() % 2);
    countdown_ = static_cast<int>(random() % kBlocks);
    begun_ = random() % 2 == 1;
    if (victim != place.rank) step_ = -1;
    generation_ = place.generation;
  }

  void At(int64_t step) { now_ = step; }
  // In one of the step's moments of this phase, early or late.
  void Meet(Phase phase, bool begun) {
    if (now_ != step_ || phase != phase_ || begun != begun_ || countdown_-- > 0) return;
    std::printf("dies generation=%d step=%d phase=%s\n", static_cast<int>(generation_),
                static_cast<int>(step_), kPhaseNames[phase_]);
    raise(SIGKILL);
  }
  // Of a phase that a step has once.
  void MeetOnce(Phase phase, bool begun) {
    countdown_ = 0;
    Meet(phase, begun);
  }

 private:
  Phase phase_ = kGather;
  int64_t step_ = -1, now_ = 0;
  uint64_t generation_ = 0;
  int countdown_ = 0;
  bool begun_ = false;
};

struct Block : torch::nn::Module {
  explicit Block(Doom& doom) : doom(doom) {
    inner = register_module("inner", torch::nn::Linear(kWidth, 2 * kWidth));
    outer = register_module("outer", torch::nn::Linear(2 * kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    doom.Meet(kForward, false);
    x = x + outer(torch::tanh(inner(x)));
    doom.Meet(kForward, true);
    return x;
  }
  Doom& doom;
  torch::nn::Linear inner{nullptr}, outer{nullptr};
};

struct Net : torch::nn::Module {
  explicit Net(Doom& doom) {
    torch::manual_seed(1);
    for (const std::string& name : Names()) {
      blocks.push_back(register_module(name, std::make_shared<Block>(doom)));
    }
    head = register_module("head", torch::nn::Linear(kWidth, 1));
  }
  static std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (int i = 0; i < kBlocks; ++i) names.push_back("block" + std::to_string(i));
    return names;
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& block : blocks) x = nn::CallUnit(block, x);
    return head(x);
  }
  std::vector<std::shared_ptr<Block>> blocks;
  torch::nn::Linear head{nullptr};
};

using Model = nn::FullySharded<Net>;

struct Options {
  bool in_memory = false;
  std::string directory;
  int64_t steps = 0;
  int kills = 0;  // below half of the steps: a generation that loses a rank has two at most
};

// One generation of this rank.
class Training {
 public:
  Training(Worker& worker, Communicator& communicator, const Options& options)
      : worker_(worker),
        options_(options),
        communicator_(communicator, [this](MortalCommunicator::Call call, bool begun) {
          doom_.Meet(call == MortalCommunicator::Call::kGather ? kGather : kReduceScatter, begun);
        }) {}

  Status Run() {
    CADRE_ASSIGN_OR_RETURN(
        model_, Model::Create(std::make_shared<Net>(doom_), Net::Names(), communicator_));
    adam_.emplace(model_->shards(), torch::optim::AdamWOptions(0.01).weight_decay(0.1));
    CADRE_ASSIGN_OR_RETURN(int64_t done, Load());
    std::printf("life generation=%d after=%d\n", static_cast<int>(worker_.place().generation),
                static_cast<int>(done));
    doom_ = Doom(worker_.place(), options_.kills, done);
    while (done < options_.steps) {
      doom_.At(++done);
      CADRE_RETURN_IF_ERROR(Step(done));
      CADRE_RETURN_IF_ERROR(Save(done));
    }
    return WriteParameters();
  }

 private:
  // The step after which training goes on; 0: from the beginning.
  Result<int64_t> Load() {
    ShardedCheckpointOptions waiting;
    waiting.timeout = kTimeout;
    CADRE_ASSIGN_OR_RETURN(checkpoint_, ShardedCheckpoint::Open(
                                            worker_, options_.directory + "/checkpoints", waiting));
    if (options_.in_memory) {
      CADRE_ASSIGN_OR_RETURN(memory_, MemoryCheckpoint::Open(worker_, {}));
    }
    CADRE_ASSIGN_OR_RETURN(const auto latest, checkpoint_->Latest(memory_.get()));
    if (!latest) return 0;
    CADRE_RETURN_IF_ERROR(nn::LoadShards(*model_, *adam_, latest->shards));
    return latest->shards.step();
  }

  Status Save(int64_t step) {
    CADRE_ASSIGN_OR_RETURN(state_, nn::ShardsOf(*model_, *adam_));
    doom_.MeetOnce(kSave, false);
    if (memory_ != nullptr) {
      CADRE_ASSIGN_OR_RETURN(const auto parts, state_->Parts(step));
      CADRE_RETURN_IF_ERROR(memory_->Save(step, parts));
    } else {
      CADRE_RETURN_IF_ERROR(checkpoint_->Save(step, *state_));
    }
    // A thread copies or writes it now.
    doom_.MeetOnce(kSave, true);
    // Who waits loses nothing but the step in which a rank dies.
    return memory_ != nullptr ? memory_->Wait() : checkpoint_->Wait();
  }

  Status Step(int64_t step) {
    const torch::Tensor numbers =
        torch::arange(4 * kWidth) + 31 * worker_.rank() + 1009 * static_cast<int>(step);
    try {
      model_->forward((numbers * 0.37).sin().view({4, kWidth})).pow(2).mean().backward();
    } catch (const std::exception& error) {
      // What went wrong with another rank has gone through libtorch.
      const Status status = model_->Finish();
      return status.ok() ? InternalError(error.what()) : status;
    }
    CADRE_RETURN_IF_ERROR(model_->Finish());
    doom_.MeetOnce(kStep, false);
    CADRE_RETURN_IF_ERROR(model_->Step(*adam_));
    doom_.MeetOnce(kStep, true);
    model_->ZeroGrad();
    return OkStatus();
  }

  Status WriteParameters() {
    CADRE_ASSIGN_OR_RETURN(const auto full, Model::FullParameters::Gather(*model_));
    if (worker_.rank() != 0) return OkStatus();
    std::ofstream file(options_.directory + "/parameters", std::ios::binary);
    for (const torch::Tensor& parameter : model_->module().parameters()) {
      file.write(static_cast<const char*>(parameter.data_ptr()),
                 static_cast<std::streamsize>(parameter.nbytes()));
    }
    return OkStatus();
  }

  Worker& worker_;
  const Options& options_;
  Doom doom_;
  MortalCommunicator communicator_;
  std::unique_ptr<Model> model_;
  std::optional<torch::optim::AdamW> adam_;
  std::optional<ShardedState> state_;  // of which `memory_` may still copy when it goes
  std::unique_ptr<ShardedCheckpoint> checkpoint_;
  std::unique_ptr<MemoryCheckpoint> memory_;
};

// Ranks give each other nothing: each loads its own part.
class NothingToShare : public InPlaceState {
 public:
  int64_t position() const override { return -1; }
  Result<std::string> Save() const override { return std::string(); }
  Status Load(std::string_view) override { return OkStatus(); }
};

Status Run(const Options& options) {
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Connect());
  NothingToShare nothing;
  return TrainInPlace(*worker, nothing, {}, [&](Worker& worker, Communicator& communicator) {
    return Training(worker, communicator, options).Run();
  });
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  cadre::Options options;
  if (argc != 5 || !absl::SimpleAtoi(argv[3], &options.steps) ||
      !absl::SimpleAtoi(argv[4], &options.kills)) {
    return EXIT_FAILURE;
  }
  options.in_memory = argv[1] == std::string("memory");
  options.directory = argv[2];
  const cadre::Status status = cadre::Run(options);
  if (status.ok()) return EXIT_SUCCESS;
  std::printf("error: %s\n", status.ToString().c_str());
  return EXIT_FAILURE;
}
