// torch.distributed.init_process_group("cadre") with real PyTorch: what it gives is what Gloo gives
// in the same process, under Cadre's launcher, torchrun and none.
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"
#include "tests/testing/pypi_python.h"
#include "tests/testing/unpacked_wheel.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Importing torch alone takes many seconds on a machine that has other things to do.
constexpr absl::Duration kTimeout = absl::Minutes(3);
constexpr char kScript[] = "tests/compatibility/backend/backend_script.py";
constexpr char kDebiansPython[] = "/usr/bin/python3";

const std::vector<std::string> kAll = {"reductions",   "copies", "messages", "groups",
                                       "asynchronous", "late",   "refused",  "broken_off",
                                       "collected",    "ddp",    "fsdp"};

class BackendTest : public PypiPythonTest {
 protected:
  std::map<std::string, std::string> Environment() const { return {{"PYTHONPATH", wheel_}}; }
  std::vector<std::string> Launched(std::vector<std::string> flags,
                                    const std::vector<std::string>& script) const {
    for (const std::string& flag :
         {std::string("--log-dir"), logs_, std::string("--env"),
          absl::StrCat("PYTHONPATH=", wheel_), std::string("--"), python_}) {
      flags.push_back(flag);
    }
    flags.insert(flags.end(), script.begin(), script.end());
    return flags;
  }
  static std::vector<std::string> With(std::vector<std::string> words,
                                       const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static void ExpectEqual(Process& run, std::vector<int> ranks, int size) {
    ASSERT_EQ(run.Wait(kTimeout), 0) << OutputOf(run);
    for (const int rank : ranks) {
      EXPECT_THAT(run.standard_output(),
                  ContainsRegex(absl::StrCat("rank ", rank, " of ", size,
                                             ": equal in [0-9][0-9]+ comparisons")));
    }
  }

  const std::string logs_ = MakeTempDir("logs");
  const std::string wheel_ = UnpackedWheel();
};

// Fault (collective): A call of `torch.distributed` is refused for one of its tensors, or is
// interrupted by Ctrl-C -> A refused call has not begun at all; an interrupted one keeps its memory
// until it ends
TEST_F(BackendTest, UnderCadre) {
  const auto run = StartStandalone(Launched({"--nproc-per-node", "4"}, With({kScript}, kAll)));
  ExpectEqual(*run, {0, 1, 2, 3}, 4);
}

TEST_F(BackendTest, TwoNodesByTwo) {
  const int port = FreePort();
  std::vector<std::unique_ptr<Process>> nodes;
  for (int node = 0; node < 2; ++node) {
    nodes.push_back(
        StartNode(port, "2", node,
                  Launched({"--nproc-per-node", "2", "--node-rank", absl::StrCat(node)},
                           {kScript, "reductions", "copies", "messages", "groups", "ddp"})));
  }
  ExpectEqual(*nodes[0], {0, 1}, 4);
  ExpectEqual(*nodes[1], {2, 3}, 4);
}

// PyTorch's checks of collectives go around the backend, and hold it by its C++ side only.
TEST_F(BackendTest, UnderTorchrun_WithPyTorchsChecks) {
  auto environment = Environment();
  environment["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL";
  const auto run = StartProgram(
      InEnvironment("torchrun"),
      {"--nproc-per-node", "2", kScript, "reductions", "messages", "groups"}, environment);
  ExpectEqual(*run, {0, 1}, 2);
}

// The ranks are forked and meet in a file; tensors of a GPU would go to another backend.
TEST_F(BackendTest, WithoutALauncher_BesideAnotherDevicesBackend) {
  auto environment = Environment();
  environment["BACKEND"] = "cpu:cadre,cuda:gloo";
  const auto run = StartProgram(
      python_, {kScript, "fork", "2", "reductions", "asynchronous", "slow", "refused", "fsdp"},
      environment);
  ExpectEqual(*run, {0, 1}, 2);
}

TEST_F(BackendTest, AKilledRankIsHeardOfWithinASecond_ByName) {
  const auto run = StartProgram(python_, {kScript, "fork", "3", "death"}, Environment());
  ASSERT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
  EXPECT_THAT(
      run->standard_output(),
      AllOf(ContainsRegex("rank 0 heard after 0\\.[0-9]+ s, RuntimeError: .*rank 2 is gone"),
            ContainsRegex("rank 1 heard after 0\\.[0-9]+ s, DistBackendError: cadre: "
                          "all_reduce: .*rank 2 is gone")));
}

// A program of a user's, in which the backend's name is all that was changed: two ranks add in one
// way only, so it learns what it learns with Gloo, to the last digit shown.
TEST_F(BackendTest, TheExampleWithAnotherName) {
  std::stringstream program;
  program << std::ifstream("examples/ddp_python/train.py").rdbuf();
  std::vector<std::string> lines;
  for (const std::string backend : {"gloo", "cadre"}) {
    const std::string path = absl::StrCat(logs_, "/with_", backend, ".py");
    std::ofstream(path) << absl::StrReplaceAll(program.str(),
                                               {{"\"gloo\"", absl::StrCat("\"", backend, "\"")}});
    const auto run = StartStandalone(Launched(
        {"--nproc-per-node", "2"},
        {path, "--epochs", "1", "--checkpoint", absl::StrCat(logs_, "/", backend, ".pt")}));
    ASSERT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
    const std::string said = run->standard_output();
    const size_t at = said.find("epoch 1/1: loss");
    ASSERT_NE(at, std::string::npos) << OutputOf(*run);
    lines.push_back(said.substr(at, said.find('\n', at) - at));
  }
  EXPECT_EQ(lines[0], lines[1]);
}

// What PyTorch without entry points needs.
TEST_F(BackendTest, ByAnImport) {
  auto environment = Environment();
  environment["PYTHONPATH"] = logs_;
  std::filesystem::create_symlink(wheel_ + "/cadre", logs_ + "/cadre");
  const auto run = StartProgram(
      python_,
      {"-c",
       "import cadre.torch_backend, torch, torch.distributed as dist\n"
       "cadre.torch_backend.register()\n"
       "dist.init_process_group('cadre', rank=0, world_size=1, store=dist.HashStore())\n"
       "dist.all_reduce(torch.ones(1))\n"
       "print('backend', dist.get_backend())"},
      environment);
  EXPECT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("backend cadre"));
}

TEST_F(BackendTest, AWholeGroup_AsBeforePyTorch2_15) {
  auto environment = Environment();
  environment["WHOLE_GROUP"] = "1";
  const auto run = StartProgram(
      python_, {kScript, "fork", "2", "reductions", "messages", "groups", "polled", "ddp"},
      environment);
  ExpectEqual(*run, {0, 1}, 2);
}

TEST_F(BackendTest, AnOldPyTorchIsToldSo) {
  const auto run =
      StartProgram(kDebiansPython, {"-c", "import cadre.torch_backend"}, Environment());
  EXPECT_EQ(run->Wait(kTimeout), 1) << OutputOf(*run);
  EXPECT_THAT(
      run->standard_error(),
      ContainsRegex("ImportError: cadre: the backend of torch.distributed needs PyTorch 2.1 "
                    "or newer; this is 1[.]13"));
}

}  // namespace
}  // namespace cadre
