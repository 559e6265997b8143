// /metrics as Prometheus's own tools see it.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <regex>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "nlohmann/json.hpp"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kPromtool[] = "/usr/bin/promtool";
constexpr char kPrometheus[] = "/usr/bin/prometheus";
constexpr char kExample[] = "examples/grafana/";

// One failure that is restarted, then progress until it is stopped.
constexpr char kFailsOnce[] =
    "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 7; i=0; while :; do i=$((i+1)); "
    "echo step=$i samples_per_second=100 loss=0.5 >&$CADRE_PROGRESS_FD; sleep 0.1; done";

struct Fetched {
  int exit = -1;
  std::string text;
};

Fetched Curl(const std::vector<std::string>& arguments) {
  ProcessOptions options;
  options.argv = {"/usr/bin/curl",    "--silent",   "--show-error",
                  "--fail-with-body", "--max-time", "30"};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  auto curl = RunToEnd(options);
  if (!curl.ok()) {
    ADD_FAILURE() << curl.status();
    return {};
  }
  return {(*curl)->Wait().value_or(-1), (*curl)->standard_output()};
}

// Until `url` shows `text`, or no longer does; what it showed last.
std::string CurlUntil(const std::string& url, const std::string& text, bool shows = true) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  Fetched fetched = Curl({url});
  while (absl::Now() < deadline && absl::StrContains(fetched.text, text) != shows) {
    fetched = Curl({url});
    absl::SleepFor(absl::Milliseconds(50));
  }
  return fetched.text;
}

void ExpectPasses(const std::vector<std::string>& argv) {
  ProcessOptions options;
  options.argv = argv;
  auto process = RunToEnd(options);
  ASSERT_OK(process);
  EXPECT_EQ((*process)->Wait(), 0) << OutputOf(**process);
  // promtool says there what it would rather have otherwise.
  EXPECT_EQ((*process)->standard_error(), "");
}

void WriteFile(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

class MetricsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (access(kPromtool, X_OK) != 0 || access(kPrometheus, X_OK) != 0) {
      GTEST_SKIP() << "prometheus is not installed: tools/install_packages";
    }
  }

  // A server with a job of one node that failed once and runs again.
  void StartJob() {
    server_ = StartCadre({"server", "--port", absl::StrCat(port_), "--state-dir",
                          MakeTempDir("state"), "--http", absl::StrCat("127.0.0.1:", http_)});
    ASSERT_TRUE(server_->WaitForLine("serving at").has_value()) << OutputOf(*server_);
    node_ = StartNode(port_, "1", 0,
                      {"--job-name", "measured", "--max-restarts", "1", "--log-dir",
                       MakeTempDir("logs"), "--", "/bin/sh", "-c", kFailsOnce});
  }
  std::string Url(const std::string& path) const {
    return absl::StrCat("http://127.0.0.1:", http_, path);
  }
  void StopJob() {
    node_->Kill(SIGINT);
    EXPECT_EQ(node_->Wait(), 130) << OutputOf(*node_);
  }

  const int port_ = FreePort();
  const int http_ = FreePort();
  std::unique_ptr<Process> server_;
  std::unique_ptr<Process> node_;
};

