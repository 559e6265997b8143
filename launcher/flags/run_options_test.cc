#include "launcher/flags/run_options.h"

#include <signal.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "launcher/flags/resolve_for_test.h"
#include "launcher/flags/run_flags.h"
#include "launcher/spec/job_spec.h"

namespace cadre::launcher {
namespace {

using for_test::Resolve;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// Each line has a flag, and a value that it accepts.
std::vector<std::vector<std::string>> TorchrunFlags() {
  std::vector<std::vector<std::string>> flags;
  std::ifstream file("launcher/flags/testdata/torchrun_flags.txt");
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "-")) {
      flags.push_back(absl::StrSplit(line, absl::MaxSplits(' ', 1)));
    }
  }
  return flags;
}

TEST(RunOptionsTest, EachTorchrunFlag_IsAcceptedAndOnlyThreeHaveNoEffect) {
  std::vector<std::string> idle;
  ASSERT_GE(TorchrunFlags().size(), 35u);
  for (std::vector<std::string> flag : TorchrunFlags()) {
    SCOPED_TRACE(flag[0]);
    if (flag[0] == "--nnodes") flag.insert(flag.end(), {"--rdzv-endpoint", "head"});
    std::vector<std::string> underscored = flag;
    if (flag[0][1] == '-') {
      underscored[0] = "--" + absl::StrReplaceAll(flag[0].substr(2), {{"-", "_"}});
    }
    flag.push_back("train");
    underscored.push_back("train");
    EXPECT_OK(Resolve(flag));
    const auto options = Resolve(underscored);
    ASSERT_OK(options);
    for (const std::string& notice : options->notices) {
      if (absl::StrContains(notice, "has no effect")) idle.push_back(flag[0]);
    }
  }
  EXPECT_THAT(idle, ElementsAre("--monitor-interval", "--start-method", "--event-log-handler"));
}

// All except those that contradict each other.
TEST(RunOptionsTest, EveryTorchrunFlag_IsAccepted) {
  std::vector<std::string> all;
  for (const std::vector<std::string>& flag : TorchrunFlags()) {
    static const auto& others = *new std::set<std::string>{
        "--standalone", "-m", "--module", "--no-python", "--run-path", "--redirects", "--tee"};
    if (others.count(flag[0]) == 0) all.insert(all.end(), flag.begin(), flag.end());
  }
  all.insert(all.end(), {"train.py", "--lr", "1"});
  const auto options = Resolve(all);
  ASSERT_OK(options);
  const v1::JobSpec& job = options->job;
  EXPECT_EQ(job.nodes().min(), 1u);
  EXPECT_EQ(job.nodes().max(), 2u);
  EXPECT_EQ(job.workers_per_node().count(), 4u);
  EXPECT_EQ(options->endpoints[0].host, "head");
  EXPECT_EQ(options->endpoints[0].port, 1234);
  EXPECT_EQ(job.name(), "my-job-6bd555e6");
  EXPECT_EQ(options->workers.run_id, "My_Job");
  EXPECT_EQ(job.rendezvous().join_timeout().seconds(), 60);
  EXPECT_EQ(job.rendezvous().settle().seconds(), 5);
  EXPECT_EQ(job.restart().max(), 3u);
  EXPECT_EQ(job.role(), "trainer");
  EXPECT_EQ(job.logs().dir(), "/logs");
  EXPECT_EQ(options->redirects.Of(5), 3u);
  EXPECT_EQ(options->tee.Of(1), 3u);
  EXPECT_EQ(options->tee.Of(2), 0u);
  EXPECT_THAT(options->output.terminal_local_ranks, ElementsAre(0, 1));
  EXPECT_EQ(options->output.prefix_template, "${hostname}:${rank}:");
  EXPECT_THAT(options->output.stdout_filters, ElementsAre("apple", "orange"));
  EXPECT_THAT(options->output.stderr_filters, ElementsAre("apple", "orange"));
  EXPECT_THAT(options->signals, UnorderedElementsAre(SIGTERM, SIGUSR2));
  EXPECT_EQ(options->script, "train.py");
  EXPECT_EQ(options->node_rank, 1);
  EXPECT_EQ(options->local_addr, "10.0.0.2");
  EXPECT_EQ(job.placement().bind(), "numa");
  EXPECT_EQ(job.timeouts().stop_grace().seconds(), 7);
  EXPECT_TRUE(options->workers.virtual_local_rank);
  EXPECT_EQ(options->notices.size(), 3u);
  EXPECT_THAT(job.command(), ElementsAre("python3", "-u", "train.py", "--lr", "1"));
}

