// Bad input gets one clear line and the right status; nothing hangs.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_matchers.h"
#include "tests/testing/launch.h"
#include "tests/testing/loopback_socket.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct BadCase {
  std::string name;
  std::vector<std::string> arguments;
  int status;
  std::vector<std::string> said;
};

std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(MakeTempDir("input"), "/", name);
  std::ofstream(path) << text;
  return path;
}

// A directory of logs in which job j has left this.
std::string LogsWith(const std::string& verdict) {
  const std::string logs = MakeTempDir("logs");
  std::filesystem::create_directory(logs + "/j");
  std::ofstream(logs + "/j/verdict.json") << verdict;
  return logs;
}

// Nobody writes to it.
std::string MakePipe() {
  const std::string path = absl::StrCat(MakeTempDir("input"), "/pipe");
  mkfifo(path.c_str(), 0600);
  return path;
}

class BadInputTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadInputTest, OneLineAndTheStatus) {
  const BadCase& bad = GetParam();
  auto run = StartCadre(bad.arguments);
  EXPECT_EQ(run->Wait(), bad.status) << OutputOf(*run);
  for (const std::string& text : bad.said) EXPECT_THAT(run->standard_error(), HasSubstr(text));
  EXPECT_EQ(std::count(run->standard_error().begin(), run->standard_error().end(), '\n'), 1)
      << OutputOf(*run);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadInputTest,
    ::testing::Values(
        BadCase{"UnknownFlag",
                {"run", "--standalone", "--nproc-per-nose", "2", "/bin/true"},
                64,
                {"--nproc-per-nose", "--nproc-per-node"}},
        BadCase{"TokenNowhere",
                {"token", "new", "/nonexistent/token"},
                64,
                {"/nonexistent/token", "in a directory that exists"}},
        BadCase{"TokenBelowAFile",
                {"token", "new", "/dev/null/token", "--force"},
                64,
                {"/dev/null/token", "in a directory that exists"}},
        BadCase{"EtcdIsNoUrl",
                {"run", "--rdzv-endpoint", "a,b", "--etcd", "notaurl", "/bin/true"},
                64,
                {"--etcd", "'notaurl' is no URL", "http://HOST:2379"}},
        BadCase{"LocalAddress",
                {"run", "--standalone", "--local-addr", "x y", "/bin/true"},
                64,
                {"--local-addr", "host's name or address"}},
        BadCase{"RoleOfTwoLines",
                {"run", "--standalone", "--role", "a\nb", "/bin/true"},
                64,
                {"--role", "one line"}},
        BadCase{"NoTimeToStart",
                {"run", "--standalone", "--start-timeout", "0s", "/bin/true"},
                64,
                {"--start-timeout", "more than 0"}},
        BadCase{"SetOfNoProperty",
                {"run", "--standalone", "--set", "timeouts.progres=1m", "/bin/true"},
                64,
                {"--set: unknown path 'timeouts.progres'", "did you mean 'timeouts.progress'?"}},
        BadCase{"SetAndItsFlag",
                {"run", "--standalone", "--max-restarts", "1", "--set", "restart.max=2", "true"},
                64,
                {"--max-restarts 1 and --set restart.max=2 contradict each other"}},
        BadCase{"NoText",
                {"run", "--standalone", "--role", "\xe9", "/bin/true"},
                64,
                {"'\\xe9'", "UTF-8"}},
        BadCase{"LogDirThatCannotBe",
                {"run", "--standalone", "--log-dir", "/dev/null/logs", "/bin/true"},
                64,
                {"--log-dir", "/dev/null/logs", "Not a directory"}},
        BadCase{"NoProgram", {"run", "--standalone"}, 64, {"program"}},
        BadCase{"BadCount",
                {"run", "--standalone", "--nproc-per-node", "two", "/bin/true"},
                64,
                {"two"}},
        BadCase{"UnknownYamlKey",
                {"validate", WriteFile("job.yaml", "name: a\ncomand: [x]\n")},
                65,
                {"job.yaml:2:1", "comand", "command"}},
        BadCase{
            "WrongYamlType",
            {"validate", WriteFile("job.yaml", "name: a\ncommand: [x]\nrestart: {max: many}\n")},
            65,
            {"job.yaml:3:", "many"}},
        BadCase{"WhatAServerWouldRefuse",
                {"validate", WriteFile("job.yaml", "command: [x]\nspares: 4000000000\n")},
                65,
                {"job.yaml:2:9: spares: at most 100000"}},
        BadCase{"SlurmsPartOfASpec",
                {"validate", WriteFile("job.yaml",
                                       "command: [x]\nworkers_per_node: gpu\n"
                                       "slurm: {partition: all}\n")},
                65,
                {"job.yaml:2:19: workers_per_node: ", "--gpus-per-node=N"}},
        BadCase{"SpecAbsent",
                {"run", "--spec", "/nonexistent/job.yaml"},
                65,
                {"/nonexistent/job.yaml"}},
        BadCase{"HostfileAndEndpoint",
                {"run", "--hostfile", WriteFile("hosts", "localhost\n"), "--rdzv-endpoint", "head",
                 "/bin/true"},
                64,
                {"--rdzv-endpoint", "--hostfile"}},
        BadCase{"HostfileIsAPipe",
                {"run", "--hostfile", MakePipe(), "/bin/true"},
                64,
                {"--hostfile: ", "/pipe: not a regular file"}},
        BadCase{"VerdictIsAbsent",
                {"why", "--log-dir", MakeTempDir("logs"), "j"},
                1,
                {"no run of job j has left its files in /"}},
        BadCase{"VerdictIsCutOff",
                {"why", "--log-dir", LogsWith("{\n \"job\": \"j\",\n \"outcome\": \"FAI"), "j"},
                1,
                {"/j/verdict.json is damaged, or 'cadre run' did not write it: Closing quote "
                 "expected"}},
        BadCase{"VerdictSaysNothing",
                {"why", "--log-dir", LogsWith("{}\n"), "j"},
                1,
                {"/j/verdict.json is damaged, or 'cadre run' did not write it: it has no outcome"}},
        BadCase{"ScriptIsAbsent",
                {"run", "--standalone", "/nonexistent/train.py"},
                64,
                {"script /nonexistent/train.py: No such file or directory on this node"}},
        BadCase{"StateDirIsNothing",
                {"server", "--state-dir", ""},
                64,
                {"--state-dir: expected a directory, or 'none', got ''"}},
        BadCase{"StateDirOfARunIsNothing",
                {"run", "--standalone", "--state-dir", "", "/bin/true"},
                64,
                {"--state-dir: expected a directory, or none for nowhere"}},
        BadCase{"SignalIsNone",
                {"run", "--standalone", "--signals-to-handle", "SIGTERM,SIGSPAM", "/bin/true"},
                64,
                {"--signals-to-handle", "SIGSPAM"}},
        BadCase{"CompletionOfAnUnknownShell",
                {"run", "--print-completion", "tcsh"},
                64,
                {"expected bash, zsh or fish, got 'tcsh'"}},
        BadCase{"UnknownState",
                {"status", "--state", "live,fialed"},
                64,
                {"--state: 'fialed' is no state; did you mean 'failed'?"}},
        BadCase{"AFilterForOneJob",
                {"status", "mnist", "--me"},
                64,
                {"--me, --user, --state and --node choose among all jobs"}},
        BadCase{"AUserOfFiles",
                {"status", "--user", "ann", "--log-dir", MakeTempDir("logs")},
                64,
                {"the files of runs name no users and no nodes"}},
        BadCase{"AdoptionWithoutState",
                {"run", "--standalone", "--adopt-timeout", "1m", "/bin/true"},
                64,
                {"--adopt-timeout", "--state-dir"}},
        BadCase{"NoEndpoint", {"run", "--nnodes", "2", "/bin/true"}, 64, {"--rdzv-endpoint"}},
        BadCase{"GpusMissing",
                {"run", "--standalone", "--nproc-per-node", "gpu", "/bin/true"},
                64,
                {"GPU"}},
        BadCase{"TokenFileAbsent",
                {"run", "--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:1", "--token-file",
                 "/nonexistent", "/bin/true"},
                64,
                {"/nonexistent"}},
        BadCase{"BadEndpointPort",
                {"run", "--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:99999", "/bin/true"},
                64,
                {"99999"}}),
    [](const auto& info) { return info.param.name; });

