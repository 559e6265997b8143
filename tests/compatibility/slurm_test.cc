// Cadre inside a real Slurm cluster of two nodes. Needs root, slurm-wlm and munge; skipped without.
#include <pwd.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/documented_commands.h"
#include "tests/testing/launch.h"
#include "tests/testing/slurm_fixture.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr absl::Duration kTimeout = absl::Minutes(5);

class SlurmTest : public SlurmFixture {
 protected:
  static void SetUpTestSuite() {
    cadre_ = std::filesystem::absolute(kCadre);
    probe_ = std::filesystem::absolute(kProbe);
    documentation_ = std::filesystem::absolute("docs/from_srun.md");
    script_ = std::filesystem::absolute("tests/compatibility/slurm_script.py");
    SlurmFixture::SetUpTestSuite();
  }

  static std::unique_ptr<Process> Srun(int tasks_per_node,
                                       const std::vector<std::string>& command) {
    std::vector<std::string> argv = {"srun", "-N2",
                                     absl::StrCat("--ntasks-per-node=", tasks_per_node)};
    argv.insert(argv.end(), command.begin(), command.end());
    return cluster_->Run(argv);
  }

  // Submits what `cadre slurm script` makes of a spec; the job's number.
  static std::string Submit(const std::string& name, const std::string& spec) {
    const std::string path = absl::StrCat(cluster_->directory(), "/", name);
    std::ofstream(path + ".yaml") << "name: " << name << "\n" << spec;
    const auto script = cluster_->Run({cadre_, "slurm", "script", name + ".yaml"});
    EXPECT_EQ(script->Wait(), 0) << OutputOf(*script);
    std::ofstream(path + ".sh") << script->standard_output();
    return Submitted(path + ".sh");
  }
  static std::unique_ptr<Process> SubmitThere(const std::string& name, const std::string& spec,
                                              const std::vector<std::string>& flags);
  static std::string Submitted(const std::string& script) {
    std::string number = cluster_->Ask({"sbatch", "--parsable", script});
    absl::StripTrailingAsciiWhitespace(&number);
    return number;
  }

  // A program that stands for `cadre`, which `script` has as $cadre.
  static std::string Wrapper(const std::string& name, const std::string& script) {
    const std::string path = absl::StrCat(cluster_->directory(), "/", name, ".wrapper");
    std::ofstream(path) << "#!/bin/bash\ncadre=" << cadre_ << "\n" << script;
    chmod(path.c_str(), 0755);
    return path;
  }
  static std::string SecondWaitsForTheFirst(const std::string& name) {
    return Wrapper(name, absl::StrCat(R"(
[ "$SLURM_NODEID" = 1 ] && while [ ! -e )",
                                      name, R"(.over ]; do sleep 0.1; done
"$cadre" "$@"
status=$?
[ "$SLURM_PROCID" != 0 ] || touch )",
                                      name, ".over\nexit $status\n"));
  }
  // As Submit, with a program in the place of `cadre`.
  static std::string SubmitWith(const std::string& program, const std::string& name,
                                const std::string& spec) {
    const std::string path = absl::StrCat(cluster_->directory(), "/", name);
    std::ofstream(path + ".yaml") << "name: " << name << "\n" << spec;
    const auto script = cluster_->Run({cadre_, "slurm", "script", name + ".yaml"});
    EXPECT_EQ(script->Wait(), 0) << OutputOf(*script);
    std::string text = script->standard_output();
    const size_t end = text.find("' run ");
    const size_t begin = text.rfind('\'', end - 1);
    EXPECT_NE(end, text.npos) << text;
    std::ofstream(path + ".sh") << text.replace(begin, end + 1 - begin, program);
    return Submitted(path + ".sh");
  }

  // What the batch job and its launchers have said, once that contains `text`.
  static std::string SaidBy(const std::string& job, const std::string& text) {
    const std::string path = absl::StrCat(cluster_->directory(), "/slurm-", job, ".out");
    const absl::Time until = absl::Now() + kTimeout;
    while (!absl::StrContains(ReadFileOrEmpty(path), text) && absl::Now() < until) {
      absl::SleepFor(absl::Milliseconds(50));
    }
    EXPECT_THAT(ReadFileOrEmpty(path), HasSubstr(text));
    return ReadFileOrEmpty(path);
  }

  static std::string StateOf(const std::string& job, const std::string& expected) {
    return cluster_->AskUntil({"scontrol", "show", "job", job}, expected, kTimeout);
  }

  // The lines of what a file says that contain `text`.
  static std::vector<std::string> LinesOf(const std::string& content, absl::string_view text) {
    std::vector<std::string> lines;
    for (const absl::string_view line : absl::StrSplit(content, '\n')) {
      if (absl::StrContains(line, text)) lines.emplace_back(line);
    }
    return lines;
  }

  static std::vector<std::string> TokensInHome() {
    std::vector<std::string> left;
    std::error_code error;
    for (const auto& entry :
         std::filesystem::directory_iterator(cluster_->directory() + "/.cadre", error)) {
      if (entry.path().extension() == ".token") left.push_back(entry.path().filename());
    }
    return left;
  }

  static std::string cadre_, probe_, script_, documentation_;
};
std::string SlurmTest::cadre_, SlurmTest::probe_, SlurmTest::script_, SlurmTest::documentation_;

