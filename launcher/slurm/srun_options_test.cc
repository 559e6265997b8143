// Tests what srun's options and variables mean. The numbers of nodes and tasks are those of srun in
// Slurm 23.02.
#include "launcher/slurm/srun_options.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Of a batch job with 2 nodes and 4 tasks on each.
Environment InJob(const Environment& more = {}) {
  Environment environment = {{"CADRE_SERVER", "head:29400"}, {"SLURM_JOB_ID", "57"},
                             {"SLURM_JOB_NAME", "batch"},    {"SLURM_JOB_NODELIST", "n[1-2]"},
                             {"SLURM_NNODES", "2"},          {"SLURM_JOB_NUM_NODES", "2"},
                             {"SLURM_NTASKS", "8"},          {"SLURM_NTASKS_PER_NODE", "4"},
                             {"SLURM_CPUS_ON_NODE", "8"}};
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}

std::vector<std::string> Words(std::vector<std::string> options) {
  options.push_back("train");
  return options;
}

SrunRequest Read(const std::vector<std::string>& options, const Environment& environment = {}) {
  const auto request = ReadSrun(Words(options), environment, "/home/ann");
  EXPECT_OK(request);
  return request.ok() ? *request : SrunRequest();
}

std::string ErrorOf(const std::vector<std::string>& options, const Environment& environment = {}) {
  const auto request = ReadSrun(Words(options), environment, "/home/ann");
  EXPECT_THAT(request, StatusIs(kInvalid));
  return std::string(request.status().message());
}

// "2 nodes, 4 tasks on each".
std::string SizeOf(const std::vector<std::string>& options, const Environment& environment = {}) {
  const v1::JobSpec spec = Read(options, environment).spec;
  return absl::StrCat(spec.nodes().max(), "x", spec.workers_per_node().count());
}

TEST(SrunOptionsTest, OutsideOfAJob) {
  const SrunRequest request = Read({});
  EXPECT_EQ(request.within, "");
  EXPECT_EQ(request.spec.name(), "train");
  EXPECT_THAT(request.spec.command(), ElementsAre("train"));
  EXPECT_EQ(request.spec.working_dir(), "/home/ann");
  EXPECT_EQ(request.spec.logs().dir(), "/home/ann/.cadre");
  EXPECT_TRUE(request.spec.has_slurm_step());
  EXPECT_EQ(request.spec.restart().max(), 0u);
  EXPECT_EQ(SizeOf({}), "1x1");
  EXPECT_EQ(SizeOf({"-n4"}), "1x4");
  EXPECT_EQ(SizeOf({"-N2"}), "2x1");
  EXPECT_EQ(SizeOf({"-N2", "-n", "8"}), "2x4");
  EXPECT_EQ(SizeOf({"-N2", "--ntasks-per-node=3"}), "2x3");
  EXPECT_EQ(SizeOf({"-n8", "--ntasks-per-node=4"}), "2x4");
  EXPECT_EQ(SizeOf({"-N2-4"}), "2x1");
}

TEST(SrunOptionsTest, NodesOfAJobOfItsOwn) {
  const v1::JobSpec spec = Read({"-w", "n[1-2]", "-x", "n3", "-C", "a|b"}).spec;
  EXPECT_THAT(spec.placement().nodes(), ElementsAre("n1", "n2"));
  EXPECT_THAT(spec.placement().exclude(), ElementsAre("n3"));
  EXPECT_THAT(spec.placement().labels(), ElementsAre("a|b"));
  EXPECT_THAT(spec.slurm_step().nodes(), IsEmpty());
  EXPECT_EQ(SizeOf({"-w", "n[1-2]"}), "2x1");
  EXPECT_EQ(SizeOf({"-w", "n1", "-n4"}), "1x4");
  EXPECT_EQ(ErrorOf({"-w", "n[1-2]", "-N1"}), "error: -w: names 2 nodes, and the job has 1");
  EXPECT_THAT(ErrorOf({"-r1"}), HasSubstr("is for steps of a batch job"));
  EXPECT_THAT(ErrorOf({"-C", "[a|b]"}), HasSubstr("brackets"));
  EXPECT_THAT(ErrorOf({"-C", "a"}, InJob()), HasSubstr("use --nodelist"));
}