TEST(RunOptionsTest, Precedence_FlagThenCadreThenPetThenSpec) {
  const v1::JobSpec spec = *ReadSpec("command: [x]\nrestart: {max: 1}\n", "f");
  EXPECT_EQ(Resolve({}, {}, spec)->job.restart().max(), 1u);
  EXPECT_EQ(Resolve({}, {{"PET_MAX_RESTARTS", "2"}}, spec)->job.restart().max(), 2u);
  EXPECT_EQ(Resolve({}, {{"PET_MAX_RESTARTS", "2"}, {"CADRE_MAX_RESTARTS", "3"}}, spec)
                ->job.restart()
                .max(),
            3u);
  EXPECT_EQ(
      Resolve({"--max-restarts", "4"}, {{"CADRE_MAX_RESTARTS", "3"}}, spec)->job.restart().max(),
      4u);
  EXPECT_EQ(Resolve({"x"})->job.restart().max(), 0u);
  // PET_ variables are torchrun's and do not set Cadre's own flags.
  EXPECT_EQ(Resolve({"x"}, {{"PET_SPARES", "2"}})->job.spares(), 0u);
  EXPECT_EQ(Resolve({"x"}, {{"CADRE_SPARES", "2"}})->job.spares(), 2u);
}

// A user whose program needs minutes to save has told torchrun by one of these.
TEST(RunOptionsTest, TheGraceOfAStop_ByTorchrunsVariableWhereNoFlagSaysIt) {
  const auto grace = [](const std::vector<std::string>& arguments,
                        const std::map<std::string, std::string>& environment) {
    return Resolve(arguments, environment)->job.timeouts().stop_grace().seconds();
  };
  const std::map<std::string, std::string> set = {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "600"}};
  EXPECT_EQ(grace({"x"}, set), 600);
  EXPECT_EQ(grace({"--shutdown-timeout", "7", "x"}, set), 7);
  EXPECT_EQ(grace({"--stop-grace", "9s", "x"}, set), 9);
  EXPECT_EQ(grace({"x"}, {{"PET_SHUTDOWN_TIMEOUT", "5"}}), 5);
  EXPECT_THAT(Resolve({"x"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "-5"}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("TORCH_ELASTIC_SHUTDOWN_TIMEOUT: expected seconds")));
}

TEST(RunOptionsTest, AJobsFileAndAProgram_AreOneTooMany) {
  const v1::JobSpec spec = *ReadSpec("command: [x]\n", "f");
  EXPECT_THAT(Resolve({"y"}, {}, spec),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("leave 'y' out")));
}

