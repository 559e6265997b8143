// What users see of failures of programs of PyTorch's: the rank that failed first, not its victims,
// and what it said.
#include <pwd.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"
#include "tests/testing/pypi_python.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kScript[] = "tests/compatibility/python_failures.py";
// Importing torch alone takes many seconds on a machine that has other things to do.
constexpr absl::Duration kTimeout = absl::Minutes(4);

// After an exception PyTorch 2.15 sometimes aborts while the interpreter ends.
const auto kFailed = AnyOf(1, 3, 128 + SIGABRT, 128 + SIGSEGV);

struct Way {
  std::string name;
  // Of rank 1.
  std::string says;
  std::string cause;
};

class PythonFailuresTest : public PypiPythonTest, public ::testing::WithParamInterface<Way> {
 protected:
  std::vector<std::string> Run(const std::string& way, const std::string& argument = "") {
    return {"run",
            "--standalone",
            "--nproc-per-node",
            "2",
            "--log-dir",
            logs_,
            "--job-name",
            "j",
            "--",
            python_,
            kScript,
            way,
            argument};
  }

  const std::string logs_ = MakeTempDir("logs");
};

TEST_P(PythonFailuresTest, TheRankAndWhatItSaidAreShown) {
  const Way& way = GetParam();
  const auto run = StartCadre(Run(way.name));
  EXPECT_THAT(run->Wait(kTimeout), kFailed) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(),
              AllOf(HasSubstr("failed: rank 1"), HasSubstr(way.says),
                    HasSubstr(absl::StrCat("  cause      ", way.cause, ", generation 1"))));
}

INSTANTIATE_TEST_SUITE_P(
    Ways, PythonFailuresTest,
    ::testing::Values(
        Way{"late", "ValueError: no sample 17 (python_failures.py, line 42)", "crash"},
        Way{"ends_itself",
            "exited with status 3 at sys.exit(3)  # without a word (python_failures.py:68 in "
            "ends_itself)",
            "crash"},
        Way{"segfault",
            "was killed by signal 11 (SIGSEGV) at ctypes.string_at(0) (python_failures.py:72 in "
            "segfault)",
            "crash"},
        Way{"parameters",
            "RuntimeError: Error(s) in loading state_dict for ModuleDict: (python_failures.py, "
            "line 81)",
            "crash"},
        Way{"exits", "(python_failures.py:63 in exits); its last line: there is no data in /data",
            "crash"},
        Way{"device_memory",
            "ran out of memory: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
            "20.00 "
            "GiB. GPU 0 has a total capacity of 79.11 GiB of which 5.44 GiB is free.",
            "out of memory"},
        Way{"loader_raises",
            "ValueError: no sample 5 (python_failures.py, line 26, in DataLoader worker process 0)",
            "crash"},
        Way{"loader_is_killed", "is killed by signal: Killed. (python_failures.py, line 125)",
            "crash"}),
    [](const auto& info) { return info.param.name; });

// Fault (python): A rank exits with 0 while others still work with it -> The verdict names it as
// the cause, together with the ranks that lost it
TEST_F(PythonFailuresTest, ARankThatEndsInOrderWhileTheOtherWorksIsTheCause) {
  const auto run = StartCadre(Run("leaves"));
  EXPECT_EQ(run->Wait(kTimeout), 1) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(),
              AllOf(HasSubstr("failed: rank 1 (local rank 1) on "),
                    HasSubstr(" ended with exit code 0 in generation 1 while another was still "
                              "working; rank 0 lost it"),
                    HasSubstr("Failures that followed from it:\n  rank 0 (local rank 0)")));
}

// Its own lines are those of an installed package, and so are its processes'.
//
// Fault (python): The program that fails is itself an installed package -> Its own line is named,
// and not one of its caller
TEST_F(PythonFailuresTest, OfAProgramThatIsAnInstalledPackageItsOwnLineIsNamed) {
  const std::string packages = MakeTempDir("venv") + "/lib/python3.11/site-packages";
  std::filesystem::create_directories(packages + "/mine");
  std::ofstream(packages + "/mine/__init__.py").flush();
  std::ofstream(packages + "/mine/train.py")
      << "import torch\n\n\ndef main():\n    torch.nn.Linear(2, 2)(torch.ones(3))\n\n\nmain()\n";
  const auto run = StartCadre({"run", "--standalone", "--log-dir", logs_, "-m", "mine.train"},
                              {{"PYTHON_EXEC", python_}, {"PYTHONPATH", packages}});
  EXPECT_THAT(run->Wait(kTimeout), kFailed) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("(train.py, line 5)"));
}

