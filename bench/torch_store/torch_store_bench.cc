// How long PyTorch's clients take to connect to a store and to pass init_process_group's barrier in
// it: the store that the agent serves beside PyTorch's own, in turn, in one run. Both with
// PyTorch's clients and with bare sockets that say the same.
//
// PyTorch's server and clients look up each address's name. In a mount namespace of its own, which
// needs root, all of them find it in /etc/hosts at once, so that a name server counts for nothing.
//
//   bazel run //bench/torch_store -- [--json FILE] [--clients 1000] [--runs 5]
//
// $CADRE_PYTHON_ENV names the folder that tools/python_env makes.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "tests/testing/process.h"

namespace cadre::bench {
namespace {

constexpr int kProcesses = 8;
constexpr absl::Duration kTimeout = absl::Minutes(10);
constexpr char kScript[] = "bench/torch_store/store_clients.py";

// Where the names of loopback are looked up, and nothing else.
bool WriteNames(const std::string& folder) {
  std::ofstream(folder + "/hosts")
      << "127.0.0.1 localhost\n::1 localhost\n::ffff:127.0.0.1 localhost\n";
  std::ofstream switches(folder + "/nsswitch.conf");
  switches << "passwd: files\ngroup: files\nhosts: files\n";
  return switches.good();
}

// Seconds; nullopt: it came to nothing, as is said.
std::optional<double> RunOnce(const std::string& python, int clients, const std::string& kind,
                              bool agent) {
  const std::string folder = MakeTempDir("store");
  if (!WriteNames(folder)) return std::nullopt;
  const std::string enter =
      absl::StrCat("mount --bind ", folder, "/hosts /etc/hosts && mount --bind ", folder,
                   "/nsswitch.conf /etc/nsswitch.conf && exec \"$0\" \"$@\"");
  std::vector<std::string> argv = {"unshare",
                                   "-m",
                                   "sh",
                                   "-c",
                                   enter,
                                   "launcher/cadre",
                                   "run",
                                   "--standalone",
                                   "--nproc-per-node",
                                   absl::StrCat(kProcesses),
                                   "--log-dir",
                                   folder};
  if (!agent) argv.insert(argv.end(), {"--set", "agent_store=false"});
  argv.insert(argv.end(), {"--", python, kScript, folder, absl::StrCat(clients), kind});
  const auto run = RunToEnd({argv, {}, "", false}, kTimeout);
  if (!run.ok()) return std::nullopt;
  const std::string& said = (*run)->standard_output();
  const std::string mark = absl::StrCat("agent=", agent ? "True" : "False", " seconds=");
  const size_t at = said.find(mark);
  double seconds = 0;
  if (at == std::string::npos ||
      !absl::SimpleAtod(said.substr(at + mark.size(), said.find('\n', at) - at - mark.size()),
                        &seconds)) {
    std::fprintf(stderr, "no figure from it:\n%s\n%s\n", said.c_str(),
                 (*run)->standard_error().c_str());
    return std::nullopt;
  }
  return seconds;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Main(int argc, char** argv) {
  int clients = 1000, runs = 5;
  std::string json;
  CLI::App app("Clients of PyTorch's store, served by the agent and by PyTorch");
  app.add_option("--json", json, "Also write the figures to this file");
  app.add_option("--clients", clients, "In eight processes together");
  app.add_option("--runs", runs, "Of each, in turn");
  CLI11_PARSE(app, argc, argv);
  const char* const environment = std::getenv("CADRE_PYTHON_ENV");
  if (environment == nullptr || *environment == '\0') {
    std::fprintf(stderr, "CADRE_PYTHON_ENV does not name the folder that tools/python_env makes\n");
    return 1;
  }
  const std::string python = absl::StrCat(environment, "/bin/python");
  nlohmann::json figures = {{"clients", clients}};
  for (const char* kind : {"torch", "bare"}) {
    std::map<bool, std::vector<double>> seconds;
    for (int i = 0; i < runs; ++i) {
      for (const bool agent : {true, false}) {
        const std::optional<double> one = RunOnce(python, clients, kind, agent);
        if (!one.has_value()) return 1;
        seconds[agent].push_back(*one);
        absl::PrintF("%-5s clients, %-9s %.3f s\n", kind, agent ? "the agent" : "PyTorch", *one);
        std::fflush(stdout);
      }
    }
    const double own = Median(seconds[true]), peer = Median(seconds[false]);
    absl::PrintF("%d %s clients, median: the agent %.3f s, PyTorch %.3f s, ratio %.2f\n", clients,
                 kind, own, peer, own / peer);
    figures[kind] = {{"agent_seconds", seconds[true]},
                     {"pytorch_seconds", seconds[false]},
                     {"ratio", own / peer}};
  }
  if (!json.empty()) std::ofstream(json) << figures.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace cadre::bench

int main(int argc, char** argv) { return cadre::bench::Main(argc, argv); }