TEST(RunOptionsTest, AFlagThatTookTheProgramForItsValue_IsNamed) {
  EXPECT_THAT(Resolve({"--max-restarts", "train.py"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--max-restarts: expected a number, got 'train.py'"));
}

TEST(RunFlagsTest, FifteenAreOfAnOrdinaryDay) {
  const std::vector<Flag>& flags = RunFlags();
  EXPECT_EQ(std::count_if(flags.begin(), flags.end(),
                          [](const Flag& f) { return f.everyday && !f.torchrun; }),
            15);
}

TEST(SetFlagTest, OverridesTheFileAndVariables_ALaterOneAnEarlier) {
  const v1::JobSpec spec = *ReadSpec("command: [x]\nrestart: {max: 1}\n", "f");
  const auto max = [&](const std::vector<std::string>& arguments,
                       const std::map<std::string, std::string>& environment) {
    return Resolve(arguments, environment, spec)->job.restart().max();
  };
  EXPECT_EQ(max({"--set", "restart.max=2"}, {{"CADRE_MAX_RESTARTS", "3"}}), 2u);
  EXPECT_EQ(max({"--set=restart.max=2", "--set", "restart.max=4"}, {}), 4u);
  EXPECT_EQ(max({}, {{"CADRE_SET", "restart.max=5"}}), 5u);
  EXPECT_EQ(max({"--set", "role=a"}, {{"CADRE_SET", "restart.max=5"}}), 5u);
  EXPECT_EQ(max({"--max-restarts", "6"}, {{"CADRE_SET", "restart.max=5"}}), 6u);
}

TEST(SetFlagTest, GivesWhatNoFlagGives) {
  const auto options = Resolve({"--set", "elastic.unit=2", "--set", "logs.tee=[0, 1]", "--set",
                                "env.A=b c", "--set", "command=[./train, \"1\"]"});
  ASSERT_OK(options);
  EXPECT_EQ(options->job.elastic().unit(), 2u);
  EXPECT_THAT(options->job.logs().tee(), ElementsAre(0, 1));
  EXPECT_EQ(options->job.env().at("A"), "b c");
  EXPECT_THAT(options->job.command(), ElementsAre("./train", "1"));
  EXPECT_THAT(options->notices, IsEmpty());
}

TEST(SetFlagTest, NamesTheJobAndItsNodesAsTheirFlagsDo) {
  const auto named = Resolve({"--set", "name=a", "--rdzv-id", "b", "x"}, {{"CADRE_JOB_NAME", "c"}});
  EXPECT_EQ(named->job.name(), "a");
  const std::map<std::string, std::string> batch = {{"SLURM_JOB_ID", "9"}, {"SLURM_NNODES", "4"}};
  EXPECT_THAT(Resolve({"--set", "nodes=1", "x"}, batch)->notices, IsEmpty());
  EXPECT_THAT(Resolve({"--set", "nodes=2", "x"}).status().message(), HasSubstr("--rdzv-endpoint"));
}

TEST(SetFlagTest, AFlagThatSaysTheSame_IsNoContradiction) {
  EXPECT_OK(Resolve({"--max-restarts", "2", "--set", "restart.max=2", "x"}));
  EXPECT_OK(
      Resolve({"--max-restarts", "2", "--set", "restart.max=3", "--set", "restart.max=2", "x"}));
  EXPECT_OK(Resolve({"--env", "A=1", "--set", "env.B=2", "--set", "env.A=1", "x"}));
  EXPECT_OK(Resolve({"--in-place", "--set", "restart.in_place=true", "x"}));
}

TEST(SetFlagTest, BadInput_NamesWhatContradictsOrIsWrong) {
  const struct {
    std::vector<std::string> arguments;
    std::string said;
  } kCases[] = {
      {{"--max-restarts", "3", "--set", "restart.max=2", "x"},
       "--max-restarts 3 and --set restart.max=2 contradict each other: leave one of them out"},
      {{"--in-place", "--set", "restart.in_place=false", "x"},
       "--in-place and --set restart.in_place=false contradict each other"},
      {{"--env", "A=1", "--set", "env.A=2", "x"}, "--env A and --set env.A contradict"},
      {{"--job-name", "a", "--set", "name=b", "x"}, "--job-name a and --set name=b contradict"},
      {{"--stop-grace", "1s", "--set", "timeouts.stop_grace=2s", "x"},
       "--stop-grace 1s and --set timeouts.stop_grace=2s contradict"},
      {{"--shutdown-timeout", "3", "--set", "timeouts.stop_grace=5s", "x"},
       "--shutdown-timeout 3 and --set timeouts.stop_grace=5s contradict"},
      {{"--numa-binding", "node", "--set", "placement.bind=none", "x"},
       "--numa-binding node and --set placement.bind=none contradict"},
      {{"--set", "restart.max", "x"}, "--set: expected PATH=VALUE, such as"},
      {{"--set", "restart.maxx=1", "x"}, "--set: unknown path 'restart.maxx'; did you mean"},
      {{"--set", "restart.max=x", "x"}, "--set: 'restart.max': expected a number, got 'x'"},
      {{"--set", "restart=1", "x"}, "--set: 'restart' is a section"},
      {{"--set", "command=[y]", "x"}, "leave 'x' out"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(Resolve(c.arguments),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.said)));
  }
  EXPECT_THAT(Resolve({"x"}, {{"CADRE_SET", "a"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("CADRE_SET: expected PATH")));
}

// Each old flag, with a value that it accepts.
TEST(OldFlagsTest, EachDoesWhatItsNewFormDoes) {
  const std::map<std::string, std::string> values = {
      {"spares", "2"},        {"scale-up", "never"},    {"checkpoint-signal", "USR1"},
      {"working-dir", "a b"}, {"backoff", "2s..3s"},    {"restart-on", "crash, hang,preempted"},
      {"standby", "Yes"},     {"preload", "torch,a.b"}, {"never-exit-codes", "7,9"},
      {"bind", "core"}};
  for (const Flag& flag : RunFlags()) {
    if (!flag.old) continue;
    SCOPED_TRACE(flag.name);
    const auto given = values.find(flag.name);
    const std::string value = flag.value.empty()      ? "1"
                              : given == values.end() ? "42s"
                                                      : given->second;
    std::vector<std::string> old = {"--" + flag.name};
    if (!flag.value.empty()) old.push_back(value);
    old.push_back("x.py");
    const auto before = Resolve(old);
    const auto now = Resolve({"--set", AsSet(flag.name, value), "x.py"});
    ASSERT_OK(before);
    ASSERT_OK(now);
    EXPECT_EQ(now->job.DebugString(), before->job.DebugString());
    EXPECT_NE(now->job.DebugString(), Resolve({"x.py"})->job.DebugString());
    EXPECT_THAT(before->notices, ElementsAre(HasSubstr(absl::StrCat("is now --set "))));
    EXPECT_THAT(now->notices, IsEmpty());
  }
}

TEST(OldFlagsTest, OneLineSaysWhatToWriteInstead) {
  EXPECT_THAT(Resolve({"--progress-timeout", "10m", "x"})->notices,
              ElementsAre("--progress-timeout 10m is now --set timeouts.progress=10m; the old flag "
                          "will be refused from 0.5"));
  EXPECT_THAT(Resolve({"--no-warm", "--settle=1s", "--preload", "a,b", "x"})->notices,
              ElementsAre("--settle 1s, --no-warm and --preload a,b are now --set "
                          "rendezvous.settle=1s --set restart.warm=false --set "
                          "'restart.preload=[a, b]'; the old flags will be refused from 0.5"));
}

// A launcher on a host of --hostfile has them from one that has shown the line.
TEST(OldFlagsTest, VariablesAndLaunchersOfAnother_GetNoLine) {
  EXPECT_THAT(Resolve({"x"}, {{"CADRE_PROGRESS_TIMEOUT", "10m"}})->notices, IsEmpty());
  EXPECT_THAT(Resolve({"--progress-timeout", "10m", "--token-file", "-", "x"})->notices, IsEmpty());
}

TEST(RunOptionsTest, ListsOfTexts) {
  EXPECT_THAT(ParseTexts(""), IsEmpty());
  EXPECT_THAT(ParseTexts("apple"), ElementsAre("apple"));
  EXPECT_THAT(ParseTexts("apple,two words,,and a comma,x"),
              ElementsAre("apple", "two words,and a comma", "x"));
}

TEST(RunOptionsTest, ThePrefixOfLines_ByTorchrunsVariableWhereNoFlagSaysIt) {
  const std::map<std::string, std::string> environment = {
      {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "${rank}>"}};
  EXPECT_EQ(Resolve({"x"}, environment)->output.prefix_template, "${rank}>");
  EXPECT_EQ(Resolve({"--log-line-prefix-template", "<", "x"}, environment)->output.prefix_template,
            "<");
}

TEST(RunOptionsTest, Programs) {
  const struct {
    std::vector<std::string> arguments;
    std::vector<std::string> command;
  } kCases[] = {
      {{"./train", "-x"}, {"./train", "-x"}},
      {{"train.py", "-x"}, {"python3", "-u", "train.py", "-x"}},
      {{"--no-python", "train.py"}, {"train.py"}},
      {{"-m", "pkg.mod", "a"}, {"python3", "-u", "-m", "pkg.mod", "a"}},
      {{"--module", "pkg.mod"}, {"python3", "-u", "-m", "pkg.mod"}},
      {{"--", "-odd"}, {"-odd"}},
  };
  for (const auto& c : kCases) {
    const auto options = Resolve(c.arguments);
    ASSERT_OK(options);
    EXPECT_EQ(
        std::vector<std::string>(options->job.command().begin(), options->job.command().end()),
        c.command);
  }
  EXPECT_EQ(Resolve({"a.py"}, {{"PYTHON_EXEC", "/opt/py"}})->job.command(0), "/opt/py");
  // The job's variables override those of this command.
  const auto own = Resolve({"--env", "PYTHON_EXEC=/own/py", "a.py"}, {{"PYTHON_EXEC", "/opt/py"}});
  EXPECT_EQ(own->job.command(0), "/own/py");
  // The interpreter of an active virtual environment, also for cadre submit, which calls
  // BuildCommand().
  const std::string active = testing::TempDir() + "/active_environment";
  std::filesystem::create_directories(active + "/bin");
  std::ofstream(active + "/bin/python3") << "";
  EXPECT_EQ(Resolve({"a.py"}, {{"VIRTUAL_ENV", active}})->job.command(0), active + "/bin/python3");
  EXPECT_EQ(Resolve({"a"}, {{"PET_MODULE", "1"}})->job.command(2), "-m");
}

// As with mpirun -x.
TEST(RunOptionsTest, VariablesByTheirNames) {
  const auto options = Resolve({"--env", "DATA", "--env", "DEBUG=1", "x"}, {{"DATA", "/d=1"}});
  ASSERT_OK(options);
  EXPECT_EQ(options->job.env().at("DATA"), "/d=1");
  EXPECT_EQ(options->job.env().at("DEBUG"), "1");
  const absl::Status absent = Resolve({"--env", "DATA", "x"}).status();
  EXPECT_TRUE(absl::StrContains(absent.message(), "a variable that is set here, got 'DATA'"))
      << absent;
}

TEST(RunOptionsTest, OneNode_NeedsNoEndpoint) {
  EXPECT_TRUE(Resolve({"x"})->endpoints.empty());
  EXPECT_TRUE(Resolve({"--standalone", "x"})->endpoints.empty());
  EXPECT_TRUE(Resolve({"--standalone", "--nnodes", "1:4", "x"})->endpoints.empty());
  EXPECT_EQ(Resolve({"--master-port", "1234", "x"})->master_port, 1234u);
}

TEST(RunOptionsTest, Standalone_SaysWhichFlagsHaveNoEffect) {
  const auto options = Resolve({"--standalone", "--token-file", "t", "x"});
  ASSERT_OK(options);
  EXPECT_THAT(options->notices, ElementsAre(HasSubstr("--token-file has no effect here")));
  EXPECT_TRUE(Resolve({"--standalone", "--http", "0", "--token-file", "t", "x"})->notices.empty());
  EXPECT_TRUE(Resolve({"--standalone", "x"}, {{"CADRE_TOKEN_FILE", "t"}})->notices.empty());
}

TEST(RunOptionsTest, StaticBackend_UsesMasterAddr) {
  const auto options = Resolve({"--nnodes", "2", "--node-rank", "0", "--master-addr", "10.0.0.1",
                                "--master-port", "29501", "x"});
  ASSERT_OK(options);
  EXPECT_EQ(options->endpoints[0].host, "10.0.0.1");
  EXPECT_EQ(options->endpoints[0].port, 29501);
  EXPECT_EQ(options->node_rank, 0);
  EXPECT_EQ(options->master_addr, "");
  EXPECT_THAT(options->notices, ElementsAre(HasSubstr("workers get another MASTER_PORT")));
}

TEST(RunOptionsTest, SeveralEndpoints_ServeNoneWithoutEtcd) {
  auto options = Resolve({"--nnodes", "2", "--rdzv-endpoint", "a:1,b:2", "x"});
  ASSERT_OK(options);
  ASSERT_EQ(options->endpoints.size(), 2u);
  EXPECT_EQ(options->endpoints[1].host, "b");
  ASSERT_EQ(options->notices.size(), 1u);
  EXPECT_THAT(options->notices[0], HasSubstr("no --etcd"));
  options = Resolve({"--nnodes", "2", "--rdzv-endpoint", "a:1,b:2", "--etcd", "c", "x"});
  ASSERT_OK(options);
  EXPECT_TRUE(options->notices.empty());
}

TEST(RunOptionsTest, AdoptTimeout_IsOffUnlessAskedFor) {
  EXPECT_EQ(Resolve({"x"})->adopt_timeout, absl::ZeroDuration());
  EXPECT_EQ(Resolve({"x"}, {{"CADRE_ADOPT_TIMEOUT", "1m"}})->adopt_timeout, absl::Minutes(1));
  EXPECT_THAT(Resolve({"--adopt-timeout", "25h", "x"}).status().message(),
              HasSubstr("--adopt-timeout: expected at most 24h"));
  EXPECT_THAT(Resolve({"--adopt-timeout", "1m", "--in-place", "x"}).status().message(),
              HasSubstr("--in-place"));
}

TEST(RunOptionsTest, AgentStore_IsLeftOpenUnlessSaid) {
  EXPECT_FALSE(Resolve({"x"})->job.has_agent_store());
  const auto none = Resolve({"--no-agent-store", "x"});
  EXPECT_TRUE(none->job.has_agent_store() && !none->job.agent_store());
  EXPECT_TRUE(Resolve({"x"}, {{"CADRE_NO_AGENT_STORE", "1"}})->job.has_agent_store());
  const v1::JobSpec spec = *ReadSpec("command: [x]\nagent_store: false\n", "f");
  EXPECT_TRUE(Resolve({}, {}, spec)->job.has_agent_store());
}

TEST(RunOptionsTest, Encrypt_IsTheFlagsTheVariablesOrTheSpecs) {
  EXPECT_FALSE(Resolve({"x"})->job.encrypt());
  EXPECT_TRUE(Resolve({"--encrypt", "x"})->job.encrypt());
  EXPECT_TRUE(Resolve({"x"}, {{"CADRE_ENCRYPT", "1"}})->job.encrypt());
  EXPECT_THAT(Resolve({"--encrypt", "--insecure", "x"}).status().message(),
              HasSubstr("--encrypt does not go with --insecure"));
  const v1::JobSpec spec = *ReadSpec("command: [x]\nencrypt: true\n", "f");
  EXPECT_TRUE(Resolve({}, {}, spec)->job.encrypt());
}

TEST(RunOptionsTest, Standby_IsLeftOpenUnlessSaid) {
  EXPECT_FALSE(Resolve({"--in-place", "x"})->job.restart().has_standby());
  EXPECT_TRUE(Resolve({"--standby", "yes", "x"})->job.restart().standby());
  const auto none = Resolve({"--in-place", "x"}, {{"CADRE_STANDBY", "no"}});
  EXPECT_TRUE(none->job.restart().has_standby() && !none->job.restart().standby());
  EXPECT_THAT(Resolve({"--standby", "two", "x"}).status().message(), HasSubstr("--standby"));
  EXPECT_THAT(Resolve({"--standby", "yes", "--adopt-timeout", "1m", "x"}).status().message(),
              HasSubstr("do not go together"));
}

TEST(RunOptionsTest, WarmStart_IsOnUnlessSaid) {
  EXPECT_FALSE(Resolve({"x.py"})->job.restart().has_warm());
  const auto cold = Resolve({"--no-warm", "x.py"});
  EXPECT_TRUE(cold->job.restart().has_warm() && !cold->job.restart().warm());
  EXPECT_THAT(Resolve({"--preload", "torch,scipy.linalg", "x.py"})->job.restart().preload(),
              testing::ElementsAre("torch", "scipy.linalg"));
}

TEST(RunOptionsTest, StrictFencing_IsOffUnlessAskedFor) {
  EXPECT_FALSE(Resolve({"x"})->strict_fencing);
  EXPECT_TRUE(Resolve({"--strict-fencing", "x"})->strict_fencing);
}

TEST(RunOptionsTest, WhatTheVariableTellsATorchrunBeneathIsAcceptedHere) {
  const auto options = Resolve({"--standalone", "x"}, {{"PET_RDZV_BACKEND", "cadre"}});
  ASSERT_OK(options);
  EXPECT_THAT(options->notices, IsEmpty());
}

TEST(RunOptionsTest, BadInput_NamesTheFlagAndWhatIsExpected) {
  const struct {
    std::vector<std::string> arguments;
    std::vector<std::string> said;
  } kCases[] = {
      {{}, {"program is missing"}},
      {{"--nproc-per-node", "two", "x"}, {"--nproc-per-node", "'two'", "gpu, cpu or auto"}},
      {{"--nnodes", "2", "x"},
       {"the job has 2 nodes, but no endpoint at which they meet", "--rdzv-endpoint"}},
      {{"--nnodes", "4:2", "x"}, {"--nnodes", "2..4"}},
      {{"--standalone", "--nnodes", "2", "x"}, {"--standalone"}},
      {{"--rdzv-endpoint", "h:99999", "x"}, {"--rdzv-endpoint", "99999"}},
      {{"--rdzv-backend", "zeus", "x"}, {"--rdzv-backend", "c10d"}},
      {{"--rdzv-conf", "join_timeout", "x"}, {"--rdzv-conf", "KEY=VALUE"}},
      {{"--rdzv-conf", "join_timeout=soon", "x"}, {"--rdzv-conf", "seconds"}},
      {{"--join-timeout", "10", "x"}, {"--join-timeout", "90s"}},
      {{"--env", "A", "x"}, {"--env", "NAME=VALUE"}},
      {{"--env", "WORLD_SIZE=1", "x"}, {"--env", "'WORLD_SIZE'", "leave it out"}},
      {{"--checkpoint-signal", "KILL", "x"}, {"--checkpoint-signal", "can catch", "'KILL'"}},
      {{"--preload", "a b", "x"}, {"--preload", "module", "'a b'"}},
      {{"--standby", "maybe", "x"}, {"--standby", "yes or no", "'maybe'"}},
      {{"--env-style", "pbs", "x"}, {"--env-style", "slurm, mpi"}},
      {{"-r", "4", "x"}, {"--redirects", "0 to 3"}},
      {{"-t", "1,2", "x"}, {"--tee"}},
      {{"--job-name", "Bad_Name", "x"}, {"--job-name", "small letters"}},
      {{"-m", "--no-python", "x"}, {"--module", "--no-python"}},
      {{"-m", "--run-path", "x"}, {"--module", "--run-path"}},
      {{"--logs-specs", "mine", "x"}, {"--logs-specs", "default", "'mine'"}},
      {{"--master-port", "0", "x"}, {"--master-port"}},
      {{"--bind", "socket", "x"}, {"--bind", "numa"}},
      {{"--numa-binding", "x", "x"}, {"--numa-binding", "node, socket", "'x'"}},
      {{"--never-exit-codes", "300", "x"}, {"--never-exit-codes", "1 to 255", "'300'"}},
      {{"--never-exit-codes", ",", "x"}, {"--never-exit-codes", "1 to 255"}},
      {{"--max-restarts", "99999999999", "x"}, {"--max-restarts", "0 to 4294967295"}},
      {{"--rdzv-endpoint", "http://127.0.0.1:33", "x"}, {"--rdzv-endpoint", "malformed"}},
      {{"--local-addr", "x y", "x"}, {"--local-addr", "host's name or address", "x y"}},
      {{"--role", "a\nb", "x"}, {"--role", "one line"}},
      {{"--start-timeout", "0s", "x"}, {"--start-timeout", "more than 0", "'0s'"}},
      {{"--join-timeout", "0s", "x"}, {"--join-timeout", "more than 0"}},
      {{"--restart-window", "0s", "x"}, {"--restart-window", "more than 0"}},
      {{""}, {"the program is empty"}},
      {{"", "x"}, {"the program is empty"}},
  };
  for (const auto& c : kCases) {
    const auto options = Resolve(c.arguments);
    ASSERT_FALSE(options.ok()) << c.arguments[0];
    for (const std::string& text : c.said) {
      EXPECT_THAT(options, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
    }
  }
  EXPECT_THAT(Resolve({"x"}, {{"PET_NNODES", "many"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("PET_NNODES")));
  EXPECT_THAT(Resolve({"x"}, {{"PET_STANDALONE", "maybe"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("PET_STANDALONE")));
}

// As in a manifest, where no shell removes them.
TEST(RendezvousFlagsTest, QuotesInConf_AreNotPartOfIt) {
  for (const char* conf : {"'join_timeout=90,last_call_timeout=5'", "\"join_timeout=90\"",
                           "join_timeout=\"90\"", "'join_timeout'='90'", "join_timeout='90',a=b"}) {
    const auto options = Resolve({"--rdzv-conf", conf, "x"});
    ASSERT_OK(options);
    EXPECT_EQ(options->job.rendezvous().join_timeout().seconds(), 90) << conf;
  }
}

TEST(RendezvousFlagsTest, PortZero_IsForAJobOfOneNodeOnly) {
  for (const char* endpoint : {"localhost:0", "[::1]:0"}) {
    const auto one = Resolve({"--rdzv-endpoint", endpoint, "--rdzv-backend", "c10d", "train"});
    ASSERT_OK(one);
    EXPECT_THAT(one->endpoints, IsEmpty());
    EXPECT_THAT(Resolve({"--rdzv-endpoint", endpoint, "--nnodes", "1:2", "train"}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("for 1 to 2 nodes")));
  }
}

TEST(RendezvousFlagsTest, ANodeRankOutOfRange_IsRefused) {
  const std::vector<std::string> two = {"--nnodes", "2", "--rdzv-endpoint", "head", "--node-rank"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), two.begin(), two.end());
    return Resolve(more);
  };
  EXPECT_OK(with({"1", "train"}));
  EXPECT_OK(with({"2", "--spares", "1", "train"}));
  EXPECT_THAT(with({"2", "train"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--node-rank: expected a rank from 0 to 1 of 2 nodes, got '2'"));
}

TEST(RendezvousFlagsTest, Identity_FillsWhatFlagsLeaveOpen) {
  Identity slurm;
  slurm.source = "Slurm";
  slurm.nodes = 2;
  slurm.node_rank = 1;
  slurm.node_name = "n2";
  slurm.node_names = {"n1", "n2"};
  slurm.endpoint_host = "n1";
  slurm.endpoint_port = 23456;
  slurm.job_name = "slurm-17-0";
  auto options = Resolve({"x"}, {}, std::nullopt, slurm);
  ASSERT_OK(options);
  EXPECT_EQ(options->job.nodes().min(), 2u);
  EXPECT_EQ(options->endpoints[0].host, "n1");
  EXPECT_EQ(options->endpoints[0].port, 23456);
  EXPECT_EQ(options->job.name(), "slurm-17-0");
  EXPECT_THAT(options->expected_nodes, ElementsAre("n1", "n2"));
  options = Resolve({"--nnodes", "1:2", "--rdzv-endpoint", "other", "x"}, {}, std::nullopt, slurm);
  ASSERT_OK(options);
  EXPECT_EQ(options->job.nodes().min(), 1u);
  EXPECT_EQ(options->endpoints[0].host, "other");
  // Slurm's list does not override --standalone.
  EXPECT_TRUE(Resolve({"--standalone", "x"}, {}, std::nullopt, slurm)->endpoints.empty());
}

// A pod with an index, or ranks of an mpirun: one of several, and never a job of its own.
//
// Fault (input): The number of nodes cannot be determined, for instance from a pod's index -> The
// launcher ends with an error that names the variables
TEST(RendezvousFlagsTest, AnUnknownNumberOfNodes_IsNotOne) {
  Identity pod;
  pod.source = "Kubernetes";
  pod.node_rank = 0;
  pod.nodes_hint = "this is pod 0";
  EXPECT_THAT(
      Resolve({"x"}, {}, std::nullopt, pod),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("this is pod 0: add --nnodes N"), HasSubstr("--standalone"))));
  EXPECT_OK(Resolve({"--standalone", "x"}, {}, std::nullopt, pod));
  EXPECT_OK(Resolve({"--nnodes", "2", "--rdzv-endpoint", "head", "x"}, {}, std::nullopt, pod));
  v1::JobSpec spec;
  spec.mutable_nodes()->set_min(1);
  spec.mutable_nodes()->set_max(1);
  EXPECT_OK(Resolve({"x"}, {}, spec, pod));
  pod.node_rank = 1;
  EXPECT_THAT(Resolve({"x"}, {}, spec, pod),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("asks for 1 node, but Kubernetes says that this is node 1"),
                             HasSubstr("--standalone"))));
  EXPECT_THAT(Resolve({"--nnodes", "1", "--rdzv-endpoint", "head", "x"}, {}, std::nullopt, pod),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("says that this is node 1")));
}

// A batch script runs on the first of its job's nodes: a job meant for all of them must not train
// there alone without a notice.
TEST(RendezvousFlagsTest, AloneInAJobOfSeveralNodesOfSlurms_IsSaid) {
  const std::map<std::string, std::string> batch = {{"SLURM_JOB_ID", "9"}, {"SLURM_NNODES", "4"}};
  const auto alone = Resolve({"x"}, batch);
  ASSERT_OK(alone);
  EXPECT_THAT(alone->notices, ElementsAre(HasSubstr("SLURM_NNODES is 4")));
  EXPECT_THAT(Resolve({"--nnodes", "1", "x"}, batch)->notices, IsEmpty());
  EXPECT_THAT(Resolve({"--standalone", "x"}, batch)->notices, IsEmpty());
  EXPECT_THAT(Resolve({"x"}, {{"SLURM_NNODES", "1"}})->notices, IsEmpty());
}

TEST(RendezvousFlagsTest, TheNodesOfALaunch_AreToldWhereItServes) {
  Identity slurm;
  slurm.source = "Slurm";
  slurm.nodes = 2;
  slurm.endpoint_host = "n1";
  slurm.launch = "slurm-17.0";
  EXPECT_TRUE(Resolve({"x"}, {}, std::nullopt, slurm)->by_board);
  // A home directory that they may not share, or a server that the user named.
  EXPECT_FALSE(Resolve({"--token-file", "t", "x"}, {}, std::nullopt, slurm)->by_board);
  EXPECT_FALSE(Resolve({"--rdzv-endpoint", "head", "x"}, {}, std::nullopt, slurm)->by_board);
}

TEST(RendezvousFlagsTest, StandaloneThatIsSetToNo_IsNotGiven) {
  Identity slurm;
  slurm.nodes = 2;
  slurm.endpoint_host = "n1";
  for (const char* no : {"0", "no", "false"}) {
    const auto options = Resolve({"x"}, {{"CADRE_STANDALONE", no}}, std::nullopt, slurm);
    ASSERT_OK(options);
    EXPECT_EQ(options->job.nodes().min(), 2u);
    EXPECT_EQ(options->endpoints.size(), 1u);
  }
}

TEST(RendezvousFlagsTest, VariablesThatAreNotForFlags_SetNone) {
  const std::map<std::string, std::string> set = {{"CADRE_TOKEN_FILE", "/t"},
                                                  {"CADRE_ENCRYPT", "1"}};
  EXPECT_EQ(Resolve({"x"}, set)->token_file, "/t");
  EXPECT_TRUE(Resolve({"x"}, set)->job.encrypt());
  std::map<std::string, std::string> of_a_worker = set;
  of_a_worker["CADRE_AGENT"] = "/socket";
  EXPECT_EQ(Resolve({"x"}, of_a_worker)->token_file, "");
  EXPECT_FALSE(Resolve({"x"}, of_a_worker)->job.encrypt());
  EXPECT_EQ(Resolve({"--token-file", "/t", "x"}, of_a_worker)->token_file, "/t");
  EXPECT_EQ(Resolve({"x"}, {{"CADRE_MASTER_PORT", "1234"}})->master_port, 1234u);
  EXPECT_EQ(Resolve({"x"}, {{"CADRE_MASTER_PORT", "tcp://10.0.0.1:29400"}})->master_port, 0u);
}

// Computed by: printf My_Job | openssl dgst -sha256 -hmac 'cadre rdzv-id'.
TEST(RendezvousFlagsTest, RendezvousIds_ThatDifferAreDifferentJobs) {
  const auto name = [](const std::string& id) {
    return Resolve({"--rdzv-id", id, "x"})->job.name();
  };
  EXPECT_EQ(name("my-job"), "my-job");
  EXPECT_EQ(name("4711"), "4711");
  EXPECT_EQ(name("My_Job"), "my-job-6bd555e6");
  const std::string prefix(70, 'x');
  const std::set<std::string> names = {name("my_job"), name("my.job"),     name("MY-JOB"),
                                       name("___"),    name(prefix + "1"), name(prefix + "2")};
  EXPECT_EQ(names.size(), 6u);
  for (const std::string& one : names) EXPECT_LE(one.size(), 63u);
  EXPECT_EQ(Resolve({"--rdzv-id=", "/bin/true"})->job.name(), "true");
}

TEST(RendezvousFlagsTest, JobNames_ComeFromTheProgram) {
  EXPECT_EQ(Resolve({"/a/b/Train_1.py"})->job.name(), "train-1");
  EXPECT_EQ(Resolve({"/bin/true"})->job.name(), "true");
  EXPECT_EQ(JobNameFrom("___"), "job");
  EXPECT_EQ(JobNameFrom(std::string(100, 'x')).size(), 63u);
}

}  // namespace
}  // namespace cadre::launcher
