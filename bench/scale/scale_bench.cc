// How many nodes one server carries: joining, orders, communicator ids, idle streams and the store,
// with real sockets, beside bare gRPC streams and PyTorch's TCPStore in the same run; and the core
// alone with 100,000 ranks.
//
//   scale_bench [--only PART,...] [--agents N] [--seconds N] [--json FILE]
//
// Parts: join, broadcast, ids, idle, barrier, store, core. --agents bounds how many are simulated.
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "bench/scale/measured_server.h"
#include "rendezvous/testing/large_job.h"

namespace cadre {
namespace {

// Files that a server or its clients have open beside one for each connection.
constexpr uint64_t kOtherFiles = 256;

class Bench {
 public:
  Bench(Programs programs, int agents_max, int seconds)
      : programs_(std::move(programs)), agents_max_(agents_max), seconds_(seconds) {}

  void Join() {
    for (const int agents : {1000, 4096}) {
      const std::string name = absl::StrCat("join_", agents);
      Ask(name, "bare", agents, &MeasuredServer::StartBare, "bare_join", {});
      Ask(name, "cadre", agents, &MeasuredServer::StartCadre, "join", {});
    }
  }
  void Broadcast() {
    for (const int agents : {1000, 4096}) {
      const std::string name = absl::StrCat("broadcast_", agents);
      Ask(name, "bare", agents, &MeasuredServer::StartBare, "bare_broadcast", {});
      Ask(name, "cadre", agents, &MeasuredServer::StartCadre, "broadcast", {});
    }
  }
  void Ids() {
    for (const int agents : {128, 2048}) {
      Ask(absl::StrCat("ids_of_", agents * 8, "_ranks"), "cadre", agents,
          &MeasuredServer::StartCadre, "ids", {});
    }
  }
  void Idle() {
    for (const int agents : {1000, 4000}) {
      Ask(absl::StrCat("idle_", agents), "cadre", agents, &MeasuredServer::StartCadre, "idle",
          {"--seconds", "12"});
    }
  }
  void Barrier() {
    for (const int clients : {1000, 2048}) {
      const std::string name = absl::StrCat("join_and_barrier_", clients);
      Ask(name, "cadre", clients, &MeasuredServer::StartCadre, "barrier", {"--slots", "1"});
      Ask(name, "cadre_8_ranks_a_node", clients / 8, &MeasuredServer::StartCadre, "barrier", {});
      if (!Fits(name, clients)) continue;
      Peer(name, "tcp_store", {"join"}, clients, {});
      Peer(name, "tcp_store_asking", {"join_asking"}, clients, {});
    }
  }
  void Store() {
    const std::string seconds = absl::StrCat(seconds_);
    for (const int clients : {1, 64, 1000}) {
      const std::string name = absl::StrCat("store_", clients);
      if (!Fits(name, clients)) continue;
      Peer(name, "tcp_store", {"load"}, clients, {seconds});
      const std::vector<std::string> load = {"--clients", absl::StrCat(clients), "--seconds",
                                             seconds};
      Ask(name, "bare", 1, &MeasuredServer::StartBare, "bare_store", load);
      Ask(name, "cadre_stream", 1, &MeasuredServer::StartCadre, "stream_store", load);
      Ask(name, "cadre_stream_in_memory", 1, &MeasuredServer::StartForgetful, "stream_store", load);
      Ask(name, "cadre_direct", clients, &MeasuredServer::StartCadre, "direct_store", load);
      const auto server = MeasuredServer::StartCadre(programs_);
      Report(
          name, "cadre_worker",
          server.ok() ? (*server)->LoadByWorkers(programs_, clients, seconds_) : server.status());
      Report(name, "cadre_standalone_worker", LoadStandalone(programs_, clients, seconds_));
    }
  }
  void CoreAlone() {
    LargeJob job(12500, 8);
    nlohmann::json figures;
    const auto time = [&](const char* name, const std::function<void()>& run) {
      const MonoTime start = MonoNow();
      run();
      figures[name] = absl::ToDoubleMilliseconds(MonoNow() - start);
    };
    time("join_and_assign_ms", [&] { job.Join(); });
    time("start_ms", [&] { job.StartWorkers(); });
    time("lose_a_node_ms", [&] { job.LoseNode(4711); });
    time("stop_and_regroup_ms", [&] { job.StopWorkers(); });
    time("start_again_ms", [&] { job.StartWorkers(); });
    time("succeed_ms", [&] { job.Succeed(); });
    figures["messages"] = job.messages();
    figures["records"] = job.records().size();
    Report("core_100000_ranks", "cadre", figures);
  }