// What starting it again does not mend is not started again.
//
// Fault (python): The Python program does not exist: `-m nosuch`, or a script that cannot be opened
// -> The job is not restarted, and the verdict has what the interpreter printed
TEST_F(PythonFailuresTest, AProgramThatIsNotThereEndsTheJobAtOnce) {
  const std::string folder = MakeTempDir("program");
  std::ofstream(folder + "/wrong.py") << "def f(:\n";
  std::ofstream(folder + "/late.py") << "import os\n\nimport nosuch\n";
  const std::vector<std::pair<std::vector<std::string>, std::string>> programs = {
      {{"-m", "nosuch"}, "could not be loaded: No module named nosuch"},
      {{"-m", "nosuch.train"},
       "could not be loaded: Error while finding module specification for 'nosuch.train' "
       "(ModuleNotFoundError: No module named 'nosuch')"},
      {{"--", python_, folder + "/nosuch.py"},
       absl::StrCat("could not be loaded: can't open file '", folder,
                    "/nosuch.py': [Errno 2] No such file or directory")},
      {{folder + "/wrong.py"},
       "could not be loaded: SyntaxError: invalid syntax (wrong.py, line 1)"},
      {{folder + "/late.py"},
       "could not be loaded: ModuleNotFoundError: No module named 'nosuch' (late.py, line 3)"}};
  for (const auto& [program, says] : programs) {
    for (const bool warm : {true, false}) {
      std::vector<std::string> arguments = {"run", "--standalone", "--max-restarts", "3"};
      if (!warm) arguments.insert(arguments.end(), {"--set", "restart.warm=false"});
      arguments.insert(arguments.end(), program.begin(), program.end());
      const auto run = StartCadre(arguments, {{"PYTHON_EXEC", python_}});
      EXPECT_THAT(run->Wait(kTimeout), AnyOf(1, 2)) << OutputOf(*run);
      EXPECT_THAT(run->standard_error(), AllOf(HasSubstr("rank 0 (local rank 0)"), HasSubstr(says),
                                               HasSubstr("  cause      load failed, generation 1"),
                                               Not(HasSubstr("restart"))));
    }
  }
}

// Then nobody knows why, but where it is.
//
// Fault (python): A rank leaves the others' collectives and keeps running -> The others' failure is
// the cause, and the verdict has the line at which that rank still runs
TEST_F(PythonFailuresTest, ARankThatLeftTheOthersAndGoesOnIsNamed) {
  const auto run = StartCadre(Run("goes_on"));
  EXPECT_EQ(run->Wait(kTimeout), 1) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(),
              AllOf(HasSubstr("failed: rank 0"), HasSubstr("by peer"),
                    HasSubstr("rank 1 still ran, at time.sleep(1000)  # without the others "
                              "(python_failures.py:58 in goes_on)")));
}

// Fault (python): A process that a rank forked into its own session outlives that rank -> It is
// killed with the generation, and the verdict is about the rank
TEST_F(PythonFailuresTest, WhatARankForkedEndsWithTheJob) {
  const std::string file = MakeTempDir("fork") + "/pid";
  const auto run = StartCadre(Run("forks", file));
  EXPECT_THAT(run->Wait(kTimeout), kFailed) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("rank 1 (local rank 1)"));
  EXPECT_THAT(run->standard_error(), HasSubstr("ValueError: no sample 17"));
  int child = 0;
  ASSERT_TRUE(absl::SimpleAtoi(ReadFileOrEmpty(file), &child));
  EXPECT_NE(kill(child, 0), 0) << child;
}

// A cgroup with a limit, where this machine lets the test make one; else the test is skipped.
class MemoryLimit {
 public:
  explicit MemoryLimit(int64_t bytes) {
    const std::string own = OwnGroup();
    parent_ = "/sys/fs/cgroup/memory" + own;
    if (own.empty() || access((parent_ + "/memory.limit_in_bytes").c_str(), W_OK) != 0) return;
    path_ = absl::StrCat(parent_, "/cadre_test_", getpid());
    if (mkdir(path_.c_str(), 0755) != 0) {
      path_.clear();
      return;
    }
    std::ofstream(path_ + "/memory.limit_in_bytes") << bytes;
  }
  ~MemoryLimit() {
    if (!path_.empty()) rmdir(path_.c_str());
  }
  const std::string& path() const { return path_; }
  // The one above it, which has no such limit.
  const std::string& parent() const { return parent_; }

 private:
  static std::string OwnGroup() {
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
      const size_t found = line.find(":memory:");
      if (found != line.npos) return line.substr(found + 8);
    }
    return "";
  }

  std::string parent_;
  std::string path_;
};

// Fault (python): The kernel kills a `DataLoader` process because memory ran out -> The verdict
// says that memory ran out
TEST_F(PythonFailuresTest, MemoryThatRunsOutIsNamed_AlsoForADataLoader) {
  const MemoryLimit limit(int64_t{2} << 30);
  if (limit.path().empty()) GTEST_SKIP() << "no cgroup with a memory limit can be made here";
  for (const bool loader : {false, true}) {
    std::vector<std::string> arguments = {
        "-c",
        absl::StrCat("echo $$ > ", limit.path(),
                     "/cgroup.procs && CADRE_UNLIMITED_GROUP=", limit.parent(), " exec \"$@\""),
        "sh", kCadre};
    const std::vector<std::string> run_arguments = Run(loader ? "loader_runs_out" : "memory");
    arguments.insert(arguments.end(), run_arguments.begin(), run_arguments.end());
    const auto run = StartProgram("/bin/sh", arguments);
    EXPECT_THAT(run->Wait(kTimeout), AnyOf(1, 128 + SIGABRT, 128 + SIGKILL)) << OutputOf(*run);
    EXPECT_THAT(
        run->standard_error(),
        AllOf(HasSubstr("failed: rank 1"), HasSubstr("  cause      out of memory, generation 1"),
              HasSubstr(loader ? "ran out of memory: RuntimeError: DataLoader worker (pid"
                               : "was killed because memory ran out")));
  }
}

