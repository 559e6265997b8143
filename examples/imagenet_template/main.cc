// imagenet_template: see README.md.

#include <cstdio>
#include <string>

#include "../device/device.h"
#include "../exceptions/exceptions.h"
#include "../flags/flags.h"
#include "CLI/CLI.hpp"
#include "cadre/connect.h"
#include "cadre/result.h"
#include "cadre/spawn.h"
#include "cadre/status.h"
#include "train.h"

namespace {

constexpr int kFailed = 1;

int Fail(const std::string& who, const cadre::Status& status) {
  std::fprintf(stderr, "imagenet_template: %s%s\n", who.c_str(), status.ToString().c_str());
  return kFailed;
}

// The flags have the names of the Python template.
void AddTrainingFlags(CLI::App& app, cadre::imagenet::TrainOptions& options) {
  app.add_option("data", options.data_dir,
                 "directory with train/CLASS/*.jpg and val/CLASS/*.jpg; default: drawn pictures");
  app.add_option("-a,--arch", options.arch)
      ->check(CLI::IsMember({"resnet18", "resnet50", "alexnet", "vgg16"}))
      ->capture_default_str();
  app.add_option("-b,--batch-size", options.batch_size, "of one node's workers together")
      ->check(cadre::flags::Positive())
      ->capture_default_str();
  app.add_option("-j,--workers", options.data_workers, "that load data, on one node")
      ->check(cadre::flags::NotNegative())
      ->capture_default_str();
  app.add_option("--epochs", options.epochs)
      ->check(cadre::flags::Positive())
      ->capture_default_str();
  app.add_option("--start-epoch", options.start_epoch,
                 "epochs that count as done without a checkpoint")
      ->check(cadre::flags::NotNegative())
      ->capture_default_str();
  app.add_option("--lr,--learning-rate", options.learning_rate,
                 "learning rate, divided by 10 every 30 epochs")
      ->check(cadre::flags::NotNegative())
      ->capture_default_str();
  app.add_option("--momentum", options.momentum)
      ->check(cadre::flags::NotNegative())
      ->capture_default_str();
  app.add_option("--wd,--weight-decay", options.weight_decay)
      ->check(cadre::flags::NotNegative())
      ->capture_default_str();
  app.add_option("-p,--print-freq", options.print_every, "steps between two lines")
      ->check(cadre::flags::Positive())
      ->capture_default_str();
  app.add_option("--resume", options.resume, "a checkpoint to begin with");
  app.add_flag("-e,--evaluate", options.evaluate_only, "no training");
  app.add_option("--seed", options.seed)->capture_default_str();
}

// These also have the template's names. Values that the launcher knows are accepted if they agree.
void AddJobFlags(CLI::App& app, cadre::imagenet::JobFlags& job) {
  app.add_option("--world-size", job.nodes, "in nodes; -1: as many as the job has")
      ->check(CLI::Range(-1, 1 << 20));
  app.add_option("--rank", job.node_rank, "of this node; -1: the one that the job gives it")
      ->check(CLI::Range(-1, 1 << 20));
  app.add_option("--gpu", job.gpu, "of this process; default: that of its local rank")
      ->check(cadre::flags::NotNegative());
  app.add_option("--dist-url", job.dist_url, "env://, tcp://HOST:PORT or file:///PATH; not used")
      ->capture_default_str();
  app.add_option("--dist-backend", job.dist_backend, "taken and not used: Cadre has its own")
      ->check(CLI::IsMember({"gloo", "nccl"}));
  app.add_flag("--multiprocessing-distributed", job.process_per_gpu,
               "without a launcher: start a process for each GPU of this machine");
}

void AddFlags(CLI::App& app, cadre::imagenet::TrainOptions& options) {
  AddTrainingFlags(app, options);
  AddJobFlags(app, options.job);
  app.add_option("--device", options.device, "default: cuda where there is a GPU, else cpu")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--checkpoint-dir", options.checkpoint_dir,
                 "shared directory; the training resumes from what it finds there");
  app.add_option("--pictures", options.drawn_pictures, "to draw where there is no data directory")
      ->check(cadre::flags::Positive())
      ->capture_default_str();
  app.add_option("--side", options.side, "of the part of a picture that the network sees")
      ->check(CLI::Range(32, 1024))
      ->capture_default_str();
  app.add_option("--blocks", options.blocks,
                 "of each stage of a residual network; default: as --arch says")
      ->delimiter(',')
      ->check(cadre::flags::Positive())
      ->capture_default_str();
  app.add_option("--width", options.width, "channels of a residual network's first stage")
      ->check(cadre::flags::Positive());
  app.add_option("--timeout", options.timeout_seconds, "seconds that ranks wait for each other")
      ->check(cadre::flags::Positive())
      ->capture_default_str();
}

// Runs the training as this rank.
cadre::Status TrainRank(cadre::World& world, const cadre::imagenet::TrainOptions& options) {
  return cadre::WithoutExceptions([&] { return cadre::imagenet::Train(world, options); });
}

// Starts the ranks of this machine, if no launcher has.
int TrainAlone(const cadre::imagenet::TrainOptions& options,
               const cadre::CommunicatorOptions& communication) {
  cadre::SpawnOptions spawning;
  spawning.communicator = communication;
  const bool all = options.job.process_per_gpu && options.job.gpu < 0;
  const cadre::Status status = cadre::Spawn(
      all ? cadre::DeviceCount(options.device) : 1,
      [&](cadre::World& world) { return TrainRank(world, options); }, spawning);
  return status.ok() ? 0 : Fail("", status);
}

}  // namespace

int main(int argc, char** argv) {
  // Line buffering writes whole lines at once, although the output is a pipe.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  cadre::imagenet::TrainOptions options;
  bool dummy = false, pretrained = false;
  CLI::App app("Trains a network on pictures in ImageNet's layout, on all workers of a Cadre job.");
  AddFlags(app, options);
  app.add_flag("--dummy", dummy, "drawn pictures, whatever the directory");
  app.add_flag("--pretrained", pretrained)->group("");
  if (const auto status = cadre::flags::Parse(app, argc, argv)) return *status;
  if (pretrained) {
    return Fail("", cadre::UnimplementedError("--pretrained: this program downloads no parameters; "
                                              "--resume FILE begins with those of a checkpoint"));
  }
  if (dummy) options.data_dir.clear();

  cadre::CommunicatorOptions communication;
  communication.timeout = options.timeout();
  if (!cadre::imagenet::HasLauncher()) return TrainAlone(options, communication);
  cadre::Result<cadre::World> world = cadre::Connect(communication);
  if (!world.ok()) return Fail("", world.status());
  const std::string who = "rank " + std::to_string(world->worker->rank()) + ": ";
  const cadre::Status status = TrainRank(*world, options);
  return status.ok() ? 0 : Fail(who, status);
}