std::unique_ptr<Process> RunBelowADirectoryThatIsGone(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {
      "-c", R"(cadre=$PWD/$1; shift; cd "$0" && rmdir "$0" && exec "$cadre" "$@")",
      MakeTempDir("gone"), kCadre};
  all.insert(all.end(), arguments.begin(), arguments.end());
  auto run = StartProgram("/bin/sh", all);
  EXPECT_TRUE(run->Wait().has_value());
  return run;
}

TEST(LogDirTest, BelowADirectoryThatIsGone_Status64AndSaysSo) {
  const auto run = RunBelowADirectoryThatIsGone({"run", "--standalone", "/bin/true"});
  EXPECT_EQ(run->Wait(), 64) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(),
              HasSubstr("logs is relative to the current directory, which was removed"));
}

TEST(GoneDirectoryTest, OfASubmissionOrAnAgent_Status64AndSaysSo) {
  const std::string job = WriteFile("job.yaml", "name: j\ncommand: [x]\n");
  const auto submit = RunBelowADirectoryThatIsGone({"submit", job});
  EXPECT_EQ(submit->Wait(), 64) << OutputOf(*submit);
  EXPECT_THAT(submit->standard_error(),
              HasSubstr("working_dir: cannot find the current directory: No such"));
  const auto agent = RunBelowADirectoryThatIsGone({"agent", "--tls-dir", "x"});
  EXPECT_EQ(agent->Wait(), 64) << OutputOf(*agent);
  EXPECT_THAT(agent->standard_error(),
              HasSubstr("--tls-dir: cannot find the current directory: No such"));
}