TEST_F(SlurmTest, OneTaskPerNode_NeedsNoRendezvousFlag) {
  const auto srun = Srun(1, {cadre_, "run", "--nproc-per-node", "2", probe_, "--exit", "0"});
  EXPECT_EQ(srun->Wait(kTimeout), 0) << OutputOf(*srun);
  const std::string& out = srun->standard_output();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(out, HasSubstr(absl::StrCat("probe rank=", rank, " local=", rank % 2,
                                            " world=4 node=", rank / 2, " generation=1")));
  }
  // The token that the nodes shared is gone.
  EXPECT_THAT(TokensInHome(), IsEmpty());
}

TEST_F(SlurmTest, OneTaskPerWorker_OneOfEachNodeWorksAndAllEndAlike) {
  auto srun = Srun(2, {cadre_, "run", probe_, "--exit", "0"});
  EXPECT_EQ(srun->Wait(kTimeout), 0) << OutputOf(*srun);
  EXPECT_EQ(LinesOf(srun->standard_output(), "probe rank=").size(), 4u) << OutputOf(*srun);
  srun = Srun(2, {"--label", cadre_, "run", probe_, "--exit", "3", "--rank", "3"});
  EXPECT_EQ(srun->Wait(kTimeout), 3) << OutputOf(*srun);
  // srun tells of each task how it ended.
  EXPECT_THAT(srun->standard_error(), HasSubstr("tasks 0-1: Exited with exit code 3"))
      << OutputOf(*srun);
}

TEST_F(SlurmTest, AnotherSizeThanTheJobs_IsRefusedOnEveryNode) {
  const auto srun = Srun(1, {cadre_, "run", "--nnodes", "3", probe_});
  EXPECT_EQ(srun->Wait(kTimeout), 64) << OutputOf(*srun);
  EXPECT_THAT(srun->standard_error(),
              HasSubstr("the job asks for 3 nodes, but Slurm runs this on 2"));
}

TEST_F(SlurmTest, WorkerKilled_TheNextGenerationRuns) {
  const auto srun =
      Srun(1, {cadre_, "run", "--max-restarts", "1", probe_, "--exit", "0", "--generation", "2"});
  const std::vector<ProbeLine> first = NextProbes(*srun, 2, kTimeout);
  ASSERT_EQ(first.size(), 2u) << OutputOf(*srun);
  kill(first[1].pid, SIGKILL);
  EXPECT_EQ(srun->Wait(kTimeout), 0) << OutputOf(*srun);
  EXPECT_EQ(LinesOf(srun->standard_output(), "generation=2").size(), 2u) << OutputOf(*srun);
}

TEST_F(SlurmTest, SlurmStyleScript_RunsUnderSrunAndUnderCadre) {
  const auto training = [&](const std::string& name, const std::string& command) {
    const std::string path = absl::StrCat(cluster_->directory(), "/", name);
    std::ofstream(path + ".sh") << "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=2 --output="
                                << path << ".out\n"
                                << command << "\n";
    StateOf(Submitted(path + ".sh"), "JobState=COMPLETED");
    return ReadFileOrEmpty(path + ".out");
  };
  const std::string checkpoint = cluster_->directory() + "/model.pt";
  const std::string under_srun = training(
      "srun", absl::StrCat("srun --ntasks-per-node=2 /usr/bin/python3 ", script_, " ", checkpoint));
  const std::string under_cadre =
      training("cadre", absl::StrCat("PYTHON_EXEC=/usr/bin/python3 srun --ntasks-per-node=2 ",
                                     cadre_, " run ", script_, " ", checkpoint));
  for (const std::string& said : {under_srun, under_cadre}) {
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_THAT(said, HasSubstr(absl::StrCat("rank ", rank, " of 4, node ", rank / 2,
                                               ", local rank ", rank % 2)));
    }
    EXPECT_THAT(said, HasSubstr("total time"));
  }
  // The same training: the loss is the same.
  const std::vector<std::string> losses = LinesOf(under_srun, "epoch 1 loss");
  ASSERT_EQ(losses.size(), 1u) << under_srun;
  EXPECT_THAT(under_cadre, HasSubstr(losses[0]));
}