// A virtual environment of the machine's interpreter that has this PyTorch, as far as its files
// say.
std::string EnvironmentWith(const std::string& torch) {
  const std::filesystem::path folder = MakeTempDir("env");
  const std::filesystem::path interpreter = std::filesystem::canonical("/usr/bin/python3");
  const auto packages = folder / "lib" / interpreter.filename() / "site-packages" / "torch";
  std::filesystem::create_directories(folder / "bin");
  std::filesystem::create_directories(packages);
  std::filesystem::create_symlink(interpreter, folder / "bin" / "python3");
  std::ofstream(folder / "pyvenv.cfg") << "home = " << interpreter.parent_path().string() << "\n";
  std::ofstream(packages / "version.py") << "__version__ = '" << torch << "'\n";
  return (folder / "bin").string();
}

// Fault (python): Nodes run the program under different versions of Python or PyTorch -> One
// warning names nodes and versions, and the verdict of a job that fails repeats it
TEST(PythonVersionsTest, NodesThatDifferAreNamedOnceWhenTheyBegin) {
  const int port = FreePort();
  std::vector<std::unique_ptr<Process>> nodes;
  for (int node = 0; node < 2; ++node) {
    const std::string path = EnvironmentWith(node == 0 ? "2.15.0+cpu" : "2.14.1+cu130");
    nodes.push_back(StartNode(port, "2", node, {"--max-restarts", "1", "--", "python3", "-c", "0"},
                              {{"PATH", path + ":/usr/bin:/bin"}}));
  }
  for (const auto& node : nodes) EXPECT_EQ(node->Wait(kTimeout), 0) << OutputOf(*node);
  const std::string all = OutputOf(*nodes[0]) + OutputOf(*nodes[1]);
  EXPECT_THAT(all, AllOf(HasSubstr("the program runs under different versions: "),
                         HasSubstr(", PyTorch 2.15.0+cpu on node0"),
                         HasSubstr(", PyTorch 2.14.1+cu130 on node1")));
}

// Fault (python): Nodes run a submitted job under different versions of Python or PyTorch -> The
// server's log names nodes and versions
TEST(PythonVersionsTest, OfASubmittedJobTheServersLogNamesThem) {
  const std::string folder = MakeTempDir("cluster"), token = folder + "/token";
  ASSERT_EQ(StartCadre({"token", "new", token})->Wait(kTimeout), 0);
  const int port = FreePort();
  const auto server = StartCadre({"server", absl::StrCat("--port=", port), "--token-file=" + token,
                                  "--state-dir=" + folder + "/state"});
  ASSERT_TRUE(server->WaitForLine("serving at", kTimeout)) << OutputOf(*server);
  const std::vector<std::string> where = {absl::StrCat("--server=127.0.0.1:", port),
                                          "--token-file=" + token};
  std::vector<std::unique_ptr<Process>> agents;
  for (const char* torch : {"2.15.0+cpu", "2.14.1+cu130"}) {
    std::vector<std::string> arguments = {"agent", absl::StrCat("--node-name=n", agents.size()),
                                          "--cpus=1", "--gpus=0",
                                          absl::StrCat("--user=", getpwuid(geteuid())->pw_name)};
    arguments.insert(arguments.end(), where.begin(), where.end());
    agents.push_back(StartCadre(arguments, {{"PATH", EnvironmentWith(torch) + ":/usr/bin:/bin"}}));
    ASSERT_TRUE(agents.back()->WaitForLine("is in the cluster", kTimeout))
        << OutputOf(*agents.back());
  }
  std::ofstream(folder + "/job.yaml")
      << "name: j\nnodes: 2\nworking_dir: " << folder << "\ncommand: [python3, -c, '0']\n";
  std::vector<std::string> submit = {"submit", folder + "/job.yaml"};
  submit.insert(submit.end(), where.begin(), where.end());
  ASSERT_EQ(StartCadre(submit)->Wait(kTimeout), 0);
  const auto line = server->WaitForLine("the program runs under different versions: ", kTimeout);
  ASSERT_TRUE(line.has_value()) << OutputOf(*server);
  EXPECT_THAT(*line, AllOf(HasSubstr(", PyTorch 2.15.0+cpu on n0"),
                           HasSubstr(", PyTorch 2.14.1+cu130 on n1")));
  for (const auto& agent : agents) agent->Kill(SIGTERM);
  for (const auto& agent : agents) EXPECT_EQ(agent->Wait(kTimeout), 0) << OutputOf(*agent);
}

}  // namespace
}  // namespace cadre