// Otherwise each node would report it for each of its workers, after the user has waited for nodes.
// Nothing is said if the program exists, or if the nodes' folder is not on this machine.
//
// Fault (input): The program of a submitted job is missing on the machine of `cadre submit` ->
// `cadre submit` says so in one line, and submits the job
TEST(SubmissionTest, AProgramThatIsNotHere_OneLineSaysSo) {
  const std::filesystem::path folder = MakeTempDir("job");
  std::filesystem::create_directories(folder / "empty");
  std::filesystem::create_directories(folder / "package");
  std::ofstream(folder / "package/__main__.py") << "pass\n";
  std::ofstream(folder / "train.py") << "pass\n";
  std::ofstream(folder / "text") << "#!/bin/sh\n";
  const auto submit = [&](const std::string& program, const std::string& working_dir) {
    const std::string job = WriteFile(
        "job.yaml",
        absl::StrCat("name: j\nworking_dir: ", working_dir, "\ncommand: [", program, ", \"1\"]\n"));
    const auto run = StartCadre({"submit", job, "--server", absl::StrCat("127.0.0.1:", FreePort()),
                                 "--token-file", folder / "absent"});
    EXPECT_TRUE(run->Wait().has_value()) << OutputOf(*run);
    return run->standard_error();
  };
  const std::string all_the_same =
      "; the job is submitted anyway, because its nodes may have other";
  for (const auto& [program, why] : std::map<std::string, std::string>{
           {"./absent", "program ./absent: No such file or directory ("},
           {"absent-program", "program absent-program: it is neither on PATH nor in "},
           {"absent.py", "script absent.py: No such file or directory ("},
           {"empty", "empty is a directory without __main__.py"},
           {"text", "text is not on PATH; to run the file that is here, write ./text"},
           {"./text", "./text is not executable"}}) {
    EXPECT_THAT(submit(program, folder),
                AllOf(HasSubstr("cadre: " + why), HasSubstr(all_the_same)));
    EXPECT_THAT(submit(program, "/nonexistent"), Not(HasSubstr(all_the_same))) << program;
  }
  for (const char* const program : {"package", "train.py", "sh", "/bin/sh", "'${local_rank}.py'"}) {
    EXPECT_THAT(submit(program, folder), Not(HasSubstr(all_the_same))) << program;
  }
}

std::unique_ptr<Process> RunBelowADirectoryThatIsNoText(const std::vector<std::string>& arguments) {
  const std::string directory = MakeTempDir("no_text") + "/\xe9t\xe9";
  std::filesystem::create_directory(directory);
  std::vector<std::string> all = {"-c", R"(cadre=$PWD/$1; shift; cd "$0" && exec "$cadre" "$@")",
                                  directory, kCadre};
  all.insert(all.end(), arguments.begin(), arguments.end());
  auto run = StartProgram("/bin/sh", all);
  EXPECT_TRUE(run->Wait().has_value());
  return run;
}