TEST_F(MetricsTest, PromtoolHasNothingToSay_AndNumbersAreRight) {
  ASSERT_NO_FATAL_FAILURE(StartJob());
  const std::string text = CurlUntil(Url("/metrics"), "cadre_job_loss{name=\"measured\"} 0.5\n");
  const std::string file = MakeTempDir("metrics") + "/text";
  WriteFile(file, text);
  ExpectPasses({"/bin/sh", "-c", absl::StrCat(kPromtool, " check metrics < ", file)});
  for (const char* line :
       {"cadre_jobs{phase=\"running\"} 1\n", "cadre_nodes 1\n", "cadre_workers_running 1\n",
        "cadre_streams 1\n", "cadre_generations_total 2\n",
        "cadre_failures_total{cause=\"crash\"} 1\n", "cadre_restarts_total{cause=\"crash\"} 1\n",
        "cadre_recovery_seconds_count 1\n", "cadre_recovery_seconds_bucket{le=\"300\"} 1\n",
        "cadre_job_generation{name=\"measured\"} 2\n",
        "cadre_job_samples_per_second{name=\"measured\"} 100\n", "cadre_saves 1\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("cadre_commit_seconds_count 0\n")));
  EXPECT_THAT(CurlUntil(Url("/metrics"), "{kind=\"renew\"} 0\n", false),
              Not(HasSubstr("{kind=\"renew\"} 0\n")));
  StopJob();
  EXPECT_THAT(CurlUntil(Url("/metrics"), "cadre_jobs_ended_total{outcome=\"cancelled\"} 1\n"),
              AllOf(HasSubstr("cadre_jobs_ended_total{outcome=\"cancelled\"} 1\n"),
                    HasSubstr("cadre_workers_running 0\n"), Not(HasSubstr("name=\"measured\""))));
}

TEST_F(MetricsTest, PrometheusScrapesIt_AsTheExampleSays) {
  ASSERT_NO_FATAL_FAILURE(StartJob());
  // The example's own file, with this test's server and a shorter interval.
  std::string config = ReadFileOrEmpty(absl::StrCat(kExample, "prometheus.yml"));
  ASSERT_THAT(config, HasSubstr("localhost:29480"));
  const std::string directory = MakeTempDir("prometheus");
  WriteFile(directory + "/prometheus.yml",
            absl::StrReplaceAll(config, {{"localhost:29480", absl::StrCat("127.0.0.1:", http_)},
                                         {"scrape_interval: 15s", "scrape_interval: 1s"}}));
  ProcessOptions check;
  check.argv = {kPromtool, "check", "config", directory + "/prometheus.yml"};
  auto checked = RunToEnd(check);
  ASSERT_OK(checked);
  EXPECT_EQ((*checked)->Wait(), 0) << OutputOf(**checked);
  const int port = FreePort();
  ProcessOptions options;
  options.argv = {kPrometheus, "--config.file=" + directory + "/prometheus.yml",
                  "--storage.tsdb.path=" + directory + "/data",
                  absl::StrCat("--web.listen-address=127.0.0.1:", port)};
  auto prometheus = Process::Start(options);
  ASSERT_OK(prometheus);
  const std::string query = absl::StrCat("http://127.0.0.1:", port, "/api/v1/query?query=");
  EXPECT_THAT(CurlUntil(query + "up", ",\"1\"]"), HasSubstr("\"job\":\"cadre\""));
  EXPECT_THAT(CurlUntil(query + "cadre_job_loss", ",\"0.5\"]"), HasSubstr("\"name\":\"measured\""));
  StopJob();
}

TEST_F(MetricsTest, TheGrafanaDashboardAsksForWhatThereIs) {
  ASSERT_NO_FATAL_FAILURE(StartJob());
  const std::string text = CurlUntil(Url("/metrics"), "cadre_job_loss{name=\"measured\"} 0.5\n");
  const std::string file = ReadFileOrEmpty(absl::StrCat(kExample, "dashboard.json"));
  const auto dashboard = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(dashboard.is_object());
  EXPECT_GE(dashboard["panels"].size(), 8u);
  std::set<std::string> names;
  const std::regex name("cadre_[a-z_]+");
  for (std::sregex_iterator at(file.begin(), file.end(), name), end; at != end; ++at) {
    names.insert(at->str());
  }
  EXPECT_GE(names.size(), 12u);
  for (const std::string& one : names) EXPECT_THAT(text, HasSubstr("\n" + one));
  StopJob();
}

TEST(HttpTest, OffLoopbackWithTheTokenAlone) {
  const std::string token = MakeTempDir("token") + "/token";
  auto made = StartCadre({"token", "new", token});
  ASSERT_EQ(made->Wait(), 0) << OutputOf(*made);
  const std::string port = absl::StrCat(FreePort()), http = absl::StrCat("0.0.0.0:", FreePort());
  auto refused = StartCadre({"server", "--port", port, "--state-dir", "none", "--http", http});
  EXPECT_EQ(refused->Wait(), 64);
  EXPECT_THAT(refused->standard_error(), HasSubstr("--token-file"));
  auto server = StartCadre(
      {"server", "--port", port, "--state-dir", "none", "--token-file", token, "--http", http});
  ASSERT_TRUE(server->WaitForLine("serving at").has_value()) << OutputOf(*server);
  const std::string url = absl::StrCat("http://", http, "/metrics");
  EXPECT_NE(Curl({url}).exit, 0);
  const Fetched fetched =
      Curl({"--header",
            absl::StrCat("Authorization: Bearer ",
                         absl::StrReplaceAll(ReadFileOrEmpty(token), {{"\n", ""}})),
            url});
  EXPECT_EQ(fetched.exit, 0);
  EXPECT_THAT(fetched.text, HasSubstr("cadre_leads 1\n"));
  EXPECT_EQ(Curl({absl::StrCat("http://", http, "/healthz")}).text, "ok\n");
  server->Kill(SIGTERM);
  EXPECT_EQ(server->Wait(), 0) << OutputOf(*server);
}

TEST(HttpTest, ALauncherShowsItsOwnJob_AndThatItEnds) {
  const std::string at = absl::StrCat("127.0.0.1:", FreePort()), gate = MakeTempDir("gate") + "/go";
  auto run = StartCadre({"run", "--standalone", "--http", at, "--job-name", "own", "--log-dir",
                         MakeTempDir("logs"), "--", "/bin/sh", "-c",
                         absl::StrCat("echo hello; until [ -e ", gate, " ]; do sleep 0.05; done")});
  ASSERT_TRUE(run->WaitForLine(absl::StrCat("dashboard at http://", at, "/")).has_value())
      << OutputOf(*run);
  EXPECT_THAT(CurlUntil(absl::StrCat("http://", at, "/api/jobs"), "\"RUNNING\""),
              HasSubstr("\"name\":\"own\""));
  ProcessOptions events;
  events.argv = {"/usr/bin/curl", "--silent", "--no-buffer",
                 "--max-time",    "60",       absl::StrCat("http://", at, "/api/events?job=own")};
  auto reader = Process::Start(events);
  ASSERT_OK(reader);
  EXPECT_TRUE((*reader)->WaitForLine("data: {\"name\":\"own\"").has_value());
  WriteFile(gate, "");
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_EQ((*reader)->Wait(), 0);
  EXPECT_THAT((*reader)->standard_output(), HasSubstr("\"phase\":\"SUCCEEDED\""));
}

}  // namespace
}  // namespace cadre
