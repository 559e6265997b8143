// Who hangs, in programs of PyTorch's that do not say where they are: the rank and its line are
// named, by the stacks that the interpreters print.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"
#include "tests/testing/pypi_python.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Importing torch alone takes many seconds on a machine that has other things to do.
constexpr absl::Duration kTimeout = absl::Minutes(4);

struct Hang {
  std::string way;
  std::string place;
  std::string says;
};

class PythonHangsTest : public PypiPythonTest, public ::testing::WithParamInterface<Hang> {
 protected:
  std::unique_ptr<Process> Run(const std::string& way) {
    return StartStandalone({"--nproc-per-node", "3", "--progress-timeout", "4s", "--log-dir", logs_,
                            "--job-name", "j", "--", python_, "tests/compatibility/python_hangs.py",
                            way});
  }

  const std::string logs_ = MakeTempDir("logs");
};

// Fault (python): A rank of a Python program hangs in its data loader, a lock, a loop, C code or
// another collective -> The rank that is missing in the others' collective is named, with its line
// of code
TEST_P(PythonHangsTest, TheRankAndItsLineAreNamed) {
  const Hang& hang = GetParam();
  const auto run = Run(hang.way);
  EXPECT_EQ(run->Wait(kTimeout), 124) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), AllOf(HasSubstr("failed: rank 1"), HasSubstr(hang.place),
                                           HasSubstr(hang.says), HasSubstr("waits in all_reduce")));
  EXPECT_THAT(ReadFileOrEmpty(logs_ + "/j/generation_1/rank_1/evidence.txt"),
              HasSubstr("== Python stacks of process"));
}

INSTANTIATE_TEST_SUITE_P(
    Ways, PythonHangsTest,
    ::testing::Values(
        Hang{"loader", "python_hangs.py:24 in __getitem__", "it is in its data loader: time.sleep"},
        Hang{"lock", "python_hangs.py:31 in lock", "it is at one.acquire()  # the lock"},
        Hang{"endless", " in endless)", "it uses "},
        Hang{"native", "python_hangs.py:40 in native", "it is at pow(7"},
        Hang{"skip", "python_hangs.py:44 in skip", "it waits in barrier"}),
    [](const auto& info) { return info.param.way; });

// As users start programs whose environment has to be prepared.
TEST_F(PythonHangsTest, BehindAShellsScriptTheRankAndItsLineAreNamed) {
  const auto run = StartStandalone(
      {"--nproc-per-node", "3", "--progress-timeout", "4s", "--log-dir", logs_, "--job-name", "j",
       "--", "sh", "-c", "$0 tests/compatibility/python_hangs.py lock; exit $?", python_});
  EXPECT_EQ(run->Wait(kTimeout), 124) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(),
              AllOf(HasSubstr("failed: rank 1"),
                    HasSubstr("it is at one.acquire()  # the lock (python_hangs.py:31 in lock)"),
                    HasSubstr("waits in all_reduce")));
}

// Without any of Cadre's own.
//
// Fault (python): A collective's own timeout ends the ranks that waited for one that did not join
// -> The cause is the hang of that rank, and the exit status is 124
TEST_F(PythonHangsTest, ACollectivesOwnTimeoutNamesTheRankThatDidNotCome) {
  const auto run = StartStandalone({"--nproc-per-node", "3", "--log-dir", logs_, "--job-name", "j",
                                    "--env", "GLOO_TIMEOUT=8", "--", python_,
                                    "tests/compatibility/python_hangs.py", "lock"});
  EXPECT_EQ(run->Wait(kTimeout), 124) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(),
              AllOf(HasSubstr("failed: rank 1"), HasSubstr("did not come in generation 1: "),
                    HasSubstr("one.acquire()  # the lock (python_hangs.py:31 in lock)"),
                    HasSubstr("waited for it until a timeout of its own: ")));
  EXPECT_THAT(ReadFileOrEmpty(logs_ + "/j/verdict.json"), HasSubstr("\"HANG\""));
}

// With Gloo a rank whose tensor is smaller may leave the call that the others stay in, and stand in
// the next one, on the same line: no stack tells it apart, but PyTorch's flight recorder does.
//
// Fault (python): A rank of a Python program passes a tensor of another shape to a collective,
// which then hangs -> That rank is named, with its line of code
TEST_F(PythonHangsTest, WhereTheShapesDifferTheRankIsNamed) {
  const auto run = Run("shape");
  EXPECT_EQ(run->Wait(kTimeout), 124) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(),
              AllOf(HasSubstr("failed: rank 1"),
                    HasSubstr("it called all_reduce with [1] Float as number 2 of process group "
                              "default_pg, and rank 0 with [2, 2] Float"),
                    HasSubstr("waits in all_reduce (python_hangs.py:52 in reduces)")));
  EXPECT_THAT(ReadFileOrEmpty(logs_ + "/j/generation_1/rank_1/evidence.txt"),
              HasSubstr("  all_reduce 3: [2, 2] Float, has not ended"));
}

// Then all wait, two of them in the next call of the default group.
TEST_F(PythonHangsTest, WhereARankLeavesACallOfASubGroupOutItIsNamed) {
  const auto run = Run("group");
  EXPECT_EQ(run->Wait(kTimeout), 124) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(),
              AllOf(HasSubstr("failed: rank 1"),
                    HasSubstr("it has not called all_reduce, number 1 of process group 1 (ranks "
                              "0, 1), in which 1 rank waits")));
}

// Or it aborts in a thread of Gloo's, which has no line; the main thread has.
TEST_F(PythonHangsTest, WhereARankAbortsInALibraryItsLineIsNamed) {
  const auto run = Run("abort");
  EXPECT_EQ(run->Wait(kTimeout), 134) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(),
              AllOf(HasSubstr("failed: rank 1"),
                    HasSubstr("Received data size doesn't match expected size"),
                    HasSubstr("in all_reduce (python_hangs.py:52 in reduces)")));
}

TEST_F(PythonHangsTest, WhereAllAreSlowAlikeNobodyIsToldApart) {
  const auto run = Run("slow");
  EXPECT_EQ(run->Wait(kTimeout), 124) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), AllOf(Not(HasSubstr("while rank")), HasSubstr("in hang")));
}

}  // namespace
}  // namespace cadre
