// All-reduces of float32 between processes that reach each other over TCP only: this repository's
// sockets, Open MPI over TCP, Gloo of Debian's torch and, where $CADRE_PYTHON_ENV names an
// environment, of that one's, and two ranks with a bare loop around one socket.
//
//   bazel run //bench/collectives:network -- [--json FILE] [--quick] [--ranks 2] [--over veth]
#include <stdio.h>
#include <stdlib.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "bench/collectives/contestants.h"
#include "bench/collectives/ranks_on_network.h"
#include "bench/collectives/schedule.h"
#include "bench/collectives/socket_loop.h"
#include "nlohmann/json.hpp"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/wire/connection.h"

namespace cadre {
namespace {

constexpr int kPasses = 3;
constexpr int kMostRanks = 4;
constexpr char kFolder[] = "bench/collectives/";
constexpr std::chrono::nanoseconds kTimeout = std::chrono::minutes(2);
// Columns that are compared, and their place.
enum Column { kPolling = 1, kSockets, kEncrypted, kOpenMpi, kTorch, kTorchPypi };

Status RunLoop(Worker& worker, SocketLoop::Wait wait, const std::vector<Measurement>& schedule,
               double* results) {
  ASSIGN_OR_RETURN(SocketLoop loop, SocketLoop::Connect(worker, wait));
  std::vector<float> data(schedule.back().bytes / sizeof(float));
  Status failed;
  for (size_t i = 0; i < schedule.size(); ++i) {
    const auto reduce = [&](int times) {
      for (int k = 0; k < times && failed.ok(); ++k) {
        failed = loop.AllReduce(data.data(), schedule[i].bytes / sizeof(float));
      }
    };
    const auto meet = [&] { failed.Update(loop.Barrier()); };
    const auto [median] = MedianMicroseconds(schedule[i], meet, reduce);
    if (worker.rank() == 0) results[i] = median;
  }
  return failed;
}

// Gives the medians of sockets in clear, and behind them those of encrypted ones. The two take
// turns, so that both meet the same load.
Status RunSockets(Worker& worker, const std::vector<Measurement>& schedule, double* results) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> plain,
                   sockets::ConnectSockets(worker, {"plain", kTimeout}));
  setenv(wire::kEncryptVariable, "1", 1);
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> encrypted,
                   sockets::ConnectSockets(worker, {"encrypted", kTimeout}));
  std::vector<float> data(schedule.back().bytes / sizeof(float));
  Status failed;
  for (size_t i = 0; i < schedule.size(); ++i) {
    const Buffer buffer = {data.data(), schedule[i].bytes / sizeof(float), DataType::kFloat32};
    const auto reduce_by = [&](Communicator& communicator) {
      return [&, at = &communicator](int times) {
        for (int k = 0; k < times && failed.ok(); ++k) {
          failed = at->AllReduce(buffer, ReduceOp::kSum)->Wait(kTimeout);
        }
      };
    };
    const auto meet = [&] { failed.Update(plain->Barrier()->Wait(kTimeout)); };
    const auto medians =
        MedianMicroseconds(schedule[i], meet, reduce_by(*plain), reduce_by(*encrypted));
    if (worker.rank() != 0) continue;
    results[i] = medians[0];
    results[schedule.size() + i] = medians[1];
  }
  return failed;
}

std::string MpiCommand(Network network, int ranks, const std::string& schedule) {
  std::string hosts;
  for (int rank = 0; rank < ranks && network == Network::kVeth; ++rank) {
    absl::StrAppend(&hosts, rank == 0 ? "-H " : ",", AddressOn(network, rank), ":1");
  }
  const std::string interface = InterfaceOf(network);
  return absl::StrCat(CommandPrefix(network, 0),
                      "mpirun --allow-run-as-root --oversubscribe --mca btl tcp,self --mca pml ob1 "
                      "--mca btl_tcp_if_include ",
                      interface, " --mca oob_tcp_if_include ", interface,
                      " --mca plm_rsh_agent $PWD/", kFolder, "enter_node.sh ", hosts, " -np ",
                      ranks, " $PWD/", kFolder, "mpi_all_reduce ", schedule, " 2>/dev/null");
}

std::string TorchCommand(const std::string& python, Network network, int ranks,
                         const std::string& schedule) {
  std::string command = "store=$(mktemp -u); ";
  for (int rank = 0; rank < ranks; ++rank) {
    absl::StrAppend(&command, CommandPrefix(network, rank), "env OMP_NUM_THREADS=1 ",
                    "GLOO_SOCKET_IFNAME=", InterfaceOf(network), " ", python, " ", kFolder,
                    "torch_gloo_all_reduce.py ", ranks, " ", schedule, " ", rank,
                    " $store 2>/dev/null & ");
  }
  return absl::StrCat(command, "wait");
}

