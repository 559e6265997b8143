#include "rendezvous/web/dashboard/dashboard.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "rendezvous/web/dashboard/dashboard_rig.h"
#include "rendezvous/web/dashboard/log_tails.h"

namespace cadre::web {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using DashboardTest = DashboardRig;

TEST_F(DashboardTest, ThePageAndWhatItNames) {
  Start();
  const std::string page = Get("/");
  EXPECT_THAT(page, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("text/html"),
                          HasSubstr("<title>Cadre</title>")));
  for (const char* file : {"/style.css", "/icon.svg", "/main.js", "/dom.js", "/events.js",
                           "/job.js", "/pictures.js", "/logs.js", "/cluster.js", "/stacks.js",
                           "/charts.js", "/compare.js", "/history.js", "/uplot.css"}) {
    EXPECT_THAT(Get(file), StartsWith("HTTP/1.1 200 ")) << file;
  }
  // Copies of the library carry its licence.
  EXPECT_THAT(Get("/uplot.js"),
              AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("script-src 'self';"),
                    HasSubstr("Permission is hereby granted"), HasSubstr("var uPlot=")));
  EXPECT_THAT(Get("/nothing"), StartsWith("HTTP/1.1 404 "));
}

TEST_F(DashboardTest, HowBusyTheNodesAre) {
  Start();
  AddJob();
  EXPECT_EQ(Body(Get("/api/jobs/job/usage"))["nodes"].size(), 0u);
  v1::NodeMessage renew = host::JoinForTest("node", 2, 2);
  renew.clear_join();
  v1::NodeUsage* usage = renew.mutable_renew()->mutable_usage();
  usage->set_cpu(0.5);
  usage->set_memory_used(1 << 20);
  usage->set_memory_total(4 << 20);
  ASSERT_OK(core_.Post(stream_, renew));
  const nlohmann::json node = Body(Get("/api/jobs/job/usage"))["nodes"][0];
  EXPECT_EQ(node["node"], "node");
  EXPECT_EQ(node["cpu"][0], 0.5);
  EXPECT_EQ(node["memory"][0], 0.25);
  EXPECT_EQ(node["gpu"].size(), 0u);
  EXPECT_THAT(Get("/api/jobs/none/usage"), StartsWith("HTTP/1.1 404 "));
}

TEST_F(DashboardTest, JobsMetricsAndHealth) {
  Start();
  AddJob();
  EXPECT_THAT(Get("/healthz"), HasSubstr("\r\n\r\nok\n"));
  EXPECT_THAT(
      Get("/metrics"),
      AllOf(HasSubstr("text/plain; version=0.0.4"), HasSubstr("\ncadre_leads 1\n"),
            HasSubstr("\ncadre_jobs{phase=\"gathering\"} 1\n"), HasSubstr("\ncadre_streams 1\n"),
            HasSubstr("\ncadre_node_messages_total{kind=\"join\"} 1\n")));
  EXPECT_EQ(Body(Get("/api/jobs"))["jobs"][0]["name"], "job");
  EXPECT_EQ(Body(Get("/api/jobs/job"))["nodes"][0]["name"], "node");
  for (const char* path : {"/api/jobs/none", "/api/jobs/job/x", "/api/jobs/..", "/api/jobs/"}) {
    EXPECT_THAT(Get(path), StartsWith("HTTP/1.1 404 ")) << path;
  }
}

TEST_F(DashboardTest, InReserve) {
  in_reserve_ = true;
  Start();
  EXPECT_THAT(Get("/healthz"), HasSubstr("ok, in reserve"));
  EXPECT_THAT(Get("/metrics"), AllOf(HasSubstr("\ncadre_leads 0\n"), Not(HasSubstr("_jobs"))));
  EXPECT_THAT(Get("/api/jobs"), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("in reserve")));
}

