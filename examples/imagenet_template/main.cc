// imagenet_template: see README.md.

#include <cstdio>
#include <exception>
#include <string>

#include "CLI/CLI.hpp"
#include "cadre/connect.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "train.h"

namespace {

constexpr int kFailed = 1;

int Fail(const std::string& who, const cadre::Status& status) {
  std::fprintf(stderr, "imagenet_template: %s%s\n", who.c_str(), status.ToString().c_str());
  return kFailed;
}

// Named as in the Python template.
void AddTrainingFlags(CLI::App& app, cadre::imagenet::TrainOptions& options) {
  app.add_option("data", options.data_dir,
                 "directory with train/CLASS/*.ppm and val/CLASS/*.ppm; default: drawn pictures");
  app.add_option("--world-size", options.nodes, "in nodes; 0: as many as the job has")
      ->check(CLI::NonNegativeNumber);
  app.add_option("-b,--batch-size", options.batch_size, "of one node's workers together")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("-j,--workers", options.data_workers, "that load data, on one node")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--epochs", options.epochs)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--lr", options.learning_rate, "learning rate, divided by 10 every 30 epochs")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--momentum", options.momentum)
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--wd,--weight-decay", options.weight_decay)
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("-p,--print-freq", options.print_every, "steps between two lines")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--resume", options.resume, "a checkpoint to begin with");
  app.add_flag("-e,--evaluate", options.evaluate_only, "no training");
  app.add_option("--seed", options.seed)->capture_default_str();
}

void AddFlags(CLI::App& app, cadre::imagenet::TrainOptions& options) {
  AddTrainingFlags(app, options);
  app.add_option("--checkpoint-dir", options.checkpoint_dir,
                 "shared directory; the training resumes from what it finds there");
  app.add_option("--pictures", options.drawn_pictures, "to draw where there is no data directory")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--side", options.side, "of the part of a picture that the network sees")
      ->check(CLI::Range(32, 1024))
      ->capture_default_str();
  app.add_option("--blocks", options.blocks, "of each stage of the network; default: ResNet-50's")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--width", options.width, "channels of the network's first stage")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--timeout", options.timeout_seconds, "seconds that ranks wait for each other")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

}  // namespace

int main(int argc, char** argv) {
  // Whole lines, at once: the output goes to a pipe.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  cadre::imagenet::TrainOptions options;
  CLI::App app("Trains a ResNet on pictures in ImageNet's layout, on all workers of a Cadre job.");
  AddFlags(app, options);
  CLI11_PARSE(app, argc, argv);

  cadre::CommunicatorOptions communication;
  communication.timeout = options.timeout();
  cadre::Result<cadre::World> world = cadre::Connect(communication);
  if (!world.ok()) return Fail("", world.status());
  const std::string who = "rank " + std::to_string(world->worker->rank()) + ": ";
  try {
    const cadre::Status status = cadre::imagenet::Train(*world, options);
    return status.ok() ? 0 : Fail(who, status);
  } catch (const std::exception& error) {
    // libtorch adds a backtrace.
    const std::string what = error.what();
    return Fail(who, cadre::InternalError(what.substr(0, what.find('\n'))));
  }
}