// A server would not read what it has kept, and another node's would not answer.
//
// Fault (input): The working directory or another text of a job or node is not UTF-8 -> A launcher
// whose job is kept or shared, and a submission, exit with 64 and name the text before a server has
// it
TEST(NoTextTest, TheWorkingDirectory_Status64WhereOthersAreToHearOfIt) {
  const std::string state = MakeTempDir("state");
  for (const std::vector<std::string>& how : {
           std::vector<std::string>{"run", "--standalone", "--state-dir", state, "/bin/true"},
           {"run", "--nnodes", "2", "--rdzv-endpoint", absl::StrCat("127.0.0.1:", FreePort()),
            "/bin/true"},
       }) {
    const auto run = RunBelowADirectoryThatIsNoText(how);
    EXPECT_EQ(run->Wait(), 64) << OutputOf(*run);
    EXPECT_THAT(run->standard_error(),
                AllOf(HasSubstr("logs.dir: '/"), HasSubstr("/\\xe9t\\xe9/logs' is not UTF-8")));
  }
  EXPECT_TRUE(std::filesystem::is_empty(state));
  const auto alone = RunBelowADirectoryThatIsNoText({"run", "--standalone", "/bin/true"});
  EXPECT_EQ(alone->Wait(), 0) << OutputOf(*alone);
}

TEST(NoTextTest, ANodesName_Status64) {
  const auto run =
      StartCadre({"run", "--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:1", "/bin/true"},
                 {{"CADRE_NODE_NAME", "n\xe9"}});
  EXPECT_EQ(run->Wait(), 64) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("node: 'n\\xe9' is not UTF-8"));
}

TEST(StandaloneTest, SetToNo_IsNotGiven) {
  const auto run = StartCadre({"run", "--hostfile", WriteFile("hosts", "localhost\n"),
                               "--rdzv-endpoint", "head", "/bin/true"},
                              {{"CADRE_STANDALONE", "0"}});
  EXPECT_EQ(run->Wait(), 64) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("--rdzv-endpoint: with --hostfile"));
}

TEST(RuntimeDirectoryTest, ThatIsNamedAndAbsent_IsNothingToFix) {
  const auto doctor = StartCadre({"doctor"}, {{"XDG_RUNTIME_DIR", "/nonexistent"}});
  const auto line = doctor->WaitForLine("runtime directory");
  ASSERT_TRUE(line.has_value()) << OutputOf(*doctor);
  EXPECT_THAT(*line, AllOf(HasSubstr(" ok "), HasSubstr("/tmp/cadre-")));
  EXPECT_TRUE(doctor->Wait().has_value());
}

TEST(SupervisorTest, OneThatIsNotThere_IsSaidAsAWrongFlagIs) {
  for (const char* command : {"run", "agent"}) {
    auto run = command == std::string("run")
                   ? StartCadre({"run", "--standalone", "/bin/true"},
                                {{"CADRE_SUPERVISOR", "/nonexistent/supervisor"}})
                   : StartCadre({"agent", "--server", "127.0.0.1:1"},
                                {{"CADRE_SUPERVISOR", "/nonexistent/supervisor"}});
    EXPECT_EQ(run->Wait(), 64) << OutputOf(*run);
    EXPECT_THAT(run->standard_error(), AllOf(HasSubstr("/nonexistent/supervisor: No such file"),
                                             HasSubstr("CADRE_SUPERVISOR must name the program")));
  }
}

TEST(SupervisorTest, TooFewDescriptors_AreSaidWithWhatToDo) {
  for (const int limit : {6, 12, 20, 31}) {
    auto run =
        StartProgram("sh", {"-c", absl::StrCat("ulimit -n ", limit, "; exec ",
                                               std::filesystem::absolute(kCadre).string(),
                                               " run --standalone --nproc-per-node 1 /bin/true")});
    const auto status = run->Wait();
    EXPECT_EQ(status, 69) << limit << OutputOf(*run);
    EXPECT_THAT(run->standard_error(), HasSubstr("raise the limit (ulimit -n)"));
  }
}

