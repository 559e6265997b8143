// The backend "cadre" of torch.distributed beside Gloo, in the same processes in turn: an
// all-reduce called from Python, and a step of DistributedDataParallel, by 2 and 4 ranks.
//
//   bazel run -c opt //bench/backend -- [--json FILE] [--rounds 15]
//
// $CADRE_PYTHON_ENV names the folder that tools/python_env makes.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "tests/testing/process.h"

namespace cadre::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(15);
constexpr char kMark[] = "figures ";

// nullopt: it came to nothing, as is said.
std::optional<nlohmann::json> Measure(const std::string& python, int ranks, int rounds) {
  const std::string module = std::filesystem::canonical("python");
  const std::string library = std::filesystem::canonical("tools/library/libcadre.so.0");
  const auto run =
      RunToEnd({{"launcher/cadre", "run", "--standalone", "--nproc-per-node", absl::StrCat(ranks),
                 "--log-dir", MakeTempDir("backend"), "--env", absl::StrCat("PYTHONPATH=", module),
                 "--env", absl::StrCat("CADRE_LIBRARY=", library), "--", python,
                 "bench/backend/both_backends.py", absl::StrCat(rounds)},
                {},
                "",
                false},
               kTimeout);
  if (!run.ok()) return std::nullopt;
  const std::string& said = (*run)->standard_output();
  const size_t at = said.find(kMark);
  if (at == std::string::npos) {
    std::fprintf(stderr, "no figures from it:\n%s\n%s\n", said.c_str(),
                 (*run)->standard_error().c_str());
    return std::nullopt;
  }
  const size_t begin = at + sizeof(kMark) - 1;
  return nlohmann::json::parse(said.substr(begin, said.find('\n', begin) - begin));
}

void Print(int ranks, const std::string& what, const nlohmann::json& both) {
  const double own = both.at("cadre"), gloo = both.at("gloo");
  absl::PrintF("%d ranks  %-22s cadre %10.1f  gloo %10.1f  times %.2f\n", ranks, what, own, gloo,
               gloo / own);
}

int Main(int argc, char** argv) {
  int rounds = 15;
  std::string json;
  CLI::App app("The backend \"cadre\" of torch.distributed beside Gloo");
  app.add_option("--json", json, "Also write the figures to this file");
  app.add_option("--rounds", rounds, "Of each, in turn; the medians count");
  CLI11_PARSE(app, argc, argv);
  const char* const environment = std::getenv("CADRE_PYTHON_ENV");
  if (environment == nullptr || *environment == '\0') {
    std::fprintf(stderr, "CADRE_PYTHON_ENV does not name the folder that tools/python_env makes\n");
    return 1;
  }
  nlohmann::json all;
  for (const int ranks : {2, 4}) {
    const auto figures = Measure(absl::StrCat(environment, "/bin/python"), ranks, rounds);
    if (!figures.has_value()) return 1;
    Print(ranks, "all-reduce 4 KiB, us", figures->at("4096"));
    Print(ranks, "all-reduce 1 MiB, us", figures->at("1048576"));
    Print(ranks, "all-reduce 25 MiB, us", figures->at("26214400"));
    Print(ranks, "DDP step of the MLP, ms", figures->at("step"));
    all[absl::StrCat(ranks)] = *figures;
  }
  if (!json.empty()) std::ofstream(json) << all.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace cadre::bench

int main(int argc, char** argv) { return cadre::bench::Main(argc, argv); }