// Every command of docs/from_srun.md.
TEST_F(SlurmTest, DocumentedCommands_Train) {
  WriteDocumentedFiles(cluster_->directory());
  for (const std::string& command : DocumentedCommands(documentation_)) {
    const auto shell = cluster_->Run({"bash", "-c", command}, {{"PATH", PathWith(cadre_)}});
    EXPECT_EQ(shell->Wait(kTimeout), 0) << command << "\n" << OutputOf(*shell);
    std::string said = shell->standard_output();
    if (absl::StartsWith(command, "srun")) {
      EXPECT_EQ(LinesOf(said, "of 4").size(), 4u) << command;
    }
    if (absl::StrContains(command, "--follow")) {
      EXPECT_THAT(said, HasSubstr("trained 3 of 4")) << command;
    }
    if (!absl::StartsWith(command, "sbatch")) continue;
    const size_t number = said.find_last_of(' ') + 1;
    said = SaidBy(said.substr(number, said.find_last_not_of('\n') + 1 - number), "trained 3 of 4");
  }
}

// Writes the spec `name`.yaml and starts `cadre submit --slurm` with it.
std::unique_ptr<Process> SlurmTest::SubmitThere(const std::string& name, const std::string& spec,
                                                const std::vector<std::string>& flags) {
  std::ofstream(absl::StrCat(cluster_->directory(), "/", name, ".yaml")) << "name: " << name << "\n"
                                                                         << spec;
  std::vector<std::string> argv = {cadre_, "submit", "--slurm", name + ".yaml"};
  argv.insert(argv.end(), flags.begin(), flags.end());
  return cluster_->Run(argv);
}

TEST_F(SlurmTest, SubmitAndFollow_OutputAndVerdictOfAJobThatSucceeds) {
  const auto submit = SubmitThere(
      "fine", "nodes: 2\ncommand: [sh, -c, \"echo rank $RANK of $WORLD_SIZE\"]\n", {"--follow"});
  EXPECT_EQ(submit->Wait(kTimeout), 0) << OutputOf(*submit);
  EXPECT_THAT(submit->standard_output(),
              AllOf(HasSubstr("submitted fine as Slurm job "), HasSubstr("logs/fine/job.sh"),
                    HasSubstr("rank 0 of 2"), HasSubstr("rank 1 of 2")));
  EXPECT_THAT(submit->standard_error(), HasSubstr("(fine) succeeded: "));
}

TEST_F(SlurmTest, SubmitAndFollow_AFailedJobsStatusAndVerdict) {
  const auto submit =
      SubmitThere("broken", "nodes: 2\ncommand: [sh, -c, \"exit 7\"]\n", {"--follow"});
  EXPECT_EQ(submit->Wait(kTimeout), 7) << OutputOf(*submit);
  EXPECT_THAT(submit->standard_error(),
              AllOf(HasSubstr("(broken) failed: "), HasSubstr("exited with status 7")));
}

TEST_F(SlurmTest, Submit_PrintsTheNumberAndSbatchsRefusal) {
  const auto number = SubmitThere("counted", "command: [\"true\"]\n", {"--output", "json"});
  EXPECT_EQ(number->Wait(kTimeout), 0) << OutputOf(*number);
  EXPECT_THAT(number->standard_output(), AllOf(HasSubstr("\"slurm_job\":\""),
                                               HasSubstr("\"script\":\"logs/counted/job.sh\"")));
  const auto refused =
      SubmitThere("refused", "command: [\"true\"]\nslurm: {partition: nowhere}\n", {"--follow"});
  EXPECT_EQ(refused->Wait(kTimeout), 69) << OutputOf(*refused);
  EXPECT_THAT(refused->standard_error(),
              AllOf(HasSubstr("cadre: sbatch refused the job: "), HasSubstr("nvalid partition")));
  EXPECT_EQ(LinesOf(refused->standard_error(), "cadre: ").size(), 1u) << OutputOf(*refused);
  const auto without =
      cluster_->Run({cadre_, "submit", "--slurm", "counted.yaml"}, {{"PATH", "/nowhere"}});
  EXPECT_EQ(without->Wait(kTimeout), 69) << OutputOf(*without);
  EXPECT_THAT(without->standard_error(), HasSubstr("cadre: there is no sbatch on PATH"));
}