// Fault (input): The program does not exist -> The job is not restarted, and `cadre run` exits with
// 127 and names the program
TEST(BadProgramTest, Absent_Status127) {
  auto run = StartStandalone({"--", "/nonexistent/program"});
  EXPECT_EQ(run->Wait(), 127) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(),
              AllOf(HasSubstr("/nonexistent/program"), HasSubstr("No such file")));
}

TEST(BadProgramTest, HereButNotOnPath_SaysHowToNameIt) {
  const std::filesystem::path script = WriteFile("here.sh", "x");
  auto run = StartStandalone(
      {"--env", "PATH=/usr/bin:/bin", "--working-dir", script.parent_path(), "--", "here.sh"});
  EXPECT_EQ(run->Wait(), 127) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(),
              HasSubstr("here.sh is not on PATH; to run the file that is here, write ./here.sh"));
}

TEST(BadProgramTest, WithoutItsInterpreter_SaysWhichIsMissing) {
  const std::string script = WriteFile("script", "#!/nonexistent/sh -e\n");
  chmod(script.c_str(), 0755);
  auto run = StartStandalone({"--", script});
  EXPECT_EQ(run->Wait(), 127) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(),
              HasSubstr("names the interpreter /nonexistent/sh, which does not exist"));
}

// Fault (input): The program is not executable -> The job is not restarted, and `cadre run` exits
// with 126 and names the program
TEST(BadProgramTest, NotExecutable_Status126) {
  const std::string script = WriteFile("script", "#!/bin/sh\n");
  for (const std::vector<std::string>& how : {std::vector<std::string>{"--", script},
                                              {"--no-python", WriteFile("train", "import os\n")}}) {
    auto run = StartStandalone(how);
    EXPECT_EQ(run->Wait(), 126) << OutputOf(*run);
    EXPECT_THAT(run->standard_error(),
                AllOf(HasSubstr("Permission denied"), HasSubstr(how[1] + " is not executable"),
                      HasSubstr("'python3 " + how[1] + "'")));
  }
}

// As torchrun does.
TEST(ProgramTest, APythonTextAFolderOrAZipFile_RunsUnderPython) {
  const std::string program =
      "import os, sys\nprint('trained', os.environ['RANK'], sys.argv[1:])\n";
  const std::filesystem::path folder = MakeTempDir("program");
  std::filesystem::create_directory(folder / "package");
  std::ofstream(folder / "package/__main__.py") << program;
  auto zip =
      StartProgram("python3", {"-m", "zipapp", folder / "package", "-o", folder / "app.pyz"});
  ASSERT_EQ(zip->Wait(), 0) << OutputOf(*zip);
  std::ofstream(folder / "train") << program;
  for (const char* const name : {"package", "app.pyz", "train"}) {
    const auto run = StartStandalone({folder / name, "--", "a"});
    EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
    EXPECT_THAT(run->standard_output(), HasSubstr("trained 0 ['--', 'a']")) << name;
  }
}

TEST(LogDirTest, NobodyAskedFor_IsWhereItCanBeWritten) {
  const std::filesystem::path here = MakeTempDir("here"), there = MakeTempDir("there");
  std::filesystem::create_symlink("absent/place", here / "logs");
  const std::string line =
      absl::StrCat("cd ", here.string(), " && exec ", std::filesystem::absolute(kCadre).string(),
                   " run --standalone ");
  auto run = StartProgram("sh", {"-c", line + "true"}, {{"TMPDIR", there}, {"CADRE_LOG_DIR", ""}});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(),
              AllOf(HasSubstr(absl::StrCat("logs are in ", there.string(), "/cadre-logs-")),
                    HasSubstr("is a link to absent/place, which is not there")));
  EXPECT_FALSE(std::filesystem::is_empty(there));
  // Who asks for a place gets that, or an error.
  run = StartProgram("sh", {"-c", line + "--log-dir logs true"});
  EXPECT_EQ(run->Wait(), 64) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("is a link to absent/place, which is not there"));
}

TEST(CommandTest, OtherLaunchersWords_AreUnderstood) {
  auto run = StartCadre({"stop", "train"});
  EXPECT_EQ(run->Wait(), 64);
  EXPECT_THAT(run->standard_error(), HasSubstr("unknown command 'stop'; did you mean 'cancel'?"));
  run = StartCadre({"help", "stop"});
  EXPECT_EQ(run->Wait(), 64);
  EXPECT_THAT(run->standard_error(), HasSubstr("unknown command 'stop'; did you mean 'cancel'?"));
  run = StartCadre({"run", "--ndoes", "2", "true"});
  EXPECT_EQ(run->Wait(), 64);
  EXPECT_THAT(run->standard_error(), HasSubstr("did you mean '--nnodes'?"));
}

