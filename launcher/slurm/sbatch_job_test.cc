// Tests what sbatch's options make of a job.
#include "launcher/slurm/sbatch_job.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr uint64_t kMiB = 1 << 20;

SbatchOptions Options(const std::vector<std::string>& arguments) {
  const auto parsed = ParseOptions(arguments, SbatchTable());
  EXPECT_OK(parsed);
  if (!parsed.ok()) return {};
  const auto options = CombineSbatchOptions({}, {}, parsed->options);
  EXPECT_OK(options);
  return options.ok() ? *options : SbatchOptions();
}

// 2026-11-29 12:00:00 UTC.
const Submitter kHere = {{{"HOME", "/home/ann"}},
                         "/home/ann/runs",
                         "login1",
                         absl::FromUnixSeconds(1795953600),
                         absl::UTCTimeZone()};

BatchSource Script() {
  return {"#!/bin/bash\necho\n", {"--epochs", "3"}, "train.sh", {"/home/ann/train.sh"}};
}

absl::StatusOr<v1::JobSpec> Make(const std::vector<std::string>& arguments,
                                 std::vector<std::string>* notices = nullptr,
                                 const Submitter& submitter = kHere) {
  SbatchOptions options = Options(arguments);
  absl::StatusOr<v1::JobSpec> spec = MakeBatchJob(Script(), submitter, options);
  if (notices != nullptr) *notices = options.notices;
  return spec;
}

// "2x4 g1 c3 m512": 2 nodes with 4 tasks each, and the GPUs, CPUs and MiB of each task.
std::string SizeOf(const std::vector<std::string>& arguments) {
  const auto spec = Make(arguments);
  if (!spec.ok()) return std::string(spec.status().message());
  EXPECT_EQ(spec->nodes().min(), spec->nodes().max());
  const v1::Resources& each = spec->resources();
  std::string text = absl::StrCat(spec->nodes().max(), "x", spec->workers_per_node().count());
  if (each.gpus_per_worker() != 0) absl::StrAppend(&text, " g", each.gpus_per_worker());
  if (each.cpus_per_worker() != 0) absl::StrAppend(&text, " c", each.cpus_per_worker());
  if (each.memory_per_worker() != 0) {
    absl::StrAppend(&text, " m", each.memory_per_worker() / kMiB);
  }
  return text;
}

TEST(SbatchJobTest, OfAScript) {
  const auto spec = Make({});
  ASSERT_OK(spec);
  EXPECT_EQ(spec->name(), "train-sh");
  EXPECT_THAT(spec->command(), ElementsAre("/home/ann/train.sh", "--epochs", "3"));
  EXPECT_EQ(spec->batch().script(), "#!/bin/bash\necho\n");
  EXPECT_THAT(spec->batch().args(), ElementsAre("--epochs", "3"));
  EXPECT_EQ(spec->batch().submit_dir(), "/home/ann/runs");
  EXPECT_EQ(spec->batch().submit_host(), "login1");
  EXPECT_EQ(spec->batch().ntasks(), 0u);
  EXPECT_EQ(spec->working_dir(), "/home/ann/runs");
  EXPECT_EQ(spec->logs().stdout_file(), "slurm-%j.out");
  EXPECT_EQ(spec->logs().stderr_file(), "");
  EXPECT_FALSE(spec->logs().append());
  EXPECT_EQ(spec->restart().max(), 0u);
  EXPECT_FALSE(spec->timeouts().has_total());
  EXPECT_THAT(spec->env(), ElementsAre(Pair("HOME", "/home/ann")));
}

TEST(SbatchJobTest, OfAWrappedCommand) {
  SbatchOptions options = Options({});
  const auto spec = MakeBatchJob(WrappedCommand("echo $USER"), kHere, options);
  ASSERT_OK(spec);
  EXPECT_EQ(spec->name(), "wrap");
  EXPECT_THAT(spec->command(), ElementsAre("sh", "-c", "echo $USER"));
  EXPECT_THAT(spec->batch().script(), AllOf(HasSubstr("#!/bin/sh\n"), HasSubstr("echo $USER\n")));
}

