// The wheel, installed by pip in new virtual environments: on a Debian 12 that has Python and
// nothing else, and beside PyTorch of PyPI. Needs root, and what tools/debian_root and
// tools/python_env make.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/packaging/in_debian.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// pip knows a wheel by its name. PACKAGES: flags of the new environment.
constexpr char kInstall[] =
    "wheel=/tmp/$(python3 $write --name $file)\n"
    "cp $file $wheel\n"
    "python3 -m venv $packages /tmp/venv\n"
    "/tmp/venv/bin/pip --disable-pip-version-check install --quiet --no-index $wheel\n";

// Each worker says something to the other, over the wheel's own library.
constexpr char kProgram[] =
    "cat > /tmp/talk.py <<'end'\n"
    "import cadre\n"
    "w = cadre.worker()\n"
    "w.store.set('from %d' % w.rank, b'rank %d' % w.rank)\n"
    "w.barrier()\n"
    "other = w.store.get('from %d' % (1 - w.rank)).decode()\n"
    "print('rank %d of %d heard %s; %s' % (w.rank, w.world_size, other, cadre.__version__))\n"
    "end\n";

class WheelTest : public InDebianTest {
 protected:
  std::unique_ptr<Process> WithTheWheel(const std::string& script, std::vector<std::string> paths) {
    paths.insert(paths.end(), {wheel_, write_});
    return InDebian(root_, absl::StrCat("file=", wheel_, " write=", write_, "\n", script), paths,
                    absl::Minutes(5));
  }

  const std::string wheel_ = std::filesystem::canonical("tools/library/cadre_train.whl");
  const std::string write_ = std::filesystem::canonical("tools/library/write_wheel.py");
};

TEST_F(WheelTest, InACleanEnvironment) {
  const auto run =
      WithTheWheel(absl::StrCat("packages=\n", kInstall, kProgram,
                                "cd /tmp\n"
                                "venv/bin/cadre run --standalone --nproc-per-node 2 talk.py\n"
                                "echo '== activated, by the module'\n"
                                ". venv/bin/activate\n"
                                "python -m cadre run --standalone --nproc-per-node 2 talk.py\n"
                                "echo '== alone'\n"
                                "python -c 'import cadre; print(cadre.worker().world_size)'\n"
                                "python -m compileall -q venv/lib/python3*/site-packages/cadre\n"
                                "pip uninstall --yes --quiet cadre-train\n"
                                "ls venv/bin venv/lib/python3*/site-packages\n"),
                   {});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  const std::string said = run->standard_output();
  const std::string module = said.substr(said.find("== activated"));
  for (const std::string& part : {said.substr(0, said.find("== activated")), module}) {
    EXPECT_THAT(part, AllOf(HasSubstr("rank 0 of 2 heard rank 1; 0."),
                            HasSubstr("rank 1 of 2 heard rank 0; 0.")));
  }
  const std::string alone = said.substr(said.find("== alone"));
  EXPECT_THAT(alone, HasSubstr("== alone\n1\n"));
  EXPECT_THAT(alone, testing::Not(HasSubstr("cadre")));
}

TEST_F(WheelTest, BesidePyTorchOfPyPI) {
  if (python_.empty()) GTEST_SKIP() << "CADRE_PYTHON_ENV is not set: see tools/python_env";
  const std::string program = std::filesystem::canonical("examples/ddp_python/train.py");
  const auto run = WithTheWheel(
      absl::StrCat("packages=\n", kInstall,
                   // The environment with PyTorch is read-only here.
                   "export PYTHONPATH=$(echo ", python_, "/lib/python3*/site-packages)\n",
                   "/tmp/venv/bin/cadre run --standalone --nproc-per-node 2 --max-restarts 1 ",
                   program, " --epochs 2 --checkpoint /tmp/c.pt --fail-rank 1\n",
                   "echo '== with its own collectives'\n"
                   "sed 's/\"gloo\"/\"cadre\"/' ",
                   program, " > /tmp/own.py\n",
                   "/tmp/venv/bin/cadre run --standalone --nproc-per-node 2 /tmp/own.py "
                   "--epochs 1 --checkpoint /tmp/own.pt\n"),
      {python_, program});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(),
              AllOf(HasSubstr("goes on after epoch 1"), HasSubstr("epoch 2/2: loss"),
                    HasSubstr("== with its own collectives"), HasSubstr("epoch 1/1: loss")));
}

}  // namespace
}  // namespace cadre
