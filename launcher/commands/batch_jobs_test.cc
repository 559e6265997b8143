// Tests reading batch scripts, and what is said of a job.
#include "launcher/commands/batch_jobs.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::string WriteFile(const std::string& name, const std::string& content) {
  const std::string path = absl::StrCat(testing::TempDir(), "/batch_jobs_", name);
  std::ofstream(path) << content;
  return path;
}

TEST(ReadBatchScriptTest, IsTakenForOneByItsFirstCharacters) {
  EXPECT_TRUE(IsBatchScript(WriteFile("script", "#!/bin/sh\n")));
  EXPECT_FALSE(IsBatchScript(WriteFile("yaml", "# a job\nname: a\n")));
  EXPECT_FALSE(IsBatchScript(WriteFile("short", "#")));
  EXPECT_FALSE(IsBatchScript(testing::TempDir()));
  EXPECT_FALSE(IsBatchScript("/no/such/file"));
}

TEST(ReadBatchScriptTest, IsReadWhole) {
  const std::string text = absl::StrCat("#!/bin/sh\n", std::string(200000, '#'), "\n");
  EXPECT_EQ(*ReadBatchScript(WriteFile("long", text)), text);
}

// Fault (input): The batch script of a job is a directory, is not there or is too large -> One line
// says so
TEST(ReadBatchScriptTest, Errors) {
  EXPECT_THAT(ReadBatchScript(testing::TempDir()),
              StatusIs(kInvalid, HasSubstr("it is a directory")));
  EXPECT_THAT(ReadBatchScript("/no/such/file"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/file")));
  EXPECT_THAT(ReadBatchScript(WriteFile("large", std::string(kMaxBatchJobBytes + 1, '#'))),
              StatusIs(kInvalid, HasSubstr("more than 524288 bytes")));
  // Nobody writes to this pipe, and reading does not wait for anybody.
  const std::string pipe = absl::StrCat(testing::TempDir(), "/batch_jobs_pipe");
  unlink(pipe.c_str());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(*ReadBatchScript(pipe), "");
}

TEST(MakeReadyTest, OptionsOfTheScriptAndOfTheCommandLine) {
  BatchSource source;
  source.script = "#!/bin/sh\n#SBATCH -N2 -J name --exclusive\n#PBS -l x\n";
  source.name = "job.sh";
  source.program = {"/job.sh"};
  const auto job = MakeReady(source, "job.sh", {{"nodes", "3", true, "-N"}});
  ASSERT_OK(job);
  EXPECT_EQ(job->spec.nodes().max(), 3u);
  EXPECT_EQ(job->spec.name(), "name");
  EXPECT_THAT(job->options.notices, Contains(HasSubstr("job.sh:2: --exclusive has no effect")));
  EXPECT_THAT(job->options.notices, Contains(HasSubstr("#PBS")));
  source.script = "echo\n";
  EXPECT_THAT(MakeReady(source, "job.sh", {}), StatusIs(kInvalid, HasSubstr("'#!'")));
  source.script = "#!/bin/sh\n#SBATCH -N200000\n";
  EXPECT_THAT(MakeReady(source, "job.sh", {}), StatusIs(kInvalid, HasSubstr("200000")));
}

TEST(JobSizeTextTest, NodesAndTasks) {
  ReadyJob job;
  v1::JobSpec& spec = job.spec;
  spec.mutable_nodes()->set_min(2);
  spec.mutable_nodes()->set_max(2);
  spec.mutable_workers_per_node()->set_kind(v1::WorkersPerNode::COUNT);
  spec.mutable_workers_per_node()->set_count(4);
  EXPECT_EQ(JobSizeText(job), "2 nodes with 4 tasks on each");
  spec.mutable_nodes()->set_max(3);
  EXPECT_EQ(JobSizeText(job), "2 to 3 nodes with 4 tasks on each");
  spec.mutable_nodes()->set_min(1);
  spec.mutable_nodes()->set_max(1);
  EXPECT_EQ(JobSizeText(job), "1 node with 4 tasks");
  spec.mutable_workers_per_node()->set_kind(v1::WorkersPerNode::GPU);
  EXPECT_EQ(JobSizeText(job), "1 node");
  job.array.add_indices(0);
  job.array.add_indices(7);
  EXPECT_EQ(JobSizeText(job), "1 node for each of 2 elements");
}

}  // namespace
}  // namespace cadre::launcher