// It waits for a node that is busy; Ctrl-C leaves it alone; it ends without a verdict.
TEST_F(SlurmTest, Follow_PendingThenLeftThenCancelled) {
  const auto blocker = Srun(1, {"--exclusive", "sleep", "600"});
  EXPECT_THAT(cluster_->AskUntil({"squeue", "-h", "-o", "%T"}, "RUNNING", kTimeout),
              HasSubstr("RUNNING"));
  const auto submit = SubmitThere("waits", "nodes: 2\ncommand: [\"true\"]\n", {"--follow"});
  EXPECT_TRUE(submit->WaitForLine(" is pending: Resources", kTimeout)) << OutputOf(*submit);
  submit->Kill(SIGINT);
  EXPECT_EQ(submit->Wait(kTimeout), 130) << OutputOf(*submit);
  const std::vector<std::string> left = LinesOf(submit->standard_error(), "scancel ");
  ASSERT_EQ(left.size(), 1u) << OutputOf(*submit);
  constexpr absl::string_view kAgain = "cadre slurm follow ";
  ASSERT_THAT(left[0], HasSubstr(std::string(kAgain)));
  const std::string job = left[0].substr(left[0].find(kAgain.data()) + kAgain.size());
  EXPECT_THAT(StateOf(job, "JobState=PENDING"), HasSubstr("JobState=PENDING"));

  const auto again = cluster_->Run({cadre_, "slurm", "follow", job});
  EXPECT_TRUE(again->WaitForLine(" is pending: Resources", kTimeout)) << OutputOf(*again);
  cluster_->Ask({"scancel", job});
  EXPECT_EQ(again->Wait(kTimeout), 143) << OutputOf(*again);
  EXPECT_THAT(again->standard_error(),
              AllOf(HasSubstr("(waits) ended: CANCELLED"), HasSubstr("Cadre left no verdict")));
  cluster_->Ask({"scancel", "--user=root"});
  blocker->Wait(kTimeout);
}

TEST_F(SlurmTest, Follow_AJobThatSlurmDoesNotKnow) {
  const auto follow = cluster_->Run({cadre_, "slurm", "follow", "987654"});
  EXPECT_EQ(follow->Wait(kTimeout), 69) << OutputOf(*follow);
  EXPECT_THAT(follow->standard_error(), HasSubstr("Invalid job id"));
}

// Runs until there is a file of the job's name.
constexpr char kUntilGo[] = R"(
command: [sh, -c, "echo rank $RANK of $WORLD_SIZE in generation $CADRE_GENERATION; while [ ! -e $CADRE_JOB.go ]; do sleep 0.1; done"]
)";

TEST_F(SlurmTest, SlurmdKilled_TheJobGoesOnAndSucceeds) {
  const std::string job = Submit("slurmd", absl::StrCat("nodes: 2", kUntilGo));
  SaidBy(job, "rank 1 of 2 in generation 1");
  cluster_->KillSlurmd(2);
  EXPECT_THAT(cluster_->AskUntil({"sinfo", "-h", "-N", "-o", "%N=%t"}, "node2=down", kTimeout),
              HasSubstr("node2=down"));
  std::ofstream(cluster_->directory() + "/slurmd.go");
  EXPECT_THAT(StateOf(job, "JobState=COMPLET"), HasSubstr("ExitCode=0:0"));
  EXPECT_THAT(SaidBy(job, "Node failure"), Not(HasSubstr("generation 2")));
  ASSERT_TRUE(cluster_->StartSlurmd(2));
}

TEST_F(SlurmTest, NodeDies_TheOthersGoOnAndSucceed) {
  const std::string job = Submit("node", absl::StrCat("nodes: 1..2", kUntilGo));
  SaidBy(job, "rank 1 of 2 in generation 1");
  cluster_->KillNode(2);
  SaidBy(job, "rank 0 of 1 in generation 2");
  std::ofstream(cluster_->directory() + "/node.go");
  EXPECT_THAT(StateOf(job, "JobState=COMPLET"), HasSubstr("ExitCode=0:0"));
  ASSERT_TRUE(cluster_->StartSlurmd(2));
}