TEST(SbatchJobTest, NodesAndTasks) {
  EXPECT_EQ(SizeOf({}), "1x1");
  EXPECT_EQ(SizeOf({"-N3"}), "3x1");
  EXPECT_EQ(SizeOf({"-n4"}), "1x4");
  EXPECT_EQ(SizeOf({"-N2", "-n8"}), "2x4");
  EXPECT_EQ(SizeOf({"-N2", "-n5"}), "2x3");
  EXPECT_EQ(SizeOf({"-N2", "-n1"}), "1x1");
  EXPECT_EQ(SizeOf({"-N2", "--ntasks-per-node=4"}), "2x4");
  EXPECT_EQ(SizeOf({"--tasks-per-node=4"}), "1x4");
  EXPECT_EQ(SizeOf({"-n9", "--ntasks-per-node=4"}), "3x3");
  EXPECT_EQ(SizeOf({"-N2", "-n3", "--ntasks-per-node=2"}), "2x2");
  EXPECT_EQ(SizeOf({"-N2-4"}), "2x1");
  EXPECT_EQ(SizeOf({"-N1k"}), "1024x1");
  EXPECT_EQ(Make({"-N2", "-n5"})->batch().ntasks(), 5u);
  EXPECT_EQ(Make({"-N2", "--ntasks-per-node=4"})->batch().ntasks(), 8u);
}

TEST(SbatchJobTest, WhatIsDoneDifferentlyIsSaid) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"-N2", "-n1"}, "warning: can't run 1 processes on 2 nodes, setting nnodes to 1"},
      {{"-N2-4"}, "-N 2-4: the job has 2 nodes"},
      {{"-n4"}, "-n 4: all tasks are on one node"},
      {{"--mem=0"}, "--mem=0: the job has no limit of memory"}};
  for (const auto& [arguments, says] : cases) {
    std::vector<std::string> notices;
    EXPECT_OK(Make(arguments, &notices));
    EXPECT_THAT(notices, ElementsAre(HasSubstr(says)));
  }
}

TEST(SbatchJobTest, Gpus) {
  EXPECT_EQ(SizeOf({"--gpus-per-node=8"}), "1x1 g8");
  EXPECT_EQ(SizeOf({"-N2", "--ntasks-per-node=4", "--gres=gpu:a100:8"}), "2x4 g2");
  EXPECT_EQ(SizeOf({"-N2", "-G8"}), "2x1 g4");
  EXPECT_EQ(SizeOf({"-n4", "--gpus-per-task=2"}), "1x4 g2");
  EXPECT_EQ(SizeOf({"--gpus=8", "--gpus-per-task=2"}), "1x4 g2");
  EXPECT_EQ(SizeOf({"--gpus=8", "--gpus-per-node=4"}), "2x1 g4");
  EXPECT_EQ(SizeOf({"--gpus-per-node=4", "--ntasks-per-gpu=1"}), "1x4 g1");
  EXPECT_EQ(SizeOf({"--ntasks=4", "--ntasks-per-gpu=1"}), "1x4 g1");
  EXPECT_EQ(SizeOf({"--gres=none"}), "1x1");
  EXPECT_EQ(SizeOf({"--gres=gpu:2", "--gpus-per-node=2"}), "1x1 g2");
}

TEST(SbatchJobTest, CpusAndMemory) {
  EXPECT_EQ(SizeOf({"-n4", "-c3"}), "1x4 c3");
  EXPECT_EQ(SizeOf({"-G4", "--cpus-per-gpu=6"}), "1x1 g4 c24");
  EXPECT_EQ(SizeOf({"-n4", "--mincpus=10"}), "1x4 c3");
  EXPECT_EQ(SizeOf({"-n4", "-c4", "--mincpus=10"}), "1x4 c4");
  EXPECT_EQ(SizeOf({"-n4", "--mem=2G"}), "1x4 m512");
  EXPECT_EQ(SizeOf({"--mem=100"}), "1x1 m100");
  EXPECT_EQ(SizeOf({"-c4", "--mem-per-cpu=1G"}), "1x1 c4 m4096");
  EXPECT_EQ(SizeOf({"--mem-per-cpu=1G"}), "1x1 m1024");
  EXPECT_EQ(SizeOf({"-G2", "--mem-per-gpu=1G"}), "1x1 g2 m2048");
}

