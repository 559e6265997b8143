// What torchrun's flags for output and signals do.
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(TorchrunFlagsTest, LinesWithATextGoToAFileToo) {
  const std::string logs = MakeTempDir("logs");
  auto run = StartStandalone({"--nproc-per-node", "2", "--log-dir", logs, "--job-name", "filtered",
                              "--log-line-prefix-template", "<${role_name} ${local_rank}> ",
                              "--duplicate-stdout-filters", "apple,a,,b",
                              "--duplicate_stderr_filters", "orange", "--", "/bin/sh", "-c",
                              "echo apple $RANK; echo pear; echo orange; echo a,b; echo a,,b; "
                              "echo orange >&2"});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(),
              AllOf(HasSubstr("<default 0> apple 0\n"), HasSubstr("<default 1> apple 1\n"),
                    HasSubstr("<default 1> pear\n")));
  EXPECT_THAT(
      ReadFileOrEmpty(logs + "/filtered/generation_1/filtered_stdout.log"),
      AllOf(HasSubstr("<default 0> apple 0\n<default 0> a,b\n"), HasSubstr("<default 1> apple 1\n"),
            Not(HasSubstr("pear")), Not(HasSubstr("orange")), Not(HasSubstr("a,,b"))));
  EXPECT_THAT(ReadFileOrEmpty(logs + "/filtered/generation_1/filtered_stderr.log"),
              AllOf(HasSubstr("<default 0> orange\n"), HasSubstr("<default 1> orange\n")));
}

TEST(TorchrunFlagsTest, ASignalInTheListEndsTheJobInOrder) {
  auto run = StartStandalone({"--signals-to-handle", "SIGTERM,SIGUSR2", "--", "/bin/sh", "-c",
                              "trap 'echo worker ends; exit 3' TERM; echo runs; sleep 100 & wait"});
  run->WaitForLines("runs", 1);
  run->Kill(SIGUSR2);
  EXPECT_EQ(run->Wait(), 128 + SIGUSR2) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("worker ends"));
}

TEST(TorchrunFlagsTest, ASignalThatIsNotDoesWhatItDoesToAnyProgram) {
  auto run = StartStandalone({"--signals-to-handle", "SIGTERM", "--", "/bin/sh", "-c",
                              "trap 'echo worker ends; exit 3' TERM; echo runs; sleep 100 & wait"});
  run->WaitForLines("runs", 1);
  run->Kill(SIGHUP);
  EXPECT_EQ(run->Wait(), 128 + SIGHUP) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), Not(HasSubstr("SIGHUP")));
}

TEST(TorchrunFlagsTest, CompletionIsPrinted) {
  auto run = StartCadre({"run", "--print-completion", "bash"});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("complete -o filenames -F _cadre cadre"));
}

// Two nodes of one Slurm step, as srun would start them.
TEST(SlurmAddressTest, TheAddressThatSlurmHasStandsForANameThatDoesNotResolve) {
  std::unique_ptr<Process> nodes[2];
  for (int node = 0; node < 2; ++node) {
    nodes[node] = StartCadre({"run", "--", kProbe, "--exit", "0"},
                             {{"SLURM_JOB_ID", absl::StrCat(getpid())},
                              {"SLURM_STEP_ID", "0"},
                              {"SLURM_NODEID", absl::StrCat(node)},
                              {"SLURM_STEP_NODELIST", "cloud[0-1]"},
                              {"SLURM_NODE_ALIASES", "cloud0:127.0.0.1:x,cloud1:127.0.0.1:y"}});
  }
  for (const auto& node : nodes) EXPECT_EQ(node->Wait(), 0) << OutputOf(*node);
  EXPECT_THAT(nodes[0]->standard_output(), HasSubstr("probe rank=0 local=0 world=2 node=0"));
  EXPECT_THAT(nodes[1]->standard_output(), HasSubstr("probe rank=1 local=0 world=2 node=1"));
}

}  // namespace
}  // namespace cadre