// The warning that Slurm sends before the time limit of one minute.
TEST_F(SlurmTest, Warning_SavesACheckpointAndTheJobGoesOnFromTheQueue) {
  const std::string job = Submit("warned", R"(
nodes: 2
command:
  - bash
  - -c
  - |
    [ -e checkpoint ] && { echo "resumed in generation $CADRE_GENERATION"; exit 0; }
    trap 'echo "saving"; touch checkpoint; exit 1' TERM
    echo "training in generation $CADRE_GENERATION"
    while true; do sleep 0.1; done
slurm: {extra: ["--time=1"]}
)");
  const auto follow = cluster_->Run({cadre_, "slurm", "follow", job});
  const std::string said = SaidBy(job, "resumed in generation 2");
  EXPECT_THAT(said, AllOf(HasSubstr("training in generation 1"), HasSubstr("saving"),
                          HasSubstr("preempted: SIGUSR1 at node node"),
                          HasSubstr("put back into the queue")));
  EXPECT_THAT(StateOf(job, "JobState=COMPLETED"),
              AllOf(HasSubstr("ExitCode=0:0"), HasSubstr("Restarts=1")));
  // It is followed through both of its lives.
  EXPECT_EQ(follow->Wait(kTimeout), 0) << OutputOf(*follow);
  EXPECT_THAT(follow->standard_output(),
              AllOf(HasSubstr("training in generation 1"), HasSubstr("resumed in generation 2")));
  EXPECT_THAT(follow->standard_error(),
              AllOf(HasSubstr(" is pending"), HasSubstr("(warned) ended: COMPLETED")));
}

// The launcher of the second node comes when that of the first one has ended.
//
// Fault (node): A launcher of a Slurm step or of mpirun starts when the job has already ended -> It
// says so and exits as the job did
TEST_F(SlurmTest, WhoComesAfterTheEnd_EndsAsTheJobDid) {
  for (const int status : {0, 7}) {
    const std::string name = absl::StrCat("late", status);
    const std::string job = SubmitWith(
        SecondWaitsForTheFirst(name), name,
        absl::StrCat("nodes: 1..2\nrendezvous: {join_timeout: 8s}\ncommand: [sh, -c, \"echo trains "
                     "in generation $CADRE_GENERATION; exit ",
                     status, "\"]\n"));
    const std::string state = StateOf(job, status == 0 ? "JobState=COMPLETED" : "JobState=FAILED");
    EXPECT_THAT(state,
                AllOf(HasSubstr(absl::StrCat("ExitCode=", status, ":0")), HasSubstr("Restarts=0")));
    const std::string said = SaidBy(job, "ended before this node joined");
    EXPECT_EQ(LinesOf(said, "] trains in generation").size(), 1u) << said;
  }
}

// Without a script of ours, and where the node has a launcher for each worker.
TEST_F(SlurmTest, WhoComesAfterTheEndOfAPlainStep_EndsAsTheJobDid) {
  for (const int tasks : {1, 2}) {
    const std::string wrapper = SecondWaitsForTheFirst(absl::StrCat("step", tasks));
    const auto srun = Srun(tasks, {wrapper, "run", "--nnodes", "1:2", "--nproc-per-node", "1",
                                   "--join-timeout", "8s", probe_, "--exit", "5"});
    EXPECT_EQ(srun->Wait(kTimeout), 5) << OutputOf(*srun);
    EXPECT_THAT(srun->standard_error(), HasSubstr("ended before this node joined"));
  }
}

// One that was cut off says 75 before the others have succeeded.
//
// Fault (node): A launcher of a Slurm step is cut off until the job has ended -> An `sbatch` script
// written by Cadre does not run the job again
TEST_F(SlurmTest, ALauncherThatGaveUpDoesNotHaveTheJobRunAgain) {
  const std::string wrapper = Wrapper("cut", R"(
[ "$SLURM_NODEID" = 0 ] && exec "$cadre" "$@"
"$cadre" "$@" & launcher=$!
while ! grep -q 'rank 1 of 2' slurm-$SLURM_JOB_ID.out; do sleep 0.1; done
kill -9 $launcher
wait
exit 75
)");
  const std::string job = SubmitWith(
      wrapper, "cut",
      "nodes: 1..2\ncommand: [sh, -c, \"echo rank $RANK of $WORLD_SIZE; [ $WORLD_SIZE = 1 ] || "
      "sleep 600\"]\n");
  EXPECT_THAT(StateOf(job, "JobState=COMPLETED"),
              AllOf(HasSubstr("ExitCode=0:0"), HasSubstr("Restarts=0")));
}