// Fault (input): Options of sbatch contradict each other -> One line names both
TEST(SbatchJobTest, Contradictions) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--mem=2G", "--mem-per-cpu=1G"},
       "--mem=2G and --mem-per-cpu=1G contradict each other: give one of them"},
      {{"-N2", "-n5", "--ntasks-per-node=2"},
       "-n 5 and --ntasks-per-node=2 contradict each other: the job has 2 nodes"},
      {{"--gres=gpu:1", "--gpus-per-node=2"}, "--gres=gpu:1 and --gpus-per-node=2"},
      {{"-N2", "-G4", "--gpus-per-node=4"}, "-G 4 and --gpus-per-node=4"},
      {{"--gpus-per-node=8", "--gpus-per-task=1"}, "how many with --ntasks-per-node"},
      {{"-n4", "-G2", "--gpus-per-task=1"}, "there are 4 tasks"},
      {{"-G3", "--gpus-per-task=2"}, "not a whole number"},
      {{"-c2", "--cpus-per-gpu=2", "-G1"}, "-c 2 and --cpus-per-gpu=2"},
      {{"--ntasks-per-gpu=1", "--ntasks-per-node=2"}, "give one of them"},
      {{"--ntasks-per-gpu=1", "--gpus-per-task=2"}, "give one of them"},
  };
  for (const auto& [arguments, says] : cases) EXPECT_THAT(SizeOf(arguments), HasSubstr(says));
}

TEST(SbatchJobTest, WhatTasksCannotHave) {
  EXPECT_EQ(SizeOf({"--ntasks-per-node=8", "--gpus-per-node=4"}),
            "--gpus-per-node=4: a node has 8 tasks and 4 GPUs; each task has GPUs of its own here, "
            "so give a multiple of the tasks, or fewer tasks");
  EXPECT_THAT(SizeOf({"-N2", "-G3"}), HasSubstr("not the same number on each of 2 nodes"));
  EXPECT_THAT(SizeOf({"--ntasks-per-gpu=2", "-G1"}), HasSubstr("cannot share a GPU"));
  EXPECT_THAT(SizeOf({"--mem-per-gpu=1G"}), HasSubstr("asks for no GPUs"));
  EXPECT_THAT(SizeOf({"--cpus-per-gpu=1"}), HasSubstr("asks for no GPUs"));
  EXPECT_THAT(SizeOf({"-c1000000", "--mem-per-cpu=100000000G"}), HasSubstr("so much memory"));
  EXPECT_THAT(SizeOf({"--cpus-per-gpu=100000000", "-G1000"}), HasSubstr("so many CPUs"));
}

// Fault (input): A value of an option of sbatch is wrong -> One line says what was expected
TEST(SbatchJobTest, WrongValues) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--nodes=x", "--nodes: expected a number of nodes"},
      {"--nodes=4-2", "--nodes: expected"},
      {"--ntasks=0", "--ntasks: expected a number from 1"},
      {"-cx", "-c: expected a number from 1"},
      {"--mem=4Q", "--mem: expected an amount of memory"},
      {"--gres=fpga:1", "--gres: expected gpu:N"},
      {"--time=1h", "--time: expected a time"},
      {"--time=9000-0", "at most 10 years"},
      {"--priority=x", "--priority: expected 0 to 1000000"},
      {"--signal=NO@5", "--signal: expected a signal"},
      {"--begin=soon", "--begin: expected a time, as 2026-12-01T08:00"},
      {"--deadline=2020-01-01", "--deadline=2020-01-01: is over"},
      {"--dependency=afterok:x", "--dependency: expected the id of a job"},
      {"--kill-on-invalid-dep=maybe", "--kill-on-invalid-dep: expected yes or no"},
      {"--nodelist=n[1-", "--nodelist: "},
      {"--constraint=[a|b]", "--constraint: \"[a|b]\": brackets"},
      {"--nice=x", "--nice: expected a number"},
      {"--open-mode=x", "--open-mode: expected append or truncate"},
      {"--output=", "expected the name of a file"},
      {"--chdir=", "expected a directory"},
      {"--export=RANK=1", "Cadre sets 'RANK'"},
  };
  for (const auto& [argument, says] : cases) {
    EXPECT_THAT(Make({argument}), StatusIs(kInvalid, HasSubstr(says))) << argument;
  }
}