TEST(CommandTest, AnOldFlag_WorksAndNamesItsNewForm) {
  auto run = StartStandalone({"--stop-grace", "1s", "--", "/bin/true"});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(),
              HasSubstr("cadre: --stop-grace 1s is now --set timeouts.stop_grace=1s; the old flag "
                        "will be refused from 0.5\n"));
  run = StartStandalone({"--set", "timeouts.stop_grace=1s", "--", "/bin/true"});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), Not(HasSubstr("stop_grace")));
}

TEST(CommandTest, HelpOfACommand_IsWhatItsFlagShows) {
  for (const char* command : {"run", "why"}) {
    auto help = StartCadre({"help", command}), flag = StartCadre({command, "--help"});
    EXPECT_EQ(help->Wait(), 0) << OutputOf(*help);
    EXPECT_EQ(flag->Wait(), 0);
    EXPECT_EQ(help->standard_output(), flag->standard_output());
  }
}

TEST(BadProgramTest, ADirectory_Status126) {
  auto run = StartStandalone({"--", "/usr"});
  EXPECT_EQ(run->Wait(), 126) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("cannot start /usr: Is a directory"));
}

TEST(BadProgramTest, AFolderThatIsNoProgram_IsCalledThat) {
  const std::filesystem::path folder = MakeTempDir("work") + "/trainer";
  std::filesystem::create_directory(folder);
  // A name without a slash is also searched on PATH.
  for (const std::string& name : {std::string("trainer"), folder.string()}) {
    auto run = StartStandalone({"--working-dir", folder.parent_path(), "--", name});
    EXPECT_EQ(run->Wait(), 126) << OutputOf(*run);
    EXPECT_THAT(run->standard_error(), HasSubstr(name + " is a directory without __main__.py"));
    EXPECT_THAT(run->standard_error(), Not(HasSubstr("exec failed")));
  }
}

// Tests `PYTHON_EXEC=... cadre run train.py` with a name, a path, and a folder.
TEST(BadProgramTest, AnInterpreterThatIsNotThere_NamesTheVariable) {
  const std::string script = WriteFile("train.py", "");
  for (const char* python : {"/nosuch/python3", "nosuch-python3", "/usr"}) {
    auto run = StartCadre({"run", "--standalone", script}, {{"PYTHON_EXEC", python}});
    EXPECT_EQ(run->Wait(), 64) << OutputOf(*run);
    EXPECT_THAT(run->standard_error(), HasSubstr(absl::StrCat("PYTHON_EXEC=", python, ": ")));
  }
}

// Fault (python): A Python program lacks a module, or any program lacks a shared library -> The job
// is not restarted, and the verdict has the exception and the user's own line
TEST(BadProgramTest, APythonProgramWithAMissingModule_IsNotStartedAgainAndItsLineIsNamed) {
  auto run = StartStandalone(
      {"--max-restarts", "5", "--", WriteFile("train.py", "import os\nimport no_such_module\n")});
  EXPECT_EQ(run->Wait(), 1) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(),
              AllOf(HasSubstr("could not be loaded: ModuleNotFoundError: No module named "
                              "'no_such_module' (train.py, line 2)"),
                    HasSubstr("load failed, generation 1")));
}

// Fault (python): A Python program has a syntax error -> The job is not restarted, and the verdict
// names the line
TEST(BadProgramTest, APythonProgramWithWrongSyntax_IsNotStartedAgain) {
  auto run = StartStandalone({"--max-restarts", "5", "--", WriteFile("train.py", "\n\ndef f(:\n")});
  EXPECT_EQ(run->Wait(), 1) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(),
              AllOf(HasSubstr("could not be loaded: SyntaxError: "),
                    HasSubstr("(train.py, line 3)"), HasSubstr("load failed, generation 1")));
}

