#include "launcher/commands/slurm_links.h"

#include <filesystem>
#include <fstream>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class SlurmLinksTest : public testing::Test {
 protected:
  SlurmLinksTest() { fs::remove_all(directory_); }
  ~SlurmLinksTest() override { fs::remove_all(directory_); }

  fs::path Target(const std::string& name) { return fs::read_symlink(fs::path(directory_) / name); }

  const std::string directory_ = testing::TempDir() + "/slurm_links_test";
};

TEST_F(SlurmLinksTest, LinksAreMadeAndReplaced) {
  ASSERT_OK(MakeLinks("/opt/1/cadre", {"srun", "sbatch"}, directory_));
  EXPECT_EQ(Target("srun"), "/opt/1/cadre");
  ASSERT_OK(MakeLinks("/opt/2/cadre", {"srun", "sbatch"}, directory_));
  EXPECT_EQ(Target("srun"), "/opt/2/cadre");
  EXPECT_EQ(Target("sbatch"), "/opt/2/cadre");
}

TEST_F(SlurmLinksTest, OtherFilesStay) {
  fs::create_directories(directory_);
  std::ofstream(directory_ + "/squeue") << "#!/bin/sh\n";
  EXPECT_THAT(MakeLinks("/opt/1/cadre", {"srun", "squeue"}, directory_),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("/squeue exists")));
  EXPECT_FALSE(fs::exists(fs::symlink_status(directory_ + "/srun")));
  fs::remove(directory_ + "/squeue");
  fs::create_symlink("/usr/bin/true", directory_ + "/squeue");
  EXPECT_THAT(MakeLinks("/opt/1/cadre", {"squeue"}, directory_),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_EQ(Target("squeue"), "/usr/bin/true");
}

TEST_F(SlurmLinksTest, Path) {
  fs::create_directories(directory_);
  EXPECT_EQ(PathAdvice(directory_, "/usr/bin:" + directory_ + "/"), "");
  EXPECT_EQ(PathAdvice(directory_, "/usr/bin"),
            "to find them: export PATH=" + directory_ + ":$PATH\n");
}

}  // namespace
}  // namespace cadre::launcher