TEST(SrunOptionsTest, ASignalBeforeTheLimit) {
  const SrunRequest request = Read({"--signal=USR1@90", "-t", "60"}, InJob());
  EXPECT_EQ(request.spec.timeouts().warning().seconds(), 90);
  EXPECT_EQ(request.spec.timeouts().warning_signal(), 10);
  EXPECT_THAT(request.notices, IsEmpty());
  EXPECT_THAT(Read({"--signal=USR1"}).notices,
              ElementsAre("--signal: no signal is sent, as the job has no limit (--time)"));
  EXPECT_THAT(ErrorOf({"--signal=NO"}), HasSubstr("error: --signal: expected a signal"));
}

TEST(SrunOptionsTest, AJobOfSlurmItselfIsNoneOfThisServer) {
  EXPECT_EQ(Read({}, {{"SLURM_JOB_ID", "7"}}).within, "");
  EXPECT_EQ(Read({"--jobid=9"}).within, "9");
  EXPECT_EQ(ErrorOf({"--jobid=x"}), "error: Invalid --jobid: x");
}

TEST(SrunOptionsTest, SizeInsideOfAJob) {
  EXPECT_EQ(Read({}, InJob()).within, "57");
  EXPECT_EQ(Read({}, InJob()).spec.name(), "train");
  EXPECT_EQ(SizeOf({}, InJob()), "2x4");
  // As many as the job has on each of its nodes.
  EXPECT_EQ(SizeOf({"-N1"}, InJob()), "1x4");
  EXPECT_EQ(SizeOf({"-n2"}, InJob()), "2x1");
  EXPECT_EQ(SizeOf({"-N1", "-n1"}, InJob()), "1x1");
  EXPECT_EQ(SizeOf({"-N1-4"}, InJob()), "2x4");
  Environment without_tasks = InJob();
  without_tasks.erase("SLURM_NTASKS");
  without_tasks.erase("SLURM_NTASKS_PER_NODE");
  EXPECT_EQ(SizeOf({}, without_tasks), "2x1");
  EXPECT_EQ(SizeOf({"--ntasks-per-node=8"}, without_tasks), "2x8");
}

TEST(SrunOptionsTest, SizesThatContradictEachOther) {
  EXPECT_THAT(Read({"-n1"}, InJob()).notices,
              ElementsAre("warning: can't run 1 processes on 2 nodes, setting nnodes to 1"));
  EXPECT_EQ(SizeOf({"-n1"}, InJob()), "1x1");
  EXPECT_THAT(Read({"--ntasks-per-node=1"}, InJob()).notices,
              ElementsAre(HasSubstr("warning: can't honor --ntasks-per-node set to 1")));
  EXPECT_EQ(SizeOf({"--ntasks-per-node=1"}, InJob()), "2x4");
  EXPECT_THAT(ErrorOf({"-n7"}, InJob()),
              HasSubstr("7 tasks on 2 nodes are not the same number on each node"));
}

TEST(SrunOptionsTest, NodesOfAStep) {
  const auto nodes = [](const std::vector<std::string>& options) {
    const auto request = ReadSrun(Words(options),
                                  InJob({{"SLURM_JOB_NODELIST", "n[1-3]"},
                                         {"SLURM_NNODES", "3"},
                                         {"SLURM_JOB_NUM_NODES", "3"},
                                         {"SLURM_NTASKS", "12"}}),
                                  "/");
    if (!request.ok()) return std::string(request.status().message());
    return absl::StrCat(request->spec.nodes().max(), ":",
                        absl::StrJoin(request->spec.slurm_step().nodes(), ","));
  };
  EXPECT_EQ(nodes({}), "3:");
  EXPECT_EQ(nodes({"-w", "n2"}), "1:n2");
  EXPECT_EQ(nodes({"-w", "n[2-3]"}), "2:n2,n3");
  // The others are chosen for the user.
  EXPECT_EQ(nodes({"-N2", "-w", "n3"}), "2:n3,n1");
  EXPECT_EQ(nodes({"-x", "n2"}), "2:n1,n3");
  EXPECT_EQ(nodes({"-N1", "-x", "n1"}), "1:n2,n3");
  EXPECT_EQ(nodes({"-N2", "-r1"}), "2:n2,n3");
  EXPECT_THAT(nodes({"-w", "m1"}), HasSubstr("m1 are not all nodes of job 57, which has n[1-3]"));
  EXPECT_THAT(nodes({"-r3"}), HasSubstr("node 3 of a job with 3 nodes"));
  EXPECT_THAT(nodes({"-N3", "-x", "n2"}), HasSubstr("the step asks for 3 nodes, and 2 of job 57"));
  EXPECT_THAT(nodes({"-r1", "-w", "n2"}), HasSubstr("not allowed with"));
}