TEST_F(DashboardTest, ATokenIsWantedForAllThatSpeaksOfJobs) {
  DashboardOptions options;
  options.token = kToken;
  Start(options);
  AddJob();
  for (const char* path :
       {"/metrics", "/api/jobs", "/api/jobs/job", "/api/events", "/api/jobs/job/logs",
        "/api/jobs/job/log", "/api/jobs/job/stacks", "/api/jobs/job/usage", "/api/nodes"}) {
    EXPECT_THAT(Get(path), AllOf(StartsWith("HTTP/1.1 401 "), Not(HasSubstr("gathering")))) << path;
    EXPECT_THAT(Get(path, "Authorization: Bearer 0123456789abcdeX\r\n"),
                StartsWith("HTTP/1.1 401 "))
        << path;
  }
  EXPECT_THAT(Get("/metrics", absl::StrCat("Authorization: Bearer ", kToken, "\r\n")),
              StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Get("/"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(DashboardTest, WithoutATokenOnlyUnderLoopbacksNames) {
  Start();
  EXPECT_THAT(Get("/api/jobs", "Host: rebound.example\r\n"), StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(Get("/api/jobs", absl::StrCat("Host: 127.0.0.1:", dashboard_->port(), "\r\n")),
              StartsWith("HTTP/1.1 200 "));
  DashboardOptions everywhere;
  everywhere.host = "0.0.0.0";
  EXPECT_THAT(Dashboard::Start(everywhere, [] { return absl::UnavailableError(""); }).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--token-file")));
}

TEST_F(DashboardTest, ChangesArePushed_AndTheEndToo) {
  Start();
  ReaderForTest reader(dashboard_->port());
  reader.Send("GET /api/events?job=job HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(reader.Await("event: jobs\ndata: {\"jobs\":[]}\n\n"));
  EXPECT_TRUE(reader.Await("event: job\ndata: null\n\n"));
  AddJob();
  EXPECT_TRUE(reader.Await("event: job\ndata: {\"name\":\"job\",\"phase\":\"GATHERING\""));
  ASSERT_OK(core_.Cancel("job", "enough", 0));
  dashboard_->Finish(absl::Seconds(20));
  EXPECT_THAT(reader.All(), HasSubstr("\"phase\":\"CANCELLED_PHASE\""));
}

TEST_F(DashboardTest, OutputIsFollowed_WhereItIsHere) {
  std::string dir = testing::TempDir() + "/logs_XXXXXX";
  ASSERT_NE(mkdtemp(&dir[0]), nullptr);
  DashboardOptions options;
  options.log_dir = dir;
  Start(options);
  EXPECT_EQ(Body(Get("/api/jobs/job/logs"))["generations"].size(), 0u);
  ReaderForTest reader(dashboard_->port());
  reader.Send(
      "GET /api/jobs/job/log?generation=1&rank=0&stream=stdout HTTP/1.1\r\nHost: localhost\r\n"
      "\r\n");
  EXPECT_TRUE(reader.Await("\r\n\r\n"));
  const std::string rank = dir + "/job/generation_1/rank_0";
  std::filesystem::create_directories(rank);
  std::ofstream log(rank + "/stdout.log");
  log << "first line\n" << std::flush;
  EXPECT_TRUE(reader.Await("first line\n"));
  log << "second line\n" << std::flush;
  EXPECT_TRUE(reader.Await("second line\n"));
  EXPECT_EQ(Body(Get("/api/jobs/job/logs"))["generations"][0]["ranks"][0], 0);
  // A file is all that is read.
  std::filesystem::create_symlink("/etc/passwd", rank + "/stderr.log");
  ReaderForTest link(dashboard_->port());
  link.Send(
      "GET /api/jobs/job/log?generation=1&rank=0&stream=stderr HTTP/1.1\r\nHost: localhost\r\n"
      "\r\n");
  log << "third line\n" << std::flush;
  EXPECT_TRUE(reader.Await("third line\n"));
  dashboard_->Finish(absl::Seconds(20));
  EXPECT_THAT(link.All(),
              AllOf(Not(HasSubstr("root:")), HasSubstr("(cannot read job/generation_1")));
}

TEST_F(DashboardTest, TheClustersNodes) {
  Start();
  ReaderForTest reader(dashboard_->port());
  reader.Send("GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(reader.Await("event: nodes\ndata: {\"nodes\":[]}\n\n"));
  AddSubmittedJob();
  EXPECT_TRUE(reader.Await("event: nodes\ndata: {\"nodes\":[{\"name\":\"node\""));
  const nlohmann::json node = Body(Get("/api/nodes"))["nodes"][0];
  EXPECT_EQ(node["labels"]["switch"], "s1");
  EXPECT_EQ(node["parts"][0]["job"], "job");
  EXPECT_EQ(Body(Get("/api/jobs"))["jobs"][0]["user"], "ann");
  dashboard_->Finish(absl::Seconds(20));
}

TEST_F(DashboardTest, OutputOfASubmittedJobComesThroughItsAgent) {
  // The end alone of what is there.
  agent_->Append(std::string(kTailBytes, 'x') + "the end\n");
  Start();
  AddSubmittedJob();
  EXPECT_EQ(Body(Get("/api/jobs/job/logs"))["generations"],
            nlohmann::json::parse("[{\"generation\": 1, \"ranks\": [0, 1]}]"));
  ReaderForTest reader(dashboard_->port());
  reader.Send(
      "GET /api/jobs/job/log?generation=1&rank=1&stream=stdout HTTP/1.1\r\nHost: localhost\r\n"
      "\r\n");
  EXPECT_TRUE(reader.Await("xthe end\n"));
  agent_->Append("and more\n");
  EXPECT_TRUE(reader.Await("xthe end\nand more\n"));
  // More than is sent at one tick.
  agent_->Append(std::string(kTailBytesPerTick + 1, 'y') + "\nlast\n");
  EXPECT_TRUE(reader.Await("y\nlast\n"));
  EXPECT_THAT(Get("/api/jobs/job/log?generation=1&rank=x&stream=stdout"),
              AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr("rank=")));
  dashboard_->Finish(absl::Seconds(20));
  EXPECT_THAT(reader.All(), Not(HasSubstr(std::string(kTailBytes - 7, 'x'))));
}

TEST_F(DashboardTest, OutputEndsWhenNothingIsAddedAnyMore_AndSaysWhatIsRefused) {
  agent_->Append("all of it\n");
  Start();
  AddSubmittedJob();
  const std::string path = "/api/jobs/job/log?generation=1&rank=1&stream=stdout";
  ReaderForTest reader(dashboard_->port());
  reader.Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  EXPECT_TRUE(reader.Await("all of it\n"));
  ASSERT_OK(core_.Cancel("job", "enough", 0));
  v1::NodeMessage stopped = host::JoinForTest("node", 1, 1);
  stopped.clear_join();
  stopped.set_generation(1);
  stopped.mutable_node_stopped();
  ASSERT_OK(core_.Post(stream_, stopped));
  // The verdict is there; the last of the output comes after it.
  agent_->Append("last words\n");
  EXPECT_TRUE(reader.Await("last words\n"));
  core_.CloseStream(stream_);
  agent_->EndPart();
  // It comes to its end without anybody leaving.
  EXPECT_THAT(reader.All(), HasSubstr("all of it\n"));
  agent_->Refuse("not yours");
  EXPECT_THAT(Get(path), AllOf(StartsWith("HTTP/1.1 403 "), HasSubstr("not yours")));
}

TEST_F(DashboardTest, WhereTheRanksAre) {
  Start();
  const auto node = std::make_shared<NodeForTest>(core_);
  node->Join(node);
  ASSERT_EQ(core_.Status("job")->world_size(), 2u);
  const nlohmann::json all = Body(Get("/api/jobs/job/stacks"));
  ASSERT_EQ(all["groups"].size(), 1u) << all;
  EXPECT_EQ(all["groups"][0]["ranks"], nlohmann::json::parse("[0, 1]"));
  EXPECT_EQ(all["groups"][0]["first"]["frames"][0]["function"], "all_reduce");
  EXPECT_EQ(Body(Get("/api/jobs/job/stacks?rank=1"))["groups"][0]["ranks"],
            nlohmann::json::parse("[1]"));
  EXPECT_THAT(Get("/api/jobs/job/stacks?rank=x"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Get("/api/jobs/job/stacks?rank=2"),
              AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("no rank 2")));
  EXPECT_THAT(Get("/api/jobs/none/stacks"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Get("/api/jobs/job/stacks", "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n"),
              StartsWith("HTTP/1.1 403 "));
  dashboard_->Finish(absl::Seconds(20));
}

TEST_F(DashboardTest, WithoutALogDirectoryThatIsSaid) {
  Start();
  EXPECT_THAT(Get("/api/jobs/job/log?generation=1&rank=0&stream=stdout"),
              AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("on their nodes")));
}

}  // namespace
}  // namespace cadre::web
