// cifar_resnet50: see README.md.

#include <cstdio>
#include <string>

#include "../exceptions/exceptions.h"
#include "../flags/flags.h"
#include "CLI/CLI.hpp"
#include "cadre/connect.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "train.h"

namespace {

constexpr int kFailed = 1;

int Fail(const std::string& who, const cadre::Status& status) {
  std::fprintf(stderr, "cifar_resnet50: %s%s\n", who.c_str(), status.ToString().c_str());
  return kFailed;
}

void AddFlags(CLI::App& app, cadre::cifar::TrainOptions& options) {
  app.add_option(
      "--data-dir", options.data_dir,
      "directory with the files of CIFAR-10's binary version; default: images drawn here");
  app.add_option("--device", options.device, "default: cuda where there is a GPU, else cpu")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("-c,--checkpoint", options.checkpoint,
                 "file with parameters to begin with: NGPU_Eepoch.checkpoint");
  app.add_option("--checkpoint-dir", options.checkpoint_dir,
                 "shared directory; the training resumes from what it finds there");
  app.add_flag("!--no-save", options.save, "write no NGPU_Eepoch.checkpoint after each epoch");
  app.add_option("-e,--epochs", options.epochs)
      ->check(cadre::flags::Positive())
      ->capture_default_str();
  app.add_option("-b,--batch-size", options.batch_size, "of all ranks together")
      ->check(cadre::flags::Positive())
      ->capture_default_str();
  app.add_option("--lr", options.learning_rate, "learning rate")
      ->check(cadre::flags::NotNegative())
      ->capture_default_str();
  app.add_option("--momentum", options.momentum)
      ->check(cadre::flags::NotNegative())
      ->capture_default_str();
  app.add_option("--weight-decay", options.weight_decay)
      ->check(cadre::flags::NotNegative())
      ->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_option("--limit", options.limit, "use only so many training images; 0: all")
      ->check(cadre::flags::NotNegative())
      ->capture_default_str();
  app.add_option("--blocks", options.blocks, "of each stage of the network; default: ResNet-50's")
      ->delimiter(',')
      ->check(cadre::flags::Positive())
      ->capture_default_str();
  app.add_option("--width", options.width, "channels of the network's first stage")
      ->check(cadre::flags::Positive())
      ->capture_default_str();
  app.add_option("--timeout", options.timeout_seconds, "seconds that ranks wait for each other")
      ->check(cadre::flags::Positive())
      ->capture_default_str();
}

}  // namespace

int main(int argc, char** argv) {
  // Line buffering writes whole lines at once, although the output is a pipe.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  cadre::cifar::TrainOptions options;
  CLI::App app("Trains ResNet-50 on CIFAR-10, on all workers of a Cadre job.");
  AddFlags(app, options);
  if (const auto status = cadre::flags::Parse(app, argc, argv)) return *status;

  cadre::CommunicatorOptions communication;
  communication.timeout = options.timeout();
  cadre::Result<cadre::World> world = cadre::Connect(communication);
  if (!world.ok()) return Fail("", world.status());
  const std::string who = "rank " + std::to_string(world->worker->rank()) + ": ";
  const cadre::Status status =
      cadre::WithoutExceptions([&] { return cadre::cifar::Train(*world, options); });
  return status.ok() ? 0 : Fail(who, status);
}