TEST(SrunOptionsTest, Cpus) {
  const auto cpus = [](const std::vector<std::string>& options, const Environment& more) {
    return Read(options, InJob(more)).spec.resources().cpus_per_worker();
  };
  EXPECT_EQ(cpus({}, {}), 0u);
  EXPECT_EQ(cpus({"-c3"}, {}), 3u);
  EXPECT_EQ(cpus({}, {{"SLURM_CPUS_PER_TASK", "2"}}), 2u);
  EXPECT_EQ(cpus({}, {{"SRUN_CPUS_PER_TASK", "2"}}), 2u);
  // Eight tasks on a node with eight CPUs cannot have two each.
  EXPECT_EQ(cpus({"-N1", "-n8"}, {{"SLURM_CPUS_PER_TASK", "2"}}), 1u);
  EXPECT_EQ(cpus({"--gpus-per-task=2", "--cpus-per-gpu=3"}, {}), 6u);
}

TEST(SrunOptionsTest, Gpus) {
  const auto gpus = [](const std::vector<std::string>& options, const Environment& more) {
    return Read(options, InJob(more)).spec.resources().gpus_per_worker();
  };
  const Environment eight = {{"SLURM_GPUS_ON_NODE", "8"}};
  EXPECT_EQ(gpus({}, {}), 0u);
  EXPECT_EQ(gpus({}, eight), 2u);
  EXPECT_EQ(gpus({"-N1", "-n1"}, eight), 8u);
  EXPECT_EQ(gpus({"--gpus-per-task=1"}, eight), 1u);
  EXPECT_EQ(gpus({"--gpus-per-node=4"}, eight), 1u);
  EXPECT_EQ(gpus({"--gres=gpu:a100:4"}, eight), 1u);
  EXPECT_EQ(gpus({"-G8"}, eight), 1u);
  EXPECT_EQ(gpus({"--gres=none"}, eight), 0u);
  // The job's own numbers, for a step with more tasks.
  EXPECT_EQ(gpus({"-N1", "-n8"}, {{"SLURM_GPUS_ON_NODE", "8"}, {"SLURM_GPUS_PER_TASK", "2"}}), 1u);
  EXPECT_THAT(ErrorOf({"-G3"}, InJob()), HasSubstr("3 GPUs cannot be the same number on 2 nodes"));
  EXPECT_THAT(ErrorOf({"--gres=lustre:1"}, InJob()), HasSubstr("--gres: expected gpu:N"));
}

TEST(SrunOptionsTest, GpusThatCannotBeDivided) {
  const Environment two = InJob({{"SLURM_GPUS_ON_NODE", "2"}});
  EXPECT_EQ(Read({}, two).spec.resources().gpus_per_worker(), 0u);
  EXPECT_THAT(
      Read({}, two).notices,
      ElementsAre("warning: 2 GPUs of a node cannot be divided among 4 tasks: the step gets "
                  "none; start fewer tasks on each node"));
  const Environment six = InJob({{"SLURM_GPUS_ON_NODE", "6"}});
  EXPECT_EQ(Read({}, six).spec.resources().gpus_per_worker(), 1u);
  EXPECT_THAT(Read({}, six).notices, ElementsAre(HasSubstr("the step gets 4 of them")));
}

