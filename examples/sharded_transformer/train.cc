#include "train.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

#include "../device/device.h"
#include "cadre/checkpoint.h"
#include "cadre/status_macros.h"
#include "cadre/torch/archive_file.h"
#include "cadre/torch/sharded_grad_scaler.h"
#include "cadre/wait_or_abort.h"
#include "precision.h"
#include "strategy.h"
#include "text.h"
#include "torch/nn/functional/loss.h"
#include "torch/utils.h"

namespace cadre::transformer {
namespace {

constexpr std::chrono::nanoseconds kTimeout = std::chrono::minutes(5);

double Kibi(size_t bytes) { return static_cast<double>(bytes) / 1024; }

class Training {
 public:
  Training(const World& world, const TrainOptions& options)
      : world_(world),
        worker_(*world.worker),
        communicator_(*world.communicator),
        options_(options),
        device_(torch::kCPU) {}

  Status Run() {
    CADRE_RETURN_IF_ERROR(Prepare());
    CADRE_ASSIGN_OR_RETURN(int64_t done, Resume());
    const auto begin = std::chrono::steady_clock::now();
    const int64_t before = done;
    bool said_held = false;
    while (done < options_.steps) {
      FailOnPurpose(++done);
      bool stepped = false;
      CADRE_ASSIGN_OR_RETURN(float loss, Step(done, &stepped));
      worker_.ReportProgress(done, /*samples_per_second=*/0, loss);
      if (done % options_.log_every == 0 || done == before + 1) {
        CADRE_RETURN_IF_ERROR(Average(&loss));
        const std::chrono::duration<double, std::milli> took =
            std::chrono::steady_clock::now() - begin;
        if (IsFirst()) {
          std::printf("step %lld: loss %.4f, %.1f ms a step\n", static_cast<long long>(done), loss,
                      took.count() / static_cast<double>(done - before));
        }
      }
      // The optimizer has no state before its first step.
      if (stepped && !std::exchange(said_held, true)) SayHeld();
      if (done % options_.save_every == 0) CADRE_RETURN_IF_ERROR(Save(done));
    }
    return Write();
  }

 private:
  bool IsFirst() const { return worker_.rank() == 0; }

  Status Prepare() {
    if (options_.batch % worker_.world_size() != 0) {
      return InvalidArgumentError("--batch " + std::to_string(options_.batch) +
                                  " cannot be divided among " +
                                  std::to_string(worker_.world_size()) + " ranks");
    }
    CADRE_ASSIGN_OR_RETURN(device_, ChooseDevice(options_.device, worker_.place().local_rank));
    CADRE_ASSIGN_OR_RETURN(Text text, Text::Load(options_.text_file, options_.shape.context));
    text_ = std::make_unique<Text>(std::move(text));
    CADRE_ASSIGN_OR_RETURN(prompt_, text_->Encode(options_.prompt));
    CADRE_ASSIGN_OR_RETURN(type_, TypeNamed(options_.precision));
    CADRE_RETURN_IF_ERROR(CheckTrains(device_, type_));
    nn::GradScalerOptions scaling;
    scaling.enabled = type_ == torch::kFloat16;
    scaling.init_scale = options_.loss_scale;
    CADRE_ASSIGN_OR_RETURN(scaler_, nn::ShardedGradScaler::Create(communicator_, scaling));
    Shape shape = options_.shape;
    shape.vocabulary = text_->vocabulary();
    torch::manual_seed(options_.seed);
    CADRE_ASSIGN_OR_RETURN(strategy_, MakeStrategy(options_.strategy, shape, device_,
                                                   options_.learning_rate, world_, *scaler_));
    return OkStatus();
  }

  torch::Tensor Forward(const torch::Tensor& ids) {
    return ForwardIn(type_, device_, [&] { return strategy_->Forward(ids); });
  }

  Result<float> Step(int64_t step, bool* stepped) {
    const int64_t share = options_.batch / worker_.world_size();
    const Batch batch = text_->Sequences(step, share * worker_.rank(), share);
    const torch::Tensor logits = Forward(batch.inputs.to(device_));
    const torch::Tensor loss = torch::nn::functional::cross_entropy(
        logits.flatten(0, 1), batch.targets.to(device_).flatten());
    scaler_->Scale(loss).backward();
    CADRE_ASSIGN_OR_RETURN(*stepped, strategy_->Step(options_.max_norm));
    CADRE_RETURN_IF_ERROR(scaler_->Update());
    if (!*stepped && IsFirst()) {
      std::printf("step %lld is left out: a gradient overflowed; the loss is scaled by %.0f now\n",
                  static_cast<long long>(step), scaler_->scale());
    }
    return loss.item<float>();
  }

