#include "launcher/flags/run_options.h"

#include <signal.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "launcher/flags/job_flags.h"
#include "launcher/flags/resolve_for_test.h"
#include "launcher/flags/run_flags.h"
#include "launcher/spec/reader.h"

namespace cadre::launcher {
namespace {

using for_test::Resolve;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// A line each: the flag, and a value it takes.
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

// But those that contradict each other.
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
  // PET_ is torchrun's: our own flags do not listen to it.
  EXPECT_EQ(Resolve({"x"}, {{"PET_SPARES", "2"}})->job.spares(), 0u);
  EXPECT_EQ(Resolve({"x"}, {{"CADRE_SPARES", "2"}})->job.spares(), 2u);
}

// Whoever needs minutes to save has said so to torchrun by one of these.
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
  EXPECT_EQ(std::count_if(flags.begin(), flags.end(), [](const Flag& f) { return f.everyday; }),
            15);
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
  // The job's own counts before this command's.
  const auto own = Resolve({"--env", "PYTHON_EXEC=/own/py", "a.py"}, {{"PYTHON_EXEC", "/opt/py"}});
  EXPECT_EQ(own->job.command(0), "/own/py");
  // That of an active virtual environment, for cadre submit, too, which calls BuildCommand().
  const std::string active = testing::TempDir() + "/active_environment";
  std::filesystem::create_directories(active + "/bin");
  std::ofstream(active + "/bin/python3") << "";
  EXPECT_EQ(Resolve({"a.py"}, {{"VIRTUAL_ENV", active}})->job.command(0), active + "/bin/python3");
  EXPECT_EQ(Resolve({"a"}, {{"PET_MODULE", "1"}})->job.command(2), "-m");
}

// As mpirun -x has it.
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
      {{"--nnodes", "2", "x"}, {"2 nodes", "--rdzv-endpoint"}},
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

}  // namespace
}  // namespace cadre::launcher