TEST(SrunOptionsTest, Memory) {
  const auto memory = [](const std::vector<std::string>& options, const Environment& more) {
    return Read(options, InJob(more)).spec.resources().memory_per_worker() >> 20;
  };
  EXPECT_EQ(memory({}, {}), 0u);
  EXPECT_EQ(memory({"--mem=8G"}, {}), 2048u);
  EXPECT_EQ(memory({}, {{"SLURM_MEM_PER_NODE", "4096"}}), 1024u);
  EXPECT_EQ(memory({"--mem-per-cpu=1G"}, {{"SLURM_MEM_PER_NODE", "4096"}}), 1024u);
  EXPECT_EQ(memory({"--mem-per-cpu=1G", "-c2"}, {}), 2048u);
  EXPECT_EQ(memory({"--mem-per-gpu=3G", "--gpus-per-task=2"}, {}), 6144u);
}

TEST(SrunOptionsTest, Streams) {
  SrunRequest request = Read({});
  EXPECT_TRUE(request.shows_output && request.shows_errors);
  request = Read({"-o", "%x-%t.out", "--open-mode=append"});
  EXPECT_FALSE(request.shows_output || request.shows_errors);
  EXPECT_EQ(request.spec.logs().stdout_file(), "%x-%t.out");
  EXPECT_EQ(request.spec.logs().stderr_file(), "");
  EXPECT_TRUE(request.spec.logs().append());
  request = Read({"-e", "errors"});
  EXPECT_TRUE(request.shows_output);
  EXPECT_FALSE(request.shows_errors);
  EXPECT_EQ(request.spec.logs().stderr_file(), "errors");
  request = Read({"-o", "none"});
  EXPECT_EQ(request.spec.logs().stdout_file(), "/dev/null");
  EXPECT_FALSE(request.shows_output || request.shows_errors);
  EXPECT_EQ(Read({"-o0"}).only_task, 0u);
  EXPECT_THAT(ErrorOf({"-n2", "-o2"}), HasSubstr("the step has no task 2"));
  EXPECT_EQ(Read({}, {{"SLURM_STDOUTMODE", "a"}, {"SRUN_OUTPUT", "b"}}).spec.logs().stdout_file(),
            "b");
  EXPECT_OK(ReadSrun({"-i", "/dev/null", "a"}, {}, "/"));
  EXPECT_THAT(ErrorOf({"-i", "data"}), HasSubstr("tasks have no standard input"));
  EXPECT_THAT(ErrorOf({"--open-mode=b"}), HasSubstr("expected append or truncate"));
}

TEST(SrunOptionsTest, NameDirectoryAndTime) {
  EXPECT_EQ(Read({"-J", "My_Step"}).spec.name(), "my-step");
  EXPECT_EQ(Read({"-J", "7"}).spec.name(), "job-7");
  EXPECT_EQ(Read({}, {{"SLURM_JOB_NAME", "other"}}).spec.name(), "other");
  EXPECT_EQ(Read({"-D", "runs/"}).spec.working_dir(), "/home/ann/runs");
  EXPECT_EQ(Read({"-D", "/tmp/a/../b"}).spec.working_dir(), "/tmp/b");
  EXPECT_EQ(Read({"-t", "1:30:00"}).spec.timeouts().total().seconds(), 5400);
  EXPECT_FALSE(Read({"-t", "0"}).spec.timeouts().has_total());
  EXPECT_THAT(ErrorOf({"-t", "1h"}), HasSubstr("error: -t: expected a time"));
}

TEST(SrunOptionsTest, Switches) {
  const SrunRequest request = Read({"-luQ", "--overlap"});
  EXPECT_TRUE(request.label && request.unbuffered && request.quiet);
  EXPECT_TRUE(request.spec.slurm_step().overlap());
  EXPECT_FALSE(Read({}).label);
  EXPECT_TRUE(Read({}, {{"SLURM_LABELIO", "1"}}).label);
  EXPECT_FALSE(Read({}, {{"SLURM_LABELIO", "0"}}).label);
  EXPECT_THAT(ErrorOf({"-vQ"}), HasSubstr("don't specify both"));
}

