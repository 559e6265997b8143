// Runs one step on every rank, each with its own samples; afterwards all have the same parameters.
#include <string>

#include "../flags/flags.h"
#include "CLI/CLI.hpp"
#include "basic_training.h"
#include "program.h"

int main(int argc, char** argv) {
  CLI::App app("Basic data parallelism.");
  std::string device = "cpu";
  app.add_option("--device", device)->capture_default_str();
  if (const auto status = cadre::flags::Parse(app, argc, argv)) return *status;
  return cadre::RunAsWorker("basic", [&](cadre::Worker& worker, cadre::Communicator& communicator) {
    return cadre::TrainBasic(worker, communicator, torch::Device(device));
  });
}
