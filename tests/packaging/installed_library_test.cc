// The archive on a Debian 12 that has a compiler, CMake and Python: the examples are built there as
// a user does it, against PyPI's libtorch and against Debian's, and train under several launchers.
// Needs root, and the roots and environment that tools/debian_root and tools/python_env make.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/packaging/in_debian.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// Trains, and trains on when a rank is killed.
constexpr char kTrain[] =
    "train='build/mnist_cnn --epochs 2 --limit 512 --batch-size 32 --lr 0.05 --momentum 0.9'\n"
    "echo '== cadre run'\n"
    "bin/cadre run --standalone --nproc-per-node 2 --log-dir /tmp/logs $train\n"
    "echo '== killed in place'\n"
    "bin/cadre run --standalone --nproc-per-node 2 --in-place --max-restarts 1 --log-dir /tmp/logs "
    "$train --fail-rank 1 --fail-epoch 1\n";

// An object that needs both libraries, linked in either order, starts with all symbols bound.
constexpr char kBothOrders[] =
    "cat > /tmp/both.cc <<'end'\n"
    "#include <torch/torch.h>\n"
    "#include <cstdio>\n"
    "#include \"cadre/sampler.h\"\n"
    "int main() {\n"
    "  auto sampler = cadre::DistributedSampler::Create({4, 2, 1});\n"
    "  if (!sampler.ok()) return 1;\n"
    "  const double sum = torch::ones({3}).sum().item<double>();\n"
    "  std::printf(\"both: %d %.0f\\n\", static_cast<int>(sampler->size()), sum);\n"
    "}\n"
    "end\n"
    "flags=\"-I$PWD/include -I$torch/include -I$torch/include/torch/csrc/api/include\"\n"
    "c++ -std=$standard -c $flags /tmp/both.cc -o /tmp/both.o\n"
    "ours=\"-L$PWD/lib -lcadre -Wl,-rpath,$PWD/lib\"\n"
    "theirs=\"-L$libraries -ltorch -ltorch_cpu -lc10 -Wl,-rpath,$libraries\"\n"
    "c++ /tmp/both.o $ours $theirs -Wl,--allow-shlib-undefined -o /tmp/first\n"
    "c++ /tmp/both.o $theirs $ours -Wl,--allow-shlib-undefined -o /tmp/second\n"
    "LD_BIND_NOW=1 /tmp/first\n"
    "LD_BIND_NOW=1 /tmp/second\n";

constexpr absl::Duration kTimeout = absl::Minutes(14);

class InstalledLibraryTest : public InDebianTest {
 protected:
  // Each launch came to its last epoch; both orders of linking worked.
  static void ExpectTrained(const Process& run, int launches) {
    const std::vector<absl::string_view> last =
        absl::StrSplit(run.standard_output(), "epoch 2/2: loss");
    EXPECT_EQ(last.size(), launches + 1) << OutputOf(run);
    const std::vector<absl::string_view> both =
        absl::StrSplit(run.standard_output(), "both: 2 3\n");
    EXPECT_EQ(both.size(), 3) << OutputOf(run);
  }

  // In the unpacked archive, with compilers' output kept back unless they fail. `target` may be
  // empty.
  std::string Build(const std::string& target) const {
    return absl::StrCat("cd /root\ntar xf ", archive_, "\ncd cadre-*/\nexport OMP_NUM_THREADS=1\n",
                        "if command -v nvcc; then exit 9; fi\n",
                        "cmake -S examples -B build\n"
                        "cmake --build build --parallel 2 ",
                        target.empty() ? "" : absl::StrCat("--target ", target),
                        " > /tmp/build.log 2>&1 || { tail -n 60 /tmp/build.log; exit 1; }\n"
                        "if ldd build/mnist_cnn | grep 'not found'; then exit 8; fi\n");
  }
  const std::string archive_ = std::filesystem::canonical("tools/library/cadre.tar.gz");
};

TEST_F(InstalledLibraryTest, AgainstLibtorchFromPyPI) {
  if (python_.empty()) GTEST_SKIP() << "CADRE_PYTHON_ENV is not set: see tools/python_env";
  const auto run =
      InDebian(root_,
               absl::StrCat(". ", python_, "/bin/activate\n", Build("mnist_cnn plain_cpp"), kTrain,
                            "echo '== torchrun'\n"
                            "torchrun --standalone --no-python --nproc-per-node 2 $train\n"
                            "torch=$(python3 -c 'import importlib.util as u; "
                            "print(u.find_spec(\"torch\").submodule_search_locations[0])')\n"
                            "libraries=$torch/lib standard=c++20\n",
                            kBothOrders),
               {archive_, python_}, kTimeout);
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("libtorch 2.15.0"));
  ExpectTrained(*run, /*launches=*/3);
}

// A folder of examples that was copied out of the archive.
std::string BuildAlone(const std::string& example) {
  return absl::StrCat("cp -r examples/", example, " /root/alone\n",
                      "CMAKE_PREFIX_PATH=$PWD cmake -S /root/alone -B /root/alone/build\n"
                      "cmake --build /root/alone/build --parallel 2 > /tmp/alone.log 2>&1 || "
                      "{ tail -n 60 /tmp/alone.log; exit 1; }\n"
                      "test -x /root/alone/build/",
                      example, "\nrm -rf /root/alone\n");
}

// Compiling all of them takes ten minutes.
TEST_F(InstalledLibraryTest, AllExamplesAreBuilt_AgainstLibtorchFromPyPI) {
  if (python_.empty()) GTEST_SKIP() << "CADRE_PYTHON_ENV is not set: see tools/python_env";
  const auto run = InDebian(
      root_,
      absl::StrCat(
          ". ", python_, "/bin/activate\n", Build(""),
          "for example in ddp_basic ddp_checkpoint ddp_model_parallel ddp_elastic ddp_spawn "
          "cifar_resnet50 imagenet_template singa_mnist spawn_with_nccl_id; do build/$example "
          "--help > "
          "/dev/null; done\n"),
      {archive_, python_}, kTimeout);
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
}

TEST_F(InstalledLibraryTest, AgainstDebiansLibtorch) {
  const auto run = InDebian(
      root_ + "-torch",
      absl::StrCat(Build("mnist_cnn plain_cpp"), kTrain,
                   "echo '== without libtorch'\n"
                   "bin/cadre run --standalone --nproc-per-node 2 build/plain_cpp\n",
                   BuildAlone("plain_cpp"), BuildAlone("singa_mnist"),
                   "torch=/usr libraries=/usr/lib/x86_64-linux-gnu standard=c++17\n", kBothOrders),
      {archive_}, kTimeout);
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("libtorch 1.13.0"));
  EXPECT_THAT(run->standard_output(), HasSubstr("rank 1 of 2: y = 3.00 x + 2.00"));
  ExpectTrained(*run, /*launches=*/2);
}

}  // namespace
}  // namespace cadre