// Each has a state of its own, though they run at the same time under one name.
TEST_F(SlurmTest, AnArrayAndASecondSubmission_HaveStatesOfTheirOwn) {
  const std::string spec =
      "nodes: 1\ncommand: [sh, -c, \"touch same.$SLURM_JOB_ID; while [ $(ls same.* | wc -l) -lt 3 "
      "]; do sleep 0.1; done\"]\n";
  const auto array = SubmitThere("same", absl::StrCat(spec, "slurm: {extra: [\"--array=1-2\"]}\n"),
                                 {"--output", "json"});
  ASSERT_EQ(array->Wait(kTimeout), 0) << OutputOf(*array);
  const auto again = SubmitThere("same", spec, {"--follow"});
  EXPECT_EQ(again->Wait(kTimeout), 0) << OutputOf(*again);
  EXPECT_THAT(again->standard_error(), HasSubstr("(same) succeeded: "));
  const std::string number = nlohmann::json::parse(array->standard_output())["slurm_job"];
  for (const int task : {1, 2}) {
    const std::string id = absl::StrCat(number, "_", task);
    const auto follow = cluster_->Run({cadre_, "slurm", "follow", id});
    EXPECT_EQ(follow->Wait(kTimeout), 0) << OutputOf(*follow);
    EXPECT_THAT(follow->standard_error(), HasSubstr("(same) succeeded: "));
    int found = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(cluster_->directory() + "/logs/same")) {
      found += absl::EndsWith(entry.path().string(), absl::StrCat("_", task)) &&
               std::filesystem::exists(entry.path() / "verdict.json");
    }
    EXPECT_EQ(found, 1);
  }
}

// Of what such a job leaves in the environment the new one takes nothing.
//
// Fault (node): `sbatch` passes on variables of the job from which it was called -> The new job's
// own values are used
TEST_F(SlurmTest, SubmittedFromWithinAJob) {
  std::ofstream(cluster_->directory() + "/inner.yaml")
      << "name: inner\nnodes: 2\ncommand: [sh, -c, \"echo rank $RANK of $WORLD_SIZE\"]\n";
  // With memory to hand out it would say the first two of them, too, which contradict each other.
  const auto outer = cluster_->Run(
      {"srun", "-N1", "-n2", "-c2", "--cpu-bind=cores", "--exclusive", "sh", "-c",
       absl::StrCat("export SLURM_MEM_PER_CPU=10 SLURM_MEM_PER_NODE=40 SLURM_ARRAY_TASK_ID=3; "
                    "[ $SLURM_PROCID = 1 ] || ",
                    cadre_, " submit --slurm inner.yaml")});
  ASSERT_EQ(outer->Wait(kTimeout), 0) << OutputOf(*outer);
  constexpr absl::string_view kAs = "as Slurm job ";
  const std::string& said = outer->standard_output();
  ASSERT_THAT(said, HasSubstr(std::string(kAs)));
  const size_t at = said.find(kAs.data()) + kAs.size();
  const std::string inner = said.substr(at, said.find(';', at) - at);
  EXPECT_THAT(StateOf(inner, "JobState=COMPLETED"), HasSubstr("ExitCode=0:0"));
  EXPECT_THAT(SaidBy(inner, "rank 1 of 2"), HasSubstr("rank 0 of 2"));
}

// Slurm passes no HOME on then; the password entry has it. It is not the test's, which cleans up.
//
// Fault (node): `sbatch` passes on no variables, not even `HOME` -> The home directory comes from
// the password entry
TEST_F(SlurmTest, WithoutTheSubmittersEnvironment) {
  const auto submit = SubmitThere("bare",
                                  "nodes: 2\ncommand: [sh, -c, \"echo rank $RANK of "
                                  "$WORLD_SIZE\"]\nslurm: {extra: [\"--export=NONE\"]}\n",
                                  {"--follow"});
  EXPECT_EQ(submit->Wait(kTimeout), 0) << OutputOf(*submit);
  EXPECT_THAT(submit->standard_output(), HasSubstr("rank 1 of 2"));
  const std::string& said = submit->standard_output();
  const size_t at = said.find("Slurm job ") + 10;
  const std::string job = said.substr(at, said.find(';') - at);
  EXPECT_EQ(
      unlink(absl::StrCat(getpwuid(getuid())->pw_dir, "/.cadre/slurm-", job, ".0.ended").c_str()),
      0);
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) { return cadre::RunTestsAmongThemselves(argc, argv); }