  // Averages the number over all ranks.
  Status Average(float* number) {
    return WaitOrAbort(communicator_,
                       communicator_.AllReduce({number, 1, DataType::kFloat32}, ReduceOp::kAverage),
                       kTimeout);
  }

  void SayHeld() const {
    const HeldBytes held = strategy_->Held();
    std::printf(
        "rank %d keeps %.1f KiB of parameters, %.1f of gradients, %.1f of optimizer state\n",
        worker_.rank(), Kibi(held.parameters), Kibi(held.gradients), Kibi(held.state));
  }

  void FailOnPurpose(int64_t step) const {
    if (worker_.rank() != options_.fail_rank || step != options_.fail_step) return;
    if (worker_.place().restart_count != 0) return;
    std::printf("rank %d kills itself before step %lld, as asked\n", worker_.rank(),
                static_cast<long long>(step));
    raise(SIGKILL);
  }

  // Returns the last step that a checkpoint has, or 0 if there is none.
  Result<int64_t> Resume() {
    if (options_.checkpoint_dir.empty()) return 0;
    const CheckpointDirectory checkpoints(options_.checkpoint_dir);
    CADRE_ASSIGN_OR_RETURN(const NewestCheckpoint newest,
                           LoadNewest(worker_, checkpoints, kTimeout));
    if (!newest.warning.empty() && IsFirst()) std::printf("%s\n", newest.warning.c_str());
    if (!newest.checkpoint) return 0;
    torch::serialize::InputArchive archive, model, optimizer;
    archive.load_from(newest.checkpoint->path, device_);
    archive.read("model", model);
    archive.read("optimizer", optimizer);
    CADRE_RETURN_IF_ERROR(strategy_->Load(model, optimizer));
    // A checkpoint of a training in another type has no scaler.
    torch::serialize::InputArchive scaler;
    if (scaler_->enabled() && archive.try_read("scaler", scaler)) {
      CADRE_RETURN_IF_ERROR(scaler_->LoadState(scaler));
    }
    if (IsFirst()) {
      std::printf("training goes on after step %lld, with %d ranks and %s\n",
                  static_cast<long long>(newest.checkpoint->step), worker_.world_size(),
                  options_.strategy.c_str());
      if (scaler_->enabled()) std::printf("the loss is scaled by %.0f\n", scaler_->scale());
    }
    return newest.checkpoint->step;
  }

  Status Save(int64_t step) {
    if (options_.checkpoint_dir.empty()) return OkStatus();
    torch::serialize::OutputArchive model, optimizer;
    CADRE_RETURN_IF_ERROR(strategy_->Save(model, optimizer));
    // The function runs on rank 0 alone.
    const auto write = [&](const std::string& path) {
      torch::serialize::OutputArchive archive;
      archive.write("model", model);
      archive.write("optimizer", optimizer);
      if (scaler_->enabled()) {
        torch::serialize::OutputArchive scaler;
        scaler_->SaveState(scaler);
        archive.write("scaler", scaler);
      }
      return SaveArchive(archive, path);
    };
    const CheckpointDirectory checkpoints(options_.checkpoint_dir);
    return SaveCheckpoint(worker_, checkpoints, step, write, kTimeout);
  }

  // Writes what comes after the prompt; each byte is the likeliest one. All ranks do it, since a
  // sharded model runs on all of them.
  Status Write() {
    const torch::NoGradGuard no_grad;
    torch::Tensor ids = prompt_.to(device_);
    std::string text = options_.prompt;
    for (int64_t i = 0; i < options_.write; ++i) {
      const int64_t length = std::min(ids.numel(), options_.shape.context);
      const torch::Tensor seen = ids.narrow(0, ids.numel() - length, length);
      const torch::Tensor next = Forward(seen.unsqueeze(0))[0][length - 1].argmax();
      ids = torch::cat({ids, next.unsqueeze(0)});
      text += text_->Decode(next.item<int64_t>());
    }
    if (IsFirst())
      std::printf("%lld steps done; the model writes:\n%s\n",
                  static_cast<long long>(options_.steps), text.c_str());
    return OkStatus();
  }

  const World& world_;
  Worker& worker_;
  Communicator& communicator_;
  const TrainOptions& options_;
  torch::Device device_;
  torch::ScalarType type_ = torch::kFloat32;
  std::unique_ptr<Text> text_;
  torch::Tensor prompt_;
  std::unique_ptr<nn::ShardedGradScaler> scaler_;
  std::unique_ptr<Strategy> strategy_;
};

}  // namespace

Status Train(const World& world, const TrainOptions& options) {
  return Training(world, options).Run();
}

}  // namespace cadre::transformer
