// The same step as in basic.cc, but the program starts its ranks itself, without a launcher.
#include "cadre/spawn.h"

#include <cstdio>
#include <string>

#include "../exceptions/exceptions.h"
#include "../flags/flags.h"
#include "CLI/CLI.hpp"
#include "basic_training.h"
#include "program.h"

int main(int argc, char** argv) {
  CLI::App app("Basic data parallelism, without a launcher.");
  std::string device = "cpu";
  int ranks = 2;
  app.add_option("--device", device)->capture_default_str();
  app.add_option("--ranks", ranks)
      ->check(CLI::Range(1, cadre::kMaxSpawnedRanks))
      ->capture_default_str();
  if (const auto status = cadre::flags::Parse(app, argc, argv)) return *status;
  // Line buffering writes whole lines at once: all ranks write into one pipe or terminal.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  cadre::SpawnOptions options;
  options.communicator.timeout = cadre::kTimeout;
  // Each rank runs this program from the beginning: it gets here, runs the function and exits. Only
  // the process that started the ranks returns from Spawn(), when all have ended.
  const cadre::Status status = cadre::Spawn(
      ranks,
      [&](cadre::World& world) {
        return cadre::WithoutExceptions([&] {
          return cadre::TrainBasic(*world.worker, *world.communicator, torch::Device(device));
        });
      },
      options);
  if (status.ok()) std::printf("all %d ranks are done\n", ranks);
  return cadre::ExitStatus("spawn", status);
}
