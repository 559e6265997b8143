// A program that joins its ranks, whoever started it, and does one all-reduce. Without arguments it
// goes by the environment.
//
//   launched_probe [--at RANK SIZE HOST:PORT] [--spawn N] [--calls N] [--first-life HOW] [HOW R]
//
// HOW, what rank R does instead of ending well, all others being in a barrier that does not end:
// --exit (3), --kill (itself), --error (of its own), --nested (calls Spawn), --stubborn (the others
// ignore SIGTERM, and R exits). --leave: it never comes to Spawn().
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "cadre/connect.h"
#include "cadre/spawn.h"
#include "cadre/status_macros.h"

namespace {

using cadre::Status;

constexpr std::chrono::minutes kTimeout(1);

struct Arguments {
  std::map<std::string, std::string> values;
  cadre::WorkerOptions at;

  int Number(const std::string& name, int otherwise) const {
    const auto found = values.find(name);
    return found == values.end() ? otherwise : std::atoi(found->second.c_str());
  }
};

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--at" && i + 3 < argc) {
      arguments.at.rank = std::atoi(argv[i + 1]);
      arguments.at.world_size = std::atoi(argv[i + 2]);
      arguments.at.address = argv[i + 3];
      i += 3;
    } else if (i + 1 < argc) {
      arguments.values[name] = argv[++i];
    }
  }
  return arguments;
}

// What rank R was told to do.
Status Misbehave(const Arguments& arguments, int rank) {
  if (arguments.Number("--exit", -1) == rank || arguments.Number("--stubborn", -1) == rank) {
    std::exit(3);
  }
  if (arguments.Number("--kill", -1) == rank) raise(SIGKILL);
  if (arguments.Number("--error", -1) == rank) {
    return cadre::DataLossError("an error of its own");
  }
  if (arguments.Number("--nested", -1) == rank) {
    return cadre::Spawn(1, [](cadre::World&) { return cadre::OkStatus(); });
  }
  return cadre::OkStatus();
}

Status Work(const Arguments& arguments, cadre::World& world) {
  cadre::Worker& worker = *world.worker;
  const cadre::WorkerPlace& place = worker.place();
  float sum = static_cast<float>(place.rank + 1);
  CADRE_RETURN_IF_ERROR(
      world.communicator->AllReduce({&sum, 1, cadre::DataType::kFloat32}, cadre::ReduceOp::kSum)
          ->Wait(kTimeout));
  const auto n = static_cast<float>(place.world_size);
  if (sum != n * (n + 1) / 2) return cadre::InternalError("the sum is wrong");
  std::printf("launched rank=%d of=%d local=%d of=%d node=%d of=%d restarts=%d at=%s pid=%d\n",
              place.rank, place.world_size, place.local_rank, place.local_world_size,
              place.node_rank, place.nodes, place.restart_count, place.address.c_str(), getpid());
  std::fflush(stdout);
  bool ends_well = true;
  for (const char* how : {"--exit", "--kill", "--error", "--nested", "--stubborn"}) {
    ends_well = ends_well && arguments.values.count(how) == 0;
  }
  if (ends_well) return worker.Barrier("done", kTimeout);
  if (arguments.values.count("--stubborn") != 0) signal(SIGTERM, SIG_IGN);
  CADRE_RETURN_IF_ERROR(worker.Barrier("seen", kTimeout));
  CADRE_RETURN_IF_ERROR(Misbehave(arguments, place.rank));
  // The others stay until they are ended.
  return worker.Get("never", kTimeout).status();
}

Status Run(const Arguments& arguments) {
  const int ranks = arguments.Number("--spawn", 0);
  if (ranks != 0) {
    const int calls = arguments.Number("--calls", 1);
    if (std::getenv("CADRE_SPAWNED") != nullptr && arguments.values.count("--leave") != 0) {
      return cadre::OkStatus();
    }
    cadre::SpawnOptions options;
    options.grace = std::chrono::milliseconds(200);
    for (int call = 1; call < calls; ++call) {
      CADRE_RETURN_IF_ERROR(cadre::Spawn(
          call, [&](cadre::World& world) { return Work(arguments, world); }, options));
    }
    return cadre::Spawn(
        ranks, [&](cadre::World& world) { return Work(arguments, world); }, options);
  }
  const char* const lives = std::getenv("TORCHELASTIC_RESTART_COUNT");
  const bool first = lives == nullptr || std::string(lives) == "0";
  Arguments now = arguments;
  if (!first && arguments.values.count("--first-life") != 0) now.values.clear();
  cadre::World world;
  if (arguments.at.rank >= 0) {
    CADRE_ASSIGN_OR_RETURN(world.worker, cadre::Worker::Connect(arguments.at));
    CADRE_ASSIGN_OR_RETURN(world.communicator, cadre::ConnectCommunicator(*world.worker, {}));
  } else {
    CADRE_ASSIGN_OR_RETURN(world, cadre::Connect());
  }
  return Work(now, world);
}

}  // namespace

int main(int argc, char** argv) {
  const Status status = Run(Parse(argc, argv));
  if (status.ok()) return EXIT_SUCCESS;
  std::fprintf(stderr, "launched_probe: %s\n", status.ToString().c_str());
  return EXIT_FAILURE;
}