  const nlohmann::json& figures() const { return figures_; }

 private:
  using StartServer = absl::StatusOr<std::unique_ptr<MeasuredServer>> (*)(const Programs&);

  bool Fits(const std::string& name, int connections) {
    absl::Status fits = RaiseOpenFiles(static_cast<uint64_t>(connections) + kOtherFiles);
    if (fits.ok() && connections > agents_max_) fits = absl::CancelledError("more than --agents");
    if (!fits.ok()) Report(name, "not measured", fits);
    return fits.ok();
  }

  // One measurement with a server of its own.
  void Ask(const std::string& name, const std::string& who, int agents, StartServer start,
           const std::string& what, std::vector<std::string> arguments) {
    if (!Fits(name, agents)) return;
    const auto server = start(programs_);
    if (!server.ok()) return Report(name, who, server.status());
    arguments.insert(arguments.end(), {"--agents", absl::StrCat(agents)});
    Report(name, who, (*server)->Load(programs_, what, arguments));
  }

  void Peer(const std::string& name, const std::string& who, std::vector<std::string> arguments,
            int clients, const std::vector<std::string>& more) {
    if (!std::ifstream(programs_.tcp_store_peer)) {
      return Report(name, who, absl::NotFoundError("not built: it needs libtorch"));
    }
    const auto server = MeasuredServer::StartTcpStore(programs_);
    if (!server.ok()) return Report(name, who, server.status());
    arguments.insert(arguments.begin(), programs_.tcp_store_peer);
    arguments.push_back(absl::StrCat((*server)->port()));
    arguments.push_back(absl::StrCat(clients));
    arguments.insert(arguments.end(), more.begin(), more.end());
    Report(name, who, RunForJson(arguments));
  }

  void Report(const std::string& name, const std::string& who,
              const absl::StatusOr<nlohmann::json>& figures) {
    nlohmann::json& entry = figures_[name][who];
    if (figures.ok()) {
      entry = *figures;
    } else {
      entry["error"] = figures.status().ToString();
    }
    std::string line;
    for (const auto& [key, value] : entry.items()) {
      absl::StrAppend(
          &line, "  ", key, " ",
          value.is_number() ? absl::StrFormat("%.1f", value.get<double>()) : value.dump());
    }
    absl::PrintF("%-24s %-22s%s\n", name, who, line);
    std::fflush(stdout);
  }

  const Programs programs_;
  const int agents_max_;
  const int seconds_;
  nlohmann::json figures_;
};

int Run(int argc, char** argv) {
  std::vector<std::string> only = {"join", "broadcast", "ids", "idle", "barrier", "store", "core"};
  int agents = 1 << 20, seconds = 3;
  std::string json;
  bool tls = false;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    bool good = !value.empty();
    if (flag == "--only") {
      only = absl::StrSplit(value, ',');
    } else if (flag == "--agents") {
      good = absl::SimpleAtoi(value, &agents) && agents > 0;
    } else if (flag == "--seconds") {
      good = absl::SimpleAtoi(value, &seconds) && seconds > 0;
    } else if (flag == "--tls") {
      tls = value == "on";
      good = tls || value == "off";
    } else if (flag == "--json") {
      json = value;
    } else {
      good = false;
    }
    if (good) continue;
    std::fprintf(stderr,
                 "scale_bench: bad option %s %s; [--only PART,...] [--agents N] [--seconds N] "
                 "[--tls on|off] [--json FILE]\n",
                 flag.c_str(), value.c_str());
    return 64;
  }
  const std::string self = argv[0];
  const std::string here = self.substr(0, self.rfind('/'));
  Bench bench({here + "/../../launcher/cadre", here + "/bare_server", here + "/scale_load",
               here + "/worker_load", here + "/tcp_store_peer", tls},
              agents, seconds);
  const std::vector<std::pair<std::string, void (Bench::*)()>> parts = {
      {"join", &Bench::Join},     {"broadcast", &Bench::Broadcast}, {"ids", &Bench::Ids},
      {"idle", &Bench::Idle},     {"barrier", &Bench::Barrier},     {"store", &Bench::Store},
      {"core", &Bench::CoreAlone}};
  for (const std::string& name : only) {
    bool known = false;
    for (const auto& [part, run] : parts) {
      if (part != name) continue;
      known = true;
      (bench.*run)();
    }
    if (known) continue;
    std::fprintf(stderr, "scale_bench: there is no part %s\n", name.c_str());
    return 64;
  }
  if (!json.empty()) std::ofstream(json) << bench.figures().dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) { return cadre::Run(argc, argv); }