TEST(SrunOptionsTest, OptionsWithoutAnEffect) {
  EXPECT_THAT(Read({"--exclusive", "--exact", "--cpu-bind=none", "-m", "block", "--wait=60", "-K1",
                    "--mpi=none"})
                  .notices,
              IsEmpty());
  EXPECT_THAT(Read({"-pgpu", "--account=a"}).notices,
              ElementsAre("-p, --account have no effect here"));
  EXPECT_THAT(Read({"--mpi=pmix"}).notices, ElementsAre(HasSubstr("--mpi=pmix has no effect")));
  EXPECT_THAT(Read({"-K0"}).notices, ElementsAre(HasSubstr("the others are ended")));
  EXPECT_THAT(ErrorOf({"--mpi=lam"}), HasSubstr("expected none, pmi2 or pmix"));
}

TEST(SrunOptionsTest, Refused) {
  EXPECT_THAT(ErrorOf({"--pty"}), HasSubstr("error: --pty: not yet"));
  EXPECT_THAT(ErrorOf({"--multi-prog"}), HasSubstr("SLURM_PROCID"));
  EXPECT_EQ(ErrorOf({"--ntaks=3"}), "unrecognized option '--ntaks'; did you mean '--ntasks'?");
  EXPECT_THAT(ReadSrun({"-n2"}, {}, "/"),
              StatusIs(kInvalid, "fatal: No command given to execute."));
  EXPECT_THAT(ErrorOf({"-n", "x"}), HasSubstr("error: -n: expected a number from 1, got \"x\""));
  EXPECT_THAT(ErrorOf({}, {{"SLURM_NTASKS", "x"}}), HasSubstr("error: SLURM_NTASKS: expected"));
}

TEST(SrunOptionsTest, TheProgramsArgumentsAreItsOwn) {
  const auto request = ReadSrun({"-n2", "bin/train", "-n", "3", "--pty"}, {}, "/");
  ASSERT_OK(request);
  EXPECT_THAT(request->spec.command(), ElementsAre("bin/train", "-n", "3", "--pty"));
  EXPECT_EQ(ReadSrun({"--help"}, {}, "/")->answer, SrunRequest::Answer::kHelp);
  EXPECT_EQ(ReadSrun({"-V"}, {}, "/")->answer, SrunRequest::Answer::kVersion);
}

TEST(ExportedVariablesTest, WhatTasksGet) {
  const Environment environment = {
      {"HOME", "/home/ann"},       {"A", "1"},    {"SLURM_JOB_ID", "57"},
      {"CADRE_SERVER", "h"},       {"RANK", "0"}, {"CUDA_VISIBLE_DEVICES", "0"},
      {"TORCHELASTIC_RUN_ID", "b"}};
  std::vector<std::string> notices;
  EXPECT_THAT(ExportedVariables(environment, "ALL", &notices),
              UnorderedElementsAre(Pair("HOME", "/home/ann"), Pair("A", "1")));
  EXPECT_THAT(ExportedVariables(environment, "NONE", &notices), IsEmpty());
  EXPECT_THAT(ExportedVariables(environment, "A,B='x,y',C", &notices),
              UnorderedElementsAre(Pair("A", "1"), Pair("B", "x,y")));
  EXPECT_THAT(ExportedVariables(environment, "ALL,A=2,CUDA_VISIBLE_DEVICES", &notices),
              UnorderedElementsAre(Pair("HOME", "/home/ann"), Pair("A", "2"),
                                   Pair("CUDA_VISIBLE_DEVICES", "0")));
  EXPECT_THAT(notices, IsEmpty());
  EXPECT_THAT(ExportedVariables({{"A", "\xff"}}, "ALL", &notices), IsEmpty());
  EXPECT_THAT(notices, ElementsAre("left out variables that are not UTF-8 text: A"));
}

TEST(SrunOptionsTest, HelpFitsTheTerminal) {
  for (const absl::string_view line : absl::StrSplit(SrunHelp(), '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
  }
}

}  // namespace
}  // namespace cadre::launcher
