#include "rendezvous/web/dashboard/worker_logs.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace cadre::web {
namespace {

using ::testing::HasSubstr;

std::string TempDir() {
  std::string path = testing::TempDir() + "/logs_XXXXXX";
  EXPECT_NE(mkdtemp(&path[0]), nullptr);
  return path;
}

TEST(LogFilesTest, ListsWhatIsThere_NewestFirst) {
  const std::string dir = TempDir();
  EXPECT_EQ(LogListJson(dir, "none", ""), "{\"generations\":[]}");
  for (const char* path : {"generation_2/rank_10", "generation_2/rank_9", "generation_10/rank_0",
                           "generation_1", "generation_x/rank_0", "other"}) {
    std::filesystem::create_directories(dir + "/job/" + path);
  }
  EXPECT_EQ(LogListJson(dir, "job", ""),
            "{\"generations\":[{\"generation\":10,\"ranks\":[0]},{\"generation\":2,\"ranks\":[9,10]"
            "},{\"generation\":1,\"ranks\":[]}]}");
}

TEST(LogFilesTest, ListIsBounded) {
  const std::string dir = TempDir();
  for (size_t i = 1; i <= kListedGenerations + 1; ++i) {
    std::filesystem::create_directories(dir + "/job/generation_" + std::to_string(i));
  }
  const std::string list = LogListJson(dir, "job", "");
  EXPECT_THAT(list, HasSubstr("{\"generation\":65,"));
  EXPECT_THAT(list, testing::Not(HasSubstr("{\"generation\":1,")));
}

TEST(LogFilesTest, OfAJobThatWasSubmittedTheTimelineSaysIt) {
  v1::JobStatus job;
  EXPECT_EQ(LogListJson(job), "{\"generations\":[]}");
  for (const uint32_t world_size : {3, 2, 0}) {
    v1::GenerationTimeline* one = job.mutable_timeline()->add_generations();
    one->set_generation(job.timeline().generations_size());
    one->set_world_size(world_size);
  }
  EXPECT_EQ(LogListJson(job),
            "{\"generations\":[{\"generation\":2,\"ranks\":[0,1]},"
            "{\"generation\":1,\"ranks\":[0,1,2]}]}");
  job.mutable_timeline()->mutable_generations(2)->set_world_size(kListedRanks + 1);
  EXPECT_THAT(LogListJson(job), HasSubstr(",1023]}"));
}

TEST(LogFilesTest, PathIsMadeOfNumbersAlone) {
  std::map<std::string, std::string> query = {
      {"generation", "3"}, {"rank", "7"}, {"stream", "stderr"}};
  EXPECT_EQ(LogPath(TempDir(), "job", "", query).value(), "job/generation_3/rank_7/stderr.log");
  for (const auto& [name, value] :
       {std::pair("rank", "../0"), std::pair("generation", "-1"), std::pair("stream", "../x"),
        std::pair("rank", ""), std::pair("stream", "")}) {
    auto wrong = query;
    wrong[name] = value;
    EXPECT_THAT(LogPath(TempDir(), "job", "", wrong),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  }
}

TEST(LogFilesTest, ARankWhoseProcessBeganElsewhere_IsFoundThere_AndNoOtherLinkCounts) {
  const std::string dir = TempDir();
  const std::map<std::string, std::string> query = {
      {"generation", "3"}, {"rank", "7"}, {"stream", "stderr"}};
  std::filesystem::create_directories(dir + "/job/generation_3");
  const std::string rank = dir + "/job/generation_3/rank_7";
  const auto path_with = [&](const char* target) {
    std::filesystem::remove(rank);
    std::filesystem::create_symlink(target, rank);
    return LogPath(dir, "job", "", query).value();
  };
  EXPECT_EQ(path_with("../generation_1/rank_5"), "job/generation_1/rank_5/stderr.log");
  EXPECT_EQ(path_with("../generation_2/standby_0"), "job/generation_2/standby_0/stderr.log");
  for (const char* target : {"/etc", "../../other/generation_1/rank_5", "../generation_1/..",
                             "../generation_1/rank_5/x", "../generation_x/rank_5", ".."}) {
    EXPECT_EQ(path_with(target), "job/generation_3/rank_7/stderr.log") << target;
  }
}

TEST(LogFilesTest, RunsAreApart_AndWithoutOneTheNewestIsMeant) {
  const std::string dir = TempDir();
  const std::map<std::string, std::string> query = {
      {"generation", "2"}, {"rank", "0"}, {"stream", "stdout"}};
  std::filesystem::create_directories(dir + "/job/run_1Z/generation_1/rank_0");
  std::filesystem::create_directories(dir + "/job/run_2.5Z/generation_2/rank_0");
  std::filesystem::create_directory_symlink("run_2.5Z/generation_2", dir + "/job/generation_2");
  EXPECT_EQ(LogListJson(dir, "job", "1Z"), "{\"generations\":[{\"generation\":1,\"ranks\":[0]}]}");
  EXPECT_EQ(LogListJson(dir, "job", ""), "{\"generations\":[{\"generation\":2,\"ranks\":[0]}]}");
  EXPECT_EQ(LogPath(dir, "job", "1Z", query).value(), "job/run_1Z/generation_2/rank_0/stdout.log");
  EXPECT_EQ(LogPath(dir, "job", "", query).value(), "job/run_2.5Z/generation_2/rank_0/stdout.log");
  // Other links are not followed.
  for (const char* target : {"/etc/generation_2", "run_a/b/generation_2", "run_1Z/generation_1",
                             "../job/run_1Z/generation_2"}) {
    std::filesystem::remove(dir + "/job/generation_2");
    std::filesystem::create_directory_symlink(target, dir + "/job/generation_2");
    EXPECT_EQ(LogPath(dir, "job", "", query).value(), "job/generation_2/rank_0/stdout.log")
        << target;
  }
}

TEST(LogFilesTest, JobNamesAreSafeInPaths) {
  for (const char* name : {"a", "mnist-2", "0x"}) EXPECT_TRUE(IsJobName(name)) << name;
  for (const char* name : {"", ".", "..", "-a", "a/b", "A", "a.b", "a\n"}) {
    EXPECT_FALSE(IsJobName(name)) << name;
  }
  EXPECT_TRUE(IsJobName(std::string(63, 'a')));
  EXPECT_FALSE(IsJobName(std::string(64, 'a')));
}

class OpenBelowTest : public testing::Test {
 protected:
  OpenBelowTest() {
    std::filesystem::create_directories(root_ + "/a/b");
    std::ofstream(root_ + "/a/b/file") << "text";
  }
  // Returns 0 or the errno.
  int Opens(const std::string& relative) {
    const int fd = OpenBelow(root_, relative);
    if (fd < 0) return errno;
    close(fd);
    return 0;
  }
  const std::string root_ =
      testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(OpenBelowTest, AFile) {
  EXPECT_EQ(Opens("a/b/file"), 0);
  EXPECT_EQ(Opens("a/b/none"), ENOENT);
  EXPECT_EQ(Opens("none/b/file"), ENOENT);
}

TEST_F(OpenBelowTest, NoLinkIsFollowed) {
  std::filesystem::create_symlink("b", root_ + "/a/other");
  std::filesystem::create_symlink("file", root_ + "/a/b/link");
  EXPECT_EQ(Opens("a/other/file"), ENOTDIR);
  EXPECT_EQ(Opens("a/b/link"), ELOOP);
  EXPECT_EQ(Opens("a/../a/b/file"), EINVAL);
}

TEST_F(OpenBelowTest, OnlyRegularFiles) {
  ASSERT_EQ(mkfifo((root_ + "/a/fifo").c_str(), 0600), 0);
  EXPECT_EQ(Opens("a/fifo"), EINVAL);
  EXPECT_EQ(Opens("a/b"), EINVAL);
  EXPECT_EQ(Opens(""), EINVAL);
}

}  // namespace

}  // namespace cadre::web