TEST(SbatchJobTest, Times) {
  EXPECT_EQ(Make({"--time=0:30"})->timeouts().total().seconds(), 60);
  EXPECT_EQ(Make({"-t", "1-2:3:4"})->timeouts().total().seconds(), 26 * 3600 + 4 * 60);
  EXPECT_FALSE(Make({"--time=UNLIMITED"})->timeouts().has_total());
  EXPECT_FALSE(Make({"--time=0"})->timeouts().has_total());
}

TEST(SbatchJobTest, Priorities) {
  EXPECT_EQ(Make({})->priority(), 0);
  EXPECT_EQ(Make({"--priority=7"})->priority(), 7);
  EXPECT_EQ(Make({"--priority=top"})->priority(), 1000000);
  EXPECT_EQ(Make({"--nice"})->priority(), -100);
  EXPECT_EQ(Make({"--nice=-5"})->priority(), 5);
  EXPECT_EQ(Make({"--nice=2147483645"})->priority(), -1000000);
}

TEST(SbatchJobTest, WhenTheJobMayBegin) {
  EXPECT_FALSE(Make({})->has_queue());
  EXPECT_TRUE(Make({"-H"})->queue().held());
  EXPECT_TRUE(Make({"--priority=0"})->queue().held());
  const auto spec = Make({"-b", "now+1hour", "--deadline=2026-12-01T08:00", "-d",
                          "afterok:12,after:13+5", "--kill-on-invalid-dep=no"});
  ASSERT_OK(spec);
  EXPECT_EQ(spec->queue().begin_unix_ms(), int64_t{1795957200000});
  EXPECT_EQ(spec->queue().deadline_unix_ms(), int64_t{1796112000000});
  EXPECT_TRUE(spec->queue().keep_if_never());
  ASSERT_EQ(spec->queue().dependencies_size(), 2);
  EXPECT_EQ(spec->queue().dependencies(0).kind(), v1::Dependency::AFTER_OK);
  EXPECT_EQ(spec->queue().dependencies(0).job(), 12u);
  EXPECT_EQ(spec->queue().dependencies(1).delay().seconds(), 300);
  EXPECT_TRUE(Make({"-dafterok:12?afterok:13"})->queue().any_dependency());
}

TEST(SbatchJobTest, ChosenNodes) {
  const auto spec = Make({"-w", "n[1-2],m7", "-x", "n9", "-C", "a100&rack=1|rack=2"});
  ASSERT_OK(spec);
  EXPECT_THAT(spec->placement().nodes(), ElementsAre("n1", "n2", "m7"));
  EXPECT_THAT(spec->placement().exclude(), ElementsAre("n9"));
  EXPECT_THAT(spec->placement().labels(), ElementsAre("a100|rack=2", "rack=1|rack=2"));
  // The job has all nodes that are named.
  EXPECT_EQ(spec->nodes().min(), 3u);
  EXPECT_EQ(SizeOf({"-w", "n[1-2]", "-N4"}), "4x1");
  EXPECT_EQ(SizeOf({"-w", "n[1-2]", "-n4"}), "2x2");
  EXPECT_EQ(SizeOf({"-w", "n[1-2]", "-N1"}), "-w n[1-2]: names 2 nodes, and the job has 1");
  EXPECT_EQ(SizeOf({"-w", "n1", "-x", "n[1-2]"}), "-x n[1-2]: n1 is also asked for by name");
}

TEST(SbatchJobTest, WarningsAndLostNodes) {
  const auto spec = Make({"--signal=B:USR1@90", "-t", "60", "--no-requeue"});
  ASSERT_OK(spec);
  EXPECT_EQ(spec->timeouts().warning().seconds(), 90);
  EXPECT_EQ(spec->timeouts().warning_signal(), 10);
  EXPECT_TRUE(spec->batch().warn_script());
  EXPECT_TRUE(spec->restart().has_requeue() && !spec->restart().requeue());
  EXPECT_FALSE(Make({"--signal=USR2", "-t1"})->batch().warn_script());
  EXPECT_TRUE(Make({"--requeue"})->restart().requeue());
  EXPECT_FALSE(Make({})->restart().has_requeue());
  std::vector<std::string> notices;
  EXPECT_OK(Make({"--signal=USR1"}, &notices));
  EXPECT_THAT(notices, ElementsAre("--signal=USR1: no signal is sent, as the job has no limit "
                                   "(--time)"));
}

