// Who reads what on the dashboard, by the token.
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/token.h"
#include "rendezvous/web/dashboard/dashboard_rig.h"

namespace cadre::web {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using DashboardTokensTest = DashboardRig;

TEST_F(DashboardTokensTest, AReadOnlyTokenShowsJobsAndNodesAndNoOutput) {
  DashboardOptions options;
  options.token = kToken;
  Start(options);
  agent_->Append("what ann wrote\n");
  AddSubmittedJob();
  ASSERT_OK(core_.Cancel("job", "what ann wrote", 0));
  const std::string log = "/api/jobs/job/log?generation=1&rank=1&stream=stdout";
  for (const std::string& token : {Read(), User("bob")}) {
    EXPECT_THAT(GetAs(token, "/metrics"), HasSubstr("\ncadre_jobs{phase=\"stopping\"} 1\n"));
    EXPECT_THAT(GetAs(token, "/api/nodes"), HasSubstr("\"switch\":\"s1\""));
    for (const char* path : {"/api/jobs", "/api/jobs/job"}) {
      EXPECT_THAT(GetAs(token, path),
                  AllOf(HasSubstr("\"user\":\"ann\""), Not(HasSubstr("what ann wrote"))));
    }
    for (const std::string& path :
         {log, std::string("/api/jobs/job/logs"), std::string("/api/jobs/job/stacks"),
          std::string("/api/jobs/none/logs"), std::string("/api/jobs/none/log")}) {
      EXPECT_THAT(GetAs(token, path),
                  AllOf(StartsWith("HTTP/1.1 403 "), Not(HasSubstr("what ann wrote"))))
          << path;
    }
  }
  EXPECT_THAT(GetAs(User("ann"), "/api/jobs/job"), HasSubstr("what ann wrote"));
  // What is pushed to several readers at once is not the same.
  ReaderForTest reader(dashboard_->port()), bob(dashboard_->port()), ann(dashboard_->port());
  const auto follow = [](ReaderForTest& to, const std::string& token) {
    to.Send(absl::StrCat("GET /api/events?job=job HTTP/1.1\r\nAuthorization: Bearer ", token,
                         "\r\n\r\n"));
    EXPECT_TRUE(to.Await("event: job\ndata: {\"name\":\"job\""));
  };
  follow(ann, User("ann"));
  follow(bob, User("bob"));
  follow(reader, Read());
  ReaderForTest output(dashboard_->port());
  output.Send(
      absl::StrCat("GET ", log, " HTTP/1.1\r\nAuthorization: Bearer ", User("ann"), "\r\n\r\n"));
  EXPECT_TRUE(output.Await("what ann wrote\n"));
  dashboard_->Finish(absl::Seconds(20));
  EXPECT_THAT(ann.All(), HasSubstr("what ann wrote"));
  EXPECT_THAT(bob.All(), Not(HasSubstr("what ann wrote")));
  EXPECT_THAT(reader.All(), Not(HasSubstr("what ann wrote")));
}

// There are 32 streams for all.
TEST_F(DashboardTokensTest, OneUsersStreamsLeaveOthersTheirPlaces) {
  DashboardOptions options;
  options.token = kToken;
  Start(options);
  const auto follow = [](ReaderForTest& to, const std::string& token) {
    to.Send(absl::StrCat("GET /api/events HTTP/1.1\r\nAuthorization: Bearer ", token, "\r\n\r\n"));
  };
  std::vector<std::unique_ptr<ReaderForTest>> anns;
  for (size_t i = 0; i < kReadersOfUserMax; ++i) {
    anns.push_back(std::make_unique<ReaderForTest>(dashboard_->port()));
    follow(*anns.back(), User("ann"));
    EXPECT_TRUE(anns.back()->Await("event: jobs"));
  }
  ReaderForTest one_more(dashboard_->port()), bob(dashboard_->port());
  follow(one_more, User("ann"));
  EXPECT_TRUE(
      one_more.Await("user ann: 16 requests are under way or followed, which is the limit"));
  follow(bob, User("bob"));
  EXPECT_TRUE(bob.Await("event: jobs"));
  anns.clear();
  dashboard_->Finish(absl::Seconds(20));
}

TEST_F(DashboardTokensTest, TheServersTokenOfNowCounts) {
  std::atomic<bool> replaced{false};
  const std::string after = RandomToken();
  DashboardOptions options;
  options.token = kToken;
  options.token_now = [&] { return replaced ? after : std::string(kToken); };
  Start(options);
  EXPECT_THAT(GetAs(Read(), "/api/jobs"), StartsWith("HTTP/1.1 200 "));
  replaced = true;
  EXPECT_THAT(GetAs(Read(), "/api/jobs"), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(GetAs(after, "/api/jobs"), StartsWith("HTTP/1.1 200 "));
  dashboard_->Finish(absl::Seconds(20));
}

TEST_F(DashboardTokensTest, TokensThatHaveEndedOrAreOfAnotherStateOpenNothing) {
  DashboardOptions options;
  options.token = kToken;
  Start(options);
  EXPECT_THAT(GetAs(Read(-absl::Seconds(1)), "/metrics"),
              AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("the read-only token ended at ")));
  EXPECT_THAT(
      GetAs(ReadToken(kToken, core_.server_id() + 1, absl::Now() + kTokenLifetime), "/metrics"),
      AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("lost its state")));
  EXPECT_THAT(GetAs(PartToken(kToken, core_.server_id(), 1, "job"), "/api/jobs"),
              StartsWith("HTTP/1.1 403 "));
  in_reserve_ = true;
  EXPECT_THAT(GetAs(Read(), "/metrics"), HasSubstr("\ncadre_leads 0\n"));
}

}  // namespace
}  // namespace cadre::web