TEST(EndpointTest, Unreachable_Status69NamingIt) {
  // TEST-NET-1 is nobody's address, so this machine does not own it; no token, no packet leaves.
  auto run = StartCadre({"run", "--nnodes", "2", "--rdzv-endpoint", "nowhere.invalid:29400",
                         "--join-timeout", "1s", "--token-file",
                         [] {
                           const std::string path = WriteFile("token", std::string(64, 'a') + "\n");
                           chmod(path.c_str(), 0600);
                           return path;
                         }(),
                         "/bin/true"});
  EXPECT_EQ(run->Wait(), 69) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("nowhere.invalid"));
}

std::string TokenFile(const std::string& token) {
  const std::string path = WriteFile("token", token + "\n");
  chmod(path.c_str(), 0600);
  return path;
}

// Whoever writes it keeps the other end open: the job ends with it.
TEST(TokenTest, FromStandardInput_IsTheDashboardsToo) {
  for (const std::vector<std::string>& how : {
           std::vector<std::string>{"run", "--standalone"},
           {"run", "--nnodes", "1", "--rdzv-endpoint", absl::StrCat("127.0.0.1:", FreePort())},
           {"server", "--state-dir", "none", "--port", "0"},
       }) {
    const std::string pipe = MakePipe();
    std::vector<std::string> all = {"-c",
                                    "exec 3<>\"$0\"; echo 0123456789abcdef0123456789abcdef >&3; "
                                    "exec \"$@\" --http 0.0.0.0:$HTTP --token-file - < \"$0\"",
                                    pipe, kCadre};
    all.insert(all.end(), how.begin(), how.end());
    if (how[0] == "run") {
      all[1] = absl::StrReplaceAll(all[1], {{" < ", " /bin/true < "}});
    }
    auto cadre = StartProgram("/bin/sh", all, {{"HTTP", absl::StrCat(FreePort())}});
    EXPECT_TRUE(cadre->WaitForLine("dashboard at http://0.0.0.0:").has_value()) << OutputOf(*cadre);
    if (how[0] == "server") cadre->Kill(SIGTERM);
    EXPECT_EQ(cadre->Wait(), 0) << OutputOf(*cadre);
  }
}

// Fault (access): A launcher has a wrong token or none -> The server refuses it, and the launcher
// exits with 69 and says so
TEST(EndpointTest, WrongToken_Status69AndSaysSo) {
  const int port = FreePort();
  const std::string good = TokenFile("0123456789abcdef0123456789abcdef");
  const std::string wrong = TokenFile("ffffffffffffffffffffffffffffffff");
  auto server = StartCadre({"server", "--port", absl::StrCat(port), "--token-file", good});
  ASSERT_TRUE(server->WaitForLine(absl::StrCat(port)).has_value()) << OutputOf(*server);
  auto run = StartNode(port, "2", 0, {"--token-file", wrong, "--", "/bin/true"});
  EXPECT_EQ(run->Wait(), 69) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr("token"));
  EXPECT_THAT(OutputOf(*run), ::testing::Not(HasSubstr("ffffffff")));
}

// Fault (input): A second server is started on the same port -> It exits with 69 and one line that
// names the port
TEST(EndpointTest, SecondServerOnThePort_Status69NamingThePort) {
  const int port = FreePort();
  auto first = StartCadre({"server", "--port", absl::StrCat(port)});
  ASSERT_TRUE(first->WaitForLine(absl::StrCat(port)).has_value()) << OutputOf(*first);
  auto second = StartCadre({"server", "--port", absl::StrCat(port)});
  EXPECT_EQ(second->Wait(), 69) << OutputOf(*second);
  EXPECT_THAT(second->standard_error(), AllOf(HasSubstr(absl::StrCat(port)), HasSubstr("in use")));
  first->Kill(SIGTERM);
  EXPECT_EQ(first->Wait(), 0) << OutputOf(*first);
}

// Fault (input): Another program listens at the server's port -> The launcher exits with 69 and
// says that this is no Cadre server
TEST(EndpointTest, PortHeldBySomethingElse_Status69SaysItIsNoCadreServer) {
  const LoopbackSocket held;
  held.Listen();
  auto run = StartNode(held.port(), "2", 0, {"--join-timeout", "1s", "--", "/bin/true"});
  EXPECT_EQ(run->Wait(), 69) << OutputOf(*run);
  EXPECT_THAT(run->standard_error(), HasSubstr(absl::StrCat(held.port())));
}

}  // namespace
}  // namespace cadre