TEST(SbatchJobTest, Arrays) {
  const auto array = ArrayOf(Options({"--array=0-3,7%2"}));
  ASSERT_OK(array);
  EXPECT_THAT(array->indices(), ElementsAre(0u, 1u, 2u, 3u, 7u));
  EXPECT_EQ(array->at_once(), 2u);
  EXPECT_EQ(ArrayOf(Options({}))->indices_size(), 0);
  EXPECT_THAT(ArrayOf(Options({"-a", "0-1000"})),
              StatusIs(kInvalid, HasSubstr("-a: an array has at most 1000 elements")));
  EXPECT_EQ(Make({"-a0-3"})->logs().stdout_file(), "slurm-%A_%a.out");
}

TEST(SbatchJobTest, Names) {
  EXPECT_EQ(Make({})->batch().name(), "train.sh");
  EXPECT_EQ(Make({"-J", "GPT_7B.v2"})->batch().name(), "GPT_7B.v2");
  EXPECT_EQ(Make({"-J", "GPT_7B.v2"})->name(), "gpt-7b-v2");
  EXPECT_EQ(Make({"-J", "12"})->name(), "job-12");
  EXPECT_EQ(Make({"--job-name="})->name(), "train-sh");
}

TEST(SbatchJobTest, DirectoriesAndFiles) {
  EXPECT_EQ(Make({"-D", "../data/"})->working_dir(), "/home/ann/data");
  EXPECT_EQ(Make({"-D", "/scratch"})->working_dir(), "/scratch");
  const auto spec = Make({"-o", "%x-%j.out", "-e", "%x-%j.err", "--open-mode=append"});
  ASSERT_OK(spec);
  EXPECT_EQ(spec->logs().stdout_file(), "%x-%j.out");
  EXPECT_EQ(spec->logs().stderr_file(), "%x-%j.err");
  EXPECT_TRUE(spec->logs().append());
  EXPECT_FALSE(Make({"--open-mode=T"})->logs().append());
}

TEST(SbatchJobTest, Variables) {
  Submitter here = kHere;
  here.environment = {{"HOME", "/home/ann"},       {"A", "1"},
                      {"SLURM_JOB_ID", "7"},       {"RANK", "3"},
                      {"CADRE_TOKEN_FILE", "t"},   {"CADRE_SERVER", "127.0.0.1"},
                      {"CADRE_MAX_RESTARTS", "2"}, {"OMPI_X", "1"},
                      {"HOSTNAME", "login1"}};
  const auto variables = [&](const std::vector<std::string>& arguments) {
    const auto spec = Make(arguments, nullptr, here);
    EXPECT_OK(spec);
    return std::map<std::string, std::string>(spec->env().begin(), spec->env().end());
  };
  const auto all = UnorderedElementsAre(Pair("HOME", "/home/ann"), Pair("A", "1"),
                                        Pair("CADRE_MAX_RESTARTS", "2"));
  EXPECT_THAT(variables({}), all);
  EXPECT_THAT(variables({"--export=all"}), all);
  EXPECT_THAT(variables({"--export=NONE"}), IsEmpty());
  EXPECT_THAT(variables({"--export=A,NO_SUCH,B=\"x,y\""}),
              UnorderedElementsAre(Pair("A", "1"), Pair("B", "x,y")));
  EXPECT_EQ(variables({"--export=ALL,A=2"}).at("A"), "2");
  here.environment = {{"GOOD", "1"}, {"BAD", "\xff"}};
  std::vector<std::string> notices;
  EXPECT_THAT(Make({}, &notices, here)->env(), ElementsAre(Pair("GOOD", "1")));
  EXPECT_THAT(notices, ElementsAre(HasSubstr("not UTF-8 text: BAD")));
}

