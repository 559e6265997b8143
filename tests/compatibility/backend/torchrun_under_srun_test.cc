// torchrun --rdzv-backend=cadre as the task of each node of a step, on a Slurm cluster of two.
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"
#include "tests/testing/pypi_python.h"
#include "tests/testing/slurm_fixture.h"
#include "tests/testing/unpacked_wheel.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

class TorchrunUnderSrunTest : public SlurmFixture {
 protected:
  void SetUp() override {
    SlurmFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (torchrun_.empty()) GTEST_SKIP() << kNoPypiPython;
  }

  const std::string torchrun_ = PypiProgram("torchrun");
};

TEST_F(TorchrunUnderSrunTest, NodesAreSlurms_WithoutAnEndpoint) {
  const std::string secret = cluster_->directory() + "/secret";
  ASSERT_OK(SharedToken(secret));
  const std::string script =
      std::filesystem::absolute("tests/compatibility/backend/torchrun_script.py");
  // The simulated nodes have the name of this machine, and addresses that are told from it.
  const auto srun =
      cluster_->Run({"srun", "-N2", "--ntasks-per-node=1", "/bin/sh", "-c",
                     absl::StrCat("GLOO_SOCKET_IFNAME=eth0 exec ", torchrun_,
                                  " --rdzv-backend=cadre --nnodes=$SLURM_NNODES --nproc-per-node=2 "
                                  "--local-addr=10.77.0.$((SLURM_NODEID + 1)) ",
                                  script, " gloo")},
                    {{"CADRE_SECRET_FILE", secret}, {"PYTHONPATH", UnpackedWheel()}});
  ASSERT_EQ(srun->Wait(absl::Minutes(4)), 0) << OutputOf(*srun);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(srun->standard_output(), HasSubstr(absl::StrCat("rank ", rank, " of 4 on node ",
                                                                rank / 2, ": sum 10, life 0")))
        << OutputOf(*srun);
  }
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) { return cadre::RunTestsAmongThemselves(argc, argv); }
