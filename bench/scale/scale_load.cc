// The clients of one measurement, in a process of their own.
//
//   scale_load WHAT --endpoint HOST:PORT [--token-file FILE] [--agents N] [--slots N] [--clients N]
//              [--rounds N] [--seconds N] [--process PID]
//
// WHAT: join, bare_join, broadcast, bare_broadcast, ids, barrier, idle, direct_store, stream_store,
// bare_store.
// Prints the figures as JSON.
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/synchronization/mutex.h"
#include "bench/scale/loads.h"
#include "rpc/channels.h"

namespace cadre {
namespace {

struct Arguments {
  LoadOptions load;
  StoreLoadOptions store;
  int process = 0;
};

bool ReadArguments(int argc, char** argv, Arguments* arguments) {
  uint32_t seconds = 3;
  for (int i = 2; i < argc; i += 2) {
    if (i + 1 == argc) return false;
    const std::string flag = argv[i], value = argv[i + 1];
    bool good = true;
    if (flag == "--endpoint") {
      arguments->load.server.endpoint = value;
    } else if (flag == "--token-file") {
      std::ifstream file(value);
      good = static_cast<bool>(file >> arguments->load.server.token);
    } else if (flag == "--agents") {
      good = absl::SimpleAtoi(value, &arguments->load.agents);
    } else if (flag == "--slots") {
      good = absl::SimpleAtoi(value, &arguments->load.slots);
    } else if (flag == "--clients") {
      good = absl::SimpleAtoi(value, &arguments->store.clients);
    } else if (flag == "--rounds") {
      good = absl::SimpleAtoi(value, &arguments->load.rounds);
    } else if (flag == "--seconds") {
      good = absl::SimpleAtoi(value, &seconds);
    } else if (flag == "--process") {
      good = absl::SimpleAtoi(value, &arguments->process);
    } else {
      good = false;
    }
    if (!good) return false;
  }
  arguments->load.span = arguments->store.span = absl::Seconds(seconds);
  arguments->store.server = arguments->load.server;
  return !arguments->load.server.endpoint.empty();
}

int Run(int argc, char** argv) {
  Arguments arguments;
  const std::map<std::string, std::function<absl::StatusOr<nlohmann::json>()>> all = {
      {"join", [&] { return MeasureJoin(arguments.load); }},
      {"bare_join", [&] { return MeasureBareJoin(arguments.load); }},
      {"broadcast", [&] { return MeasureBroadcast(arguments.load); }},
      {"bare_broadcast", [&] { return MeasureBareBroadcast(arguments.load); }},
      {"ids", [&] { return MeasureIds(arguments.load); }},
      {"barrier", [&] { return MeasureJoinAndBarrier(arguments.load); }},
      {"idle", [&] { return MeasureIdle(arguments.load, arguments.process); }},
      {"direct_store", [&] { return MeasureDirectStore(arguments.store); }},
      {"bare_store", [&] { return MeasureBareStore(arguments.store); }},
      {"stream_store", [&] { return MeasureStreamStore(arguments.store); }}};
  const auto found = argc > 1 ? all.find(argv[1]) : all.end();
  if (found == all.end() || !ReadArguments(argc, argv, &arguments)) {
    std::fprintf(stderr, "scale_load: bad arguments; the file's first lines say which there are\n");
    return 64;
  }
  rpc::QuietGrpcLog();
  const absl::StatusOr<nlohmann::json> figures = found->second();
  if (!figures.ok()) {
    std::fprintf(stderr, "scale_load %s: %s\n", argv[1], figures.status().ToString().c_str());
    return 1;
  }
  std::printf("%s\n", figures->dump().c_str());
  return 0;
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  // As `cadre` does.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return cadre::Run(argc, argv);
}