std::vector<Contestant> RunOnce(Network network, int ranks,
                                const std::vector<Measurement>& schedule, bool with_peers) {
  const std::string text = ToText(schedule);
  const char* const environment = getenv("CADRE_PYTHON_ENV");
  const auto loop = [&](SocketLoop::Wait wait) {
    if (ranks != 2) return std::vector<double>();
    return RunRanks(network, ranks, schedule.size(), [&](Worker& worker, double* results) {
      return RunLoop(worker, wait, schedule, results);
    });
  };
  const auto program = [&](const std::string& command) {
    return with_peers ? RunProgram(command, schedule) : std::vector<double>();
  };
  const std::vector<double> both = RunRanks(
      network, ranks, 2 * schedule.size(),
      [&](Worker& worker, double* results) { return RunSockets(worker, schedule, results); });
  const auto half = [&](size_t first) {
    if (both.empty()) return both;
    return std::vector<double>(both.begin() + first, both.begin() + first + schedule.size());
  };
  return {
      {"loop, spinning", loop(SocketLoop::Wait::kSpin)},
      {"loop, polling", loop(SocketLoop::Wait::kPoll)},
      {"cadre sockets", half(0)},
      {"encrypted", half(schedule.size())},
      {"open mpi, tcp", program(MpiCommand(network, ranks, text))},
      {"debian's gloo", program(TorchCommand("/usr/bin/python3", network, ranks, text))},
      {"pypi's gloo",
       environment == nullptr || *environment == '\0'
           ? std::vector<double>()
           : program(TorchCommand(absl::StrCat(environment, "/bin/python"), network, ranks, text))},
  };
}

std::string Ratio(double a, double b) {
  return a == 0 || b == 0 ? "-" : absl::StrFormat("%.2f", a / b);
}

void Print(Network network, int ranks, const std::vector<Measurement>& schedule,
           const std::vector<Contestant>& contestants, const std::string& load) {
  printf("\n%d ranks over %s, microseconds per all-reduce (best median), load average before %s\n",
         ranks, network == Network::kVeth ? "veth" : "loopback", load.c_str());
  printf("%10s", "");
  for (const Contestant& one : contestants) printf("%16s", one.name.c_str());
  printf("%10s%10s%10s%10s%10s\n", "/polling", "/mpi", "x debian", "x pypi", "encrypted");
  for (size_t i = 0; i < schedule.size(); ++i) {
    printf("%10s", MessageSizeText(schedule[i].bytes).c_str());
    std::vector<double> at;
    for (const Contestant& one : contestants) {
      at.push_back(one.microseconds.empty() ? 0 : one.microseconds[i]);
      printf("%16s", at.back() == 0 ? "-" : absl::StrFormat("%.1f", at.back()).c_str());
    }
    printf("%10s%10s%10s%10s%10s\n", Ratio(at[kSockets], at[kPolling]).c_str(),
           Ratio(at[kSockets], at[kOpenMpi]).c_str(), Ratio(at[kTorch], at[kSockets]).c_str(),
           Ratio(at[kTorchPypi], at[kSockets]).c_str(),
           Ratio(at[kEncrypted], at[kSockets]).c_str());
  }
  fflush(stdout);
}

int Main(int argc, char** argv) {
  std::string path;
  bool quick = false, without_peers = false;
  std::vector<int> worlds = {2, 4};
  std::vector<std::string> networks = {"loopback", "veth"};
  CLI::App app("All-reduces of float32 over TCP between processes of this machine.");
  app.add_option("--json", path, "write the figures there; network.json if not given");
  app.add_flag("--quick", quick, "up to 1 MiB, few rounds");
  app.add_flag("--no-peers", without_peers, "only this repository and the loops");
  app.add_option("--ranks", worlds, "how many ranks; 2 and 4 if not given")
      ->check(CLI::Range(2, kMostRanks));
  app.add_option("--over", networks, "loopback, veth (which needs root), or both")
      ->check(CLI::IsMember({"loopback", "veth"}));
  CLI11_PARSE(app, argc, argv);
  if (path.empty()) path = BesideCaller("network.json");
  std::ofstream file(path);
  if (!file) {
    fprintf(stderr, "cannot write %s: name a file with --json\n", path.c_str());
    return 1;
  }
  const std::vector<Measurement> schedule = Schedule(quick);
  nlohmann::json json = nlohmann::json::array();
  for (const std::string& name : networks) {
    const Network network = name == "veth" ? Network::kVeth : Network::kLoopback;
    // Loopback comes first: from here on this process has a network of its own.
    const Status made = network == Network::kVeth ? MakeNodes(kMostRanks) : OkStatus();
    if (!made.ok()) {
      fprintf(stderr, "no nodes over veth: %s\n", std::string(made.message()).c_str());
      return 1;
    }
    for (const int ranks : worlds) {
      const std::string load = LoadAverage();
      const std::vector<Contestant> contestants = BestOf(
          quick ? 1 : kPasses, [&] { return RunOnce(network, ranks, schedule, !without_peers); });
      Print(network, ranks, schedule, contestants, load);
      for (const Contestant& one : contestants) {
        for (size_t i = 0; i < one.microseconds.size(); ++i) {
          json.push_back({{"network", name},
                          {"ranks", ranks},
                          {"contestant", one.name},
                          {"bytes", schedule[i].bytes},
                          {"microseconds", one.microseconds[i]},
                          {"load_average", load}});
        }
      }
    }
  }
  file << json.dump(2) << std::endl;
  if (!file) {
    fprintf(stderr, "cannot write %s\n", path.c_str());
    return 1;
  }
  printf("\nwritten: %s\n", path.c_str());
  return 0;
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) { return cadre::Main(argc, argv); }