// Fault (input): A batch job with its script and its environment is larger than a server takes
// -> sbatch says how large each of them is, and what to do
TEST(SbatchJobTest, TooLarge) {
  Submitter here = kHere;
  here.environment["BIG"] = std::string(kMaxBatchJobBytes, 'x');
  EXPECT_THAT(Make({}, nullptr, here), StatusIs(kInvalid, HasSubstr("with --export=NAME")));
  EXPECT_OK(Make({"--export=HOME"}, nullptr, here));
  BatchSource source = Script();
  source.script += std::string(kMaxBatchJobBytes, '#');
  SbatchOptions options = Options({});
  EXPECT_THAT(MakeBatchJob(source, kHere, options),
              StatusIs(kInvalid, HasSubstr("keep its data in files")));
}

TEST(ProgramJobTest, RunsTheProgramOnEachNode) {
  SbatchOptions options = Options({"-N2-4", "--ntasks-per-node=3", "-t5"});
  const auto spec = MakeProgramJob({"./train", "x"}, kHere, options);
  ASSERT_OK(spec);
  EXPECT_FALSE(spec->has_batch());
  EXPECT_EQ(spec->name(), "train");
  EXPECT_THAT(spec->command(), ElementsAre("./train", "x"));
  EXPECT_EQ(spec->nodes().min(), 2u);
  EXPECT_EQ(spec->nodes().max(), 4u);
  EXPECT_EQ(spec->workers_per_node().count(), 3u);
  EXPECT_EQ(spec->logs().stdout_file(), "");
  SbatchOptions counted = Options({"-N2-4", "-n8"});
  EXPECT_THAT(MakeProgramJob({"./train"}, kHere, counted),
              StatusIs(kInvalid, HasSubstr("--ntasks-per-node")));
}

TEST(ChangeJobTest, OptionsWinOverTheFile) {
  v1::JobSpec spec;
  spec.set_name("mnist");
  spec.set_priority(5);
  spec.mutable_timeouts()->mutable_total()->set_seconds(1);
  SbatchOptions options = Options({"-J",  "Other", "-N2-3",    "--ntasks-per-node=4",
                                   "-c2", "-t",    "9",        "--nice=2",
                                   "-D",  "/x",    "-o",       "a.out",
                                   "-p",  "gpu",   "--hold",   "-w",
                                   "n1",  "-x",    "n2",       "-C",
                                   "a",   "-b",    "now+1hour"});
  ASSERT_OK(ChangeJob("job.yaml", kHere, options, spec));
  EXPECT_EQ(spec.name(), "other");
  EXPECT_EQ(spec.nodes().min(), 2u);
  EXPECT_EQ(spec.nodes().max(), 3u);
  EXPECT_EQ(spec.workers_per_node().count(), 4u);
  EXPECT_EQ(spec.resources().cpus_per_worker(), 2u);
  EXPECT_EQ(spec.timeouts().total().seconds(), 540);
  EXPECT_EQ(spec.priority(), 3);
  EXPECT_EQ(spec.working_dir(), "/x");
  EXPECT_EQ(spec.logs().stdout_file(), "a.out");
  EXPECT_TRUE(spec.queue().held());
  EXPECT_EQ(spec.queue().begin_unix_ms(), int64_t{1795957200000});
  EXPECT_THAT(spec.placement().nodes(), ElementsAre("n1"));
  EXPECT_THAT(spec.placement().exclude(), ElementsAre("n2"));
  EXPECT_THAT(spec.placement().labels(), ElementsAre("a"));
  EXPECT_THAT(options.notices, ElementsAre(HasSubstr("no effect")));
}

TEST(ChangeJobTest, OtherOptionsAreRefused) {
  v1::JobSpec spec;
  for (const char* const other : {"--mem=4G", "--ntasks=4", "--export=NONE"}) {
    SbatchOptions options = Options({other});
    EXPECT_THAT(ChangeJob("job.yaml", kHere, options, spec),
                StatusIs(kInvalid, HasSubstr("write what it means into job.yaml")));
  }
}

}  // namespace
}  // namespace cadre::launcher
