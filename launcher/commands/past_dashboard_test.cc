#include "launcher/commands/past_dashboard.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "launcher/commands/past_run_for_test.h"
#include "nlohmann/json.hpp"
#include "rendezvous/web/http/reader_for_test.h"

namespace cadre::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kToken[] = "0123456789abcdef";
constexpr char kFirst[] = "20261122T011933.123456Z", kSecond[] = "20261123T011933.123456Z";

class PastDashboardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(&logs_[0]), nullptr);
    Run("a", kFirst, "rank 0 died");
    Run("a", kSecond, "");
    auto started = PastDashboard::Start({logs_, logs_ + "/none"}, kToken);
    ASSERT_OK(started);
    dashboard_ = *std::move(started);
  }
  void Run(const std::string& job, const std::string& run, const std::string& message) {
    WritePastRun(logs_, job, run, message);
  }
  std::string Request(const std::string& path, const std::string& token = kToken) {
    return absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ",
                        token, "\r\n\r\n");
  }
  std::string Get(const std::string& path, const std::string& token = kToken) {
    web::ReaderForTest reader(dashboard_->port());
    reader.Send(Request(path, token));
    return reader.All();
  }
  nlohmann::json Body(const std::string& path) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(Get(path), absl::MaxSplits("\r\n\r\n", 1));
    return nlohmann::json::parse(parts.second, nullptr, false);
  }

  std::string logs_ = ::testing::TempDir() + "/past_XXXXXX";
  std::unique_ptr<PastDashboard> dashboard_;
};

TEST_F(PastDashboardTest, AllRuns_TheNewestFirst) {
  const nlohmann::json jobs = Body("/api/jobs")["jobs"];
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0]["name"], absl::StrCat("a@", kSecond));
  EXPECT_THAT(jobs[0]["waiting_for"], HasSubstr("has no verdict"));
  EXPECT_EQ(jobs[1]["verdict"]["message"], "rank 0 died");
  EXPECT_FALSE(jobs[1].contains("timeline"));
  // One run ends meanwhile, and a new one is added.
  Run("a", kSecond, "the second died");
  Run("b", kFirst, "of another");
  const nlohmann::json now = Body("/api/jobs")["jobs"];
  ASSERT_EQ(now.size(), 3u);
  EXPECT_EQ(now[0]["verdict"]["message"], "the second died");
}

TEST_F(PastDashboardTest, OneRun_WithWhatItKept) {
  const std::string path = absl::StrCat("/api/jobs/a%40", kFirst);
  const nlohmann::json run = Body(path);
  EXPECT_EQ(run["name"], absl::StrCat("a@", kFirst));
  EXPECT_EQ(run["timeline"]["progress"][0]["step"], "7");
  EXPECT_EQ(run["verdict"]["root_cause"]["exit"]["last_lines"], "last words");
  EXPECT_EQ(Body(path + "/logs")["generations"],
            nlohmann::json::parse("[{\"generation\": 1, \"ranks\": [0]}]"));
  EXPECT_EQ(Body(path + "/usage")["nodes"].size(), 0u);
  std::ofstream(absl::StrCat(logs_, "/a/run_", kFirst, "/usage.json"))
      << R"({"nodes":[{"node":"n","atUs":["1"],"cpu":[0.5],"gpu":["NaN"]}]})";
  EXPECT_EQ(Body(path + "/usage")["nodes"][0]["cpu"][0], 0.5);
  web::ReaderForTest reader(dashboard_->port());
  reader.Send(Request(path + "/log?generation=1&rank=0&stream=stdout"));
  EXPECT_TRUE(reader.Await("one\ntwo\n"));
  web::ReaderForTest events(dashboard_->port());
  events.Send(Request(absl::StrCat("/api/events?job=a%40", kFirst)));
  EXPECT_TRUE(events.Await("event: jobs\ndata: {\"jobs\":[{\"name\":\"a@"));
  EXPECT_TRUE(events.Await(absl::StrCat("event: job\ndata: {\"name\":\"a@", kFirst)));
}

TEST_F(PastDashboardTest, WhatIsNoRunOfTheseDirectories_IsNotFound) {
  for (const std::string& path :
       {std::string("/api/jobs/a"), std::string("/api/jobs/none%40") + kFirst,
        std::string("/api/jobs/..%40") + kFirst, std::string("/api/jobs/a%40..%2f..%2fetc"),
        absl::StrCat("/api/jobs/a%40", kFirst, "/stacks"), std::string("/metrics")}) {
    EXPECT_THAT(Get(path), StartsWith("HTTP/1.1 404 ")) << path;
  }
}

// Fault (access): Another user of the machine opens the port of `cadre dashboard` -> Data are
// refused without the secret that is part of the printed address
TEST_F(PastDashboardTest, OnlyWhoHasTheAddressReads_ThePageIsOpen) {
  for (const std::string& path :
       {std::string("/api/jobs"), std::string("/api/events"),
        absl::StrCat("/api/jobs/a%40", kFirst, "/log?generation=1&rank=0&stream=stdout")}) {
    EXPECT_THAT(Get(path, "0123456789abcdeX"),
                AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("the whole address"),
                      Not(HasSubstr("rank 0 died")), Not(HasSubstr("two"))))
        << path;
  }
  EXPECT_THAT(Get("/", "no"), StartsWith("HTTP/1.1 200 "));
}

// Fault (access): A file of a run is a link that leads out of the log directory -> The link is not
// followed
TEST_F(PastDashboardTest, AFileThatLeadsElsewhere_IsNotFollowed) {
  const std::string rank = absl::StrCat(logs_, "/a/run_", kFirst, "/generation_1/rank_0");
  std::filesystem::create_symlink("/etc/passwd", rank + "/stderr.log");
  EXPECT_THAT(Get(absl::StrCat("/api/jobs/a%40", kFirst, "/log?generation=1&rank=0&stream=stderr")),
              AllOf(HasSubstr("(cannot read "), Not(HasSubstr("root:"))));
}

}  // namespace
}  // namespace cadre::launcher
