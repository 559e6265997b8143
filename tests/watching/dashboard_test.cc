// The dashboard in a real browser. Its screenshots are among the test's outputs; those in docs/
// come from there (bazel-testlogs/tests/watching/dashboard_test/test.outputs).
#include <glob.h>
#include <pwd.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_matchers.h"
#include "tests/testing/launch.h"
#include "tests/watching/browser.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Says who it is, then how far it is until it is stopped.
constexpr char kTrains[] =
    "echo \"pid $$\"; printf \"\\033[32mgreen\\033[0m\\n10%%\\r20%%\\r30%%\\n\"; i=0; while :; do "
    "i=$((i+1)); echo \"rank $RANK step $i\"; "
    "echo step=$i total=5000 samples_per_second=100 loss=0.$((800/(i+1)+100)) lr=0.$((900-i)) "
    ">&$CADRE_PROGRESS_FD; "
    "sleep 0.1; done";

// No cell of a table but those for sentences takes two lines.
constexpr char kCellsAreWhole[] =
    "[...document.querySelectorAll('th, td:not(.text)')].every((cell) => { const range = "
    "document.createRange(); range.selectNodeContents(cell); return cell.querySelector('.words') "
    "|| range.getBoundingClientRect().height < 30; })";

// The number of points that a chart draws; NaN: there is no such chart.
std::string PointsOf(const std::string& chart) {
  return absl::StrCat("Number(document.querySelector('#charts [data-chart=\"", chart,
                      "\"]')?.dataset.points)");
}

std::vector<std::string> Matching(const std::string& pattern) {
  glob_t found = {};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  globfree(&found);
  return paths;
}

class DashboardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Browser::IsInstalled()) {
      GTEST_SKIP() << "chromium-headless-shell is not installed: tools/install_packages";
    }
    browser_ = Browser::Start();
    ASSERT_NE(browser_, nullptr);
  }
  void TearDown() override {
    if (browser_ != nullptr) {
      EXPECT_THAT(browser_->complaints(), ElementsAre());
    }
  }

  // Asks where the ranks are; nothing happens to them.
  void AskForStacks() {
    browser_->Evaluate("document.getElementById('ask-stacks').click()");
    EXPECT_TRUE(browser_->Await("document.querySelectorAll('#stacks .stack').length > 0"));
    const std::string stacks =
        browser_->Evaluate("document.getElementById('stacks').textContent").dump();
    EXPECT_THAT(stacks, HasSubstr(": no Python stack"));
    EXPECT_THAT(stacks, HasSubstr("does not handle"));
    EXPECT_THAT(browser_->Evaluate("document.getElementById('stacks-line').textContent").dump(),
                HasSubstr("Generation 1 at "));
  }

  std::unique_ptr<Browser> browser_;
};

// The process that wrote "pid N" into a worker's output.
pid_t WorkerOf(const std::string& logs, int generation, int rank) {
  const std::string file =
      absl::StrCat(logs, "/seen/generation_", generation, "/rank_", rank, "/stdout.log");
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (absl::Now() < deadline) {
    const std::string text = ReadFileOrEmpty(file);
    absl::string_view line = absl::string_view(text).substr(0, text.find('\n'));
    pid_t pid = 0;
    if (text.find('\n') != text.npos && absl::ConsumePrefix(&line, "pid ") &&
        absl::SimpleAtoi(line, &pid)) {
      return pid;
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
  ADD_FAILURE() << file << " does not begin with the worker's pid";
  return -1;
}

// A server, the page, and a job of two nodes with two ranks each.
class JobDashboardTest : public DashboardTest {
 protected:
  void SetUp() override {
    DashboardTest::SetUp();
    if (browser_ == nullptr) return;
    const std::string http = absl::StrCat("127.0.0.1:", FreePort());
    server_ = StartCadre({"server", "--port", absl::StrCat(port_), "--state-dir",
                          MakeTempDir("state"), "--http", http, "--log-dir", logs_});
    ASSERT_TRUE(server_->WaitForLine("serving at").has_value()) << OutputOf(*server_);
    browser_->Open(absl::StrCat("http://", http, "/"));
    EXPECT_TRUE(browser_->Await("document.getElementById('connection').textContent === 'live'"));
    EXPECT_TRUE(browser_->Await("!document.getElementById('no-jobs').hidden"));
    for (int i = 0; i < 2; ++i) {
      nodes_.push_back(StartNode(port_, "2", i,
                                 {"--job-name", "seen", "--nproc-per-node", "2", "--max-restarts",
                                  "3", "--log-dir", logs_, "--", "/bin/sh", "-c", kTrains}));
    }
    EXPECT_TRUE(browser_->Await(kAllRun));
  }
  void TearDown() override {
    // The browser leaves the page before the server ends, because the page would report the lost
    // connection.
    if (browser_ != nullptr) browser_->Open("about:blank");
    DashboardTest::TearDown();
  }
  void ChooseRank(int rank) {
    browser_->Evaluate(
        absl::StrCat("document.querySelector('.rank[data-rank=\"", rank, "\"]').click()"));
  }

  static constexpr char kAllRun[] = "document.querySelectorAll('.rank.running').length === 4";
  const std::string log_ = "document.getElementById('log').textContent";
  const int port_ = FreePort();
  const std::string logs_ = MakeTempDir("logs");
  std::unique_ptr<Process> server_;
  std::vector<std::unique_ptr<Process>> nodes_;
};

TEST_F(JobDashboardTest, AJobAppears_ItsChartsGrow) {
  EXPECT_TRUE(browser_->Await("document.querySelector('#jobs a').textContent === 'seen'"));
  EXPECT_TRUE(browser_->Await("document.querySelectorAll('.node').length === 2"));
  const std::string points = PointsOf("loss");
  EXPECT_TRUE(browser_->Await(absl::StrCat(points, " > 2")));
  const std::string before = browser_->Evaluate(points).dump();
  EXPECT_TRUE(browser_->Await(absl::StrCat(points, " > ", before)));
  for (const char* chart : {"speed", "rate", "took", "figure lr", "cpu", "memory"}) {
    EXPECT_TRUE(browser_->Await(absl::StrCat(PointsOf(chart), " > 0"))) << chart;
  }
  EXPECT_TRUE(
      browser_->Await("/step \\d+ of 5000 .* lr 0\\.\\d+ · about .* left/.test(document."
                      "getElementById('job-line').textContent)"));
}

TEST_F(JobDashboardTest, OutputStreams_OfTheRankThatIsChosen) {
  EXPECT_TRUE(browser_->Await(absl::StrCat(log_, ".includes('rank 0 step 5')")));
  const std::string length = browser_->Evaluate(absl::StrCat(log_, ".length")).dump();
  EXPECT_TRUE(browser_->Await(absl::StrCat(log_, ".length > ", length)));
  ChooseRank(3);
  EXPECT_TRUE(browser_->Await(absl::StrCat(log_, ".includes('rank 3 step 5')")));
  // Colours and states that were overwritten are not text.
  EXPECT_TRUE(
      browser_->Await(absl::StrCat(log_, ".includes('\\ngreen\\n30%\\nrank 3 step 1\\n')")));
  AskForStacks();
}

TEST_F(JobDashboardTest, AKilledWorkerIsANewGeneration_WithItsCause) {
  ChooseRank(3);
  EXPECT_TRUE(browser_->Await(absl::StrCat(PointsOf("loss"), " > 2")));
  kill(WorkerOf(logs_, 1, 3), SIGKILL);
  EXPECT_TRUE(browser_->Await("document.querySelectorAll('#generations tr').length === 2"));
  EXPECT_TRUE(browser_->Await(
      "document.getElementById('generations').textContent.includes('rank 3 (local rank 1) on "
      "node1 was killed by signal 9 (SIGKILL) in generation 1')"));
  EXPECT_TRUE(browser_->Await(kAllRun));
  EXPECT_TRUE(browser_->Await(
      "document.querySelector('#timeline .cause').textContent.includes('SIGKILL')"));
  EXPECT_TRUE(browser_->Await(
      "document.querySelector('[data-chart=loss] .chart-mark.failed').title.includes('SIGKILL')"));
  EXPECT_TRUE(browser_->Await("document.querySelector('[data-chart=loss] .chart-mark.formed')"));
  // Output goes on with the new generation.
  EXPECT_TRUE(
      browser_->Await(absl::StrCat(log_, ".startsWith('pid ", WorkerOf(logs_, 2, 3), "\\n')")));
  EXPECT_TRUE(browser_->Await(absl::StrCat(log_, ".includes('rank 3 step 40')")));
  // There is more than one sample of each node.
  EXPECT_TRUE(browser_->Await(absl::StrCat(PointsOf("cpu"), " > 2")));
  EXPECT_EQ(browser_->Evaluate(kCellsAreWhole), true);
  browser_->Screenshot("dashboard_running");
}

TEST_F(JobDashboardTest, ItsEndAndTheVerdict) {
  EXPECT_TRUE(browser_->Await(absl::StrCat(PointsOf("loss"), " > 1")));
  auto cancel = StartCadre({"cancel", "seen", "--server", absl::StrCat("127.0.0.1:", port_)});
  EXPECT_EQ(cancel->Wait(), 0) << OutputOf(*cancel);
  EXPECT_TRUE(browser_->Await("!document.getElementById('verdict').hidden"));
  EXPECT_THAT(browser_->Evaluate("document.getElementById('verdict').textContent").dump(),
              HasSubstr("cancelled: "));
  EXPECT_TRUE(
      browser_->Await("document.querySelector('#jobs .phase').textContent === 'cancelled'"));
  EXPECT_TRUE(browser_->Await("document.querySelector('[data-chart=loss] .chart-mark.verdict')"));
  browser_->Screenshot("dashboard_ended");
  for (auto& node : nodes_) EXPECT_TRUE(node->Wait().has_value()) << OutputOf(*node);
}

// The job has one node, and `cadre run --http` serves the page.
TEST_F(DashboardTest, ChartsAreHoveredAndZoomed_AlsoOnAPhone) {
  const int http = FreePort();
  auto run =
      StartCadre({"run", "--standalone", "--http", absl::StrCat("127.0.0.1:", http), "--job-name",
                  "seen", "--log-dir", MakeTempDir("logs"), "--", "/bin/sh", "-c", kTrains});
  ASSERT_TRUE(run->WaitForLine("dashboard at http://").has_value()) << OutputOf(*run);
  browser_->Open(absl::StrCat("http://127.0.0.1:", http, "/"));
  EXPECT_TRUE(browser_->Await(absl::StrCat(PointsOf("loss"), " > 4")));

  // The legends of all charts show the values at the pointer.
  const std::string over = "[data-chart=loss] .u-over";
  const auto value = [](const std::string& chart) {
    return absl::StrCat("Number(document.querySelector('[data-chart=\"", chart,
                        "\"] .u-series:last-child .u-value').textContent)");
  };
  browser_->Hover(over, 0.6);
  EXPECT_TRUE(browser_->Await(absl::StrCat(value("loss"), " > 0.1")));
  EXPECT_TRUE(browser_->Await(absl::StrCat(value("speed"), " === 100")));

  // Dragging chooses a part of the time, which stays chosen as the job goes on.
  const std::string zoomed = "document.querySelectorAll('#charts .zoomed').length";
  browser_->Drag(over, 0.2, 0.7);
  EXPECT_TRUE(browser_->Await(
      absl::StrCat(zoomed, " === document.querySelectorAll('#charts .chart').length")));
  const std::string points = browser_->Evaluate(PointsOf("loss")).dump();
  EXPECT_TRUE(browser_->Await(absl::StrCat(PointsOf("loss"), " > ", points)));
  EXPECT_NE(browser_->Evaluate(zoomed), 0);
  browser_->DoubleClick(over);
  EXPECT_TRUE(browser_->Await(absl::StrCat(zoomed, " === 0")));

  // At the width of a phone, tables and charts must not be wider than the page.
  browser_->SetWidth(380);
  EXPECT_TRUE(browser_->Await("document.documentElement.scrollWidth <= 380"));
  EXPECT_TRUE(
      browser_->Await("[...document.querySelectorAll('#charts canvas')].every((canvas) => "
                      "canvas.getBoundingClientRect().right <= 380)"));
  browser_->Screenshot("dashboard_phone");
  browser_->Open("about:blank");
  run->Kill(SIGINT);
  EXPECT_TRUE(run->Wait().has_value()) << OutputOf(*run);
}

TEST_F(DashboardTest, PastRunsAreOpenedAndCompared) {
  const std::string logs = MakeTempDir("logs");
  for (const char* rate : {"0.1", "0.2"}) {
    auto run =
        StartStandalone({"--job-name", "past", "--log-dir", logs, "--", "/bin/sh", "-c",
                         absl::StrCat("for i in 1 2 3; do echo step=$i loss=0.$((9-i)) lr=", rate,
                                      " >&$CADRE_PROGRESS_FD; echo step $i; sleep 1.1; done; exit ",
                                      rate[2] == '2' ? "3" : "0")});
    EXPECT_EQ(run->Wait(), rate[2] == '2' ? 3 : 0) << OutputOf(*run);
  }
  auto dashboard = StartCadre({"dashboard", "--log-dir", logs});
  const auto address = dashboard->WaitForLine("http://127.0.0.1:");
  ASSERT_TRUE(address.has_value()) << OutputOf(*dashboard);
  browser_->Open(*address);
  EXPECT_TRUE(browser_->Await("document.querySelectorAll('#jobs a').length === 2"));
  EXPECT_EQ(browser_->Evaluate("location.hash"), "");

  // The newest run comes first, with its verdict, history and output.
  browser_->Evaluate("document.querySelector('#jobs a').click()");
  EXPECT_TRUE(browser_->Await(
      "document.getElementById('verdict').textContent.includes('exited with status 3')"));
  EXPECT_TRUE(browser_->Await(absl::StrCat(PointsOf("figure lr"), " > 1")));
  EXPECT_TRUE(browser_->Await("document.querySelector('[data-chart=loss] .chart-mark.verdict')"));
  EXPECT_TRUE(browser_->Await("document.getElementById('log').textContent.includes('step 3')"));

  // A single run is not compared.
  const auto compare = [&](int run) {
    browser_->Evaluate(absl::StrCat("document.querySelectorAll('#jobs input')[", run, "].click()"));
  };
  compare(0);
  EXPECT_TRUE(browser_->Await("document.getElementById('compare').hidden"));
  compare(1);
  const std::string labels =
      "[...document.querySelectorAll('#compare [data-chart=\"figure lr\"] .u-label')].length";
  EXPECT_TRUE(browser_->Await(absl::StrCat(labels, " === 3"))) << "step, and each run";
  EXPECT_EQ(browser_->Evaluate(kCellsAreWhole), true);
  browser_->Screenshot("dashboard_compared");
  compare(1);
  EXPECT_TRUE(browser_->Await("document.getElementById('compare').hidden"));
  browser_->Open("about:blank");
  dashboard->Kill(SIGINT);
  EXPECT_EQ(dashboard->Wait(), 0) << OutputOf(*dashboard);
}

// Fault (display): A launcher that runs the server is killed and leaves no verdict -> The history
// so far is in the log directory, and `cadre dashboard` and `cadre timeline` show it
TEST_F(DashboardTest, OfARunWhoseLauncherWasKilled_TheHistoryIsThere) {
  const std::string logs = MakeTempDir("logs");
  auto run =
      StartStandalone({"--job-name", "killed", "--log-dir", logs, "--", "/bin/sh", "-c", kTrains});
  ASSERT_TRUE(Eventually([&] {
    const std::vector<std::string> found = Matching(logs + "/killed/run_*/history.json");
    return !found.empty() && absl::StrContains(ReadFileOrEmpty(found[0]), "\"progress\"");
  })) << OutputOf(*run);
  run->Kill(SIGKILL);
  EXPECT_TRUE(run->Wait().has_value());
  auto dashboard = StartCadre({"dashboard", "--log-dir", logs});
  const auto address = dashboard->WaitForLine("http://127.0.0.1:");
  ASSERT_TRUE(address.has_value()) << OutputOf(*dashboard);
  browser_->Open(*address);
  EXPECT_TRUE(browser_->Await("document.querySelector('#jobs .phase').textContent === 'unknown'"));
  EXPECT_TRUE(browser_->Await(absl::StrCat(PointsOf("loss"), " > 1")));
  EXPECT_TRUE(browser_->Await(absl::StrCat(PointsOf("cpu"), " > 0")));
  EXPECT_TRUE(browser_->Await("document.getElementById('log').textContent.includes('step 1')"));
  browser_->Open("about:blank");
  dashboard->Kill(SIGINT);
  EXPECT_EQ(dashboard->Wait(), 0) << OutputOf(*dashboard);
}

TEST_F(DashboardTest, TheOutputOfTheRankThatFailedIsOneClickAway) {
  const int port = FreePort(), http = FreePort();
  const std::string logs = MakeTempDir("logs");
  auto server =
      StartCadre({"server", "--port", absl::StrCat(port), "--state-dir", MakeTempDir("state"),
                  "--http", absl::StrCat("127.0.0.1:", http), "--log-dir", logs});
  ASSERT_TRUE(server->WaitForLine("serving at").has_value()) << OutputOf(*server);
  auto node = StartNode(
      port, "1", 0,
      {"--job-name", "fails", "--nproc-per-node", "2", "--log-dir", logs, "--", "/bin/sh", "-c",
       "if [ $RANK = 1 ]; then printf '\\033[31mno data\\033[0m\\n' >&2; exit 3; fi; "
       "sleep 100"});
  EXPECT_EQ(node->Wait(), 3) << OutputOf(*node);
  browser_->Open(absl::StrCat("http://127.0.0.1:", http, "/"));
  EXPECT_TRUE(browser_->Await("document.querySelector('#jobs a') !== null"));
  browser_->Evaluate("document.querySelector('#jobs a').click()");
  EXPECT_TRUE(browser_->Await("document.querySelector('#verdict button') !== null"));
  EXPECT_TRUE(browser_->Await("document.querySelectorAll('#log-choice select').length === 3"));
  browser_->Evaluate("document.querySelector('#verdict button').click()");
  EXPECT_TRUE(browser_->Await("document.getElementById('log').textContent === 'no data\\n'"));
  EXPECT_TRUE(
      browser_->Await("document.querySelector('#verdict pre').textContent === 'no data\\n'"));
  browser_->Open("about:blank");
}

TEST_F(JobDashboardTest, WithoutTheChartsLibrary_ThePageShowsTheRest) {
  EXPECT_TRUE(browser_->Await(absl::StrCat(PointsOf("loss"), " > 0")));
  // This is the state of a page on which the library did not load.
  browser_->Evaluate("window.uPlot = undefined");
  EXPECT_TRUE(browser_->Await(
      "document.getElementById('charts').textContent.includes('uplot.js did not load')"));
  ChooseRank(3);
  EXPECT_TRUE(browser_->Await(absl::StrCat(log_, ".includes('rank 3 step 5')")));
}

// A server and two agents of two CPUs.
class ClusterDashboardTest : public DashboardTest {
 protected:
  void SetUp() override {
    DashboardTest::SetUp();
    if (browser_ == nullptr) return;
    auto made = StartCadre({"token", "new", token_});
    ASSERT_EQ(made->Wait(), 0) << OutputOf(*made);
    server_ = StartCadre({"server", "--port", port_, "--token-file", token_, "--state-dir",
                          directory_ + "/state", "--http", http_});
    ASSERT_TRUE(server_->WaitForLine("serving at").has_value()) << OutputOf(*server_);
    for (const char* name : {"n0", "n1"}) {
      // Whoever runs the tests, root too.
      agents_.push_back(Cadre({"agent", "--node-name", name, "--cpus", "2", "--gpus", "0", "--user",
                               getpwuid(geteuid())->pw_name, "--label", "switch=s1"}));
      ASSERT_TRUE(agents_.back()->WaitForLine("is in the cluster").has_value())
          << OutputOf(*agents_.back());
    }
  }
  void TearDown() override {
    for (auto& agent : agents_) agent->Kill(SIGTERM);
    for (auto& agent : agents_) EXPECT_EQ(agent->Wait(), 0) << OutputOf(*agent);
    DashboardTest::TearDown();
  }
  std::unique_ptr<Process> Cadre(std::vector<std::string> arguments) {
    for (const std::string& word :
         {std::string("--server"), "127.0.0.1:" + port_, std::string("--token-file"), token_}) {
      arguments.push_back(word);
    }
    return StartCadre(arguments);
  }
  // To its end, which is good.
  void Run(const std::vector<std::string>& arguments) {
    auto command = Cadre(arguments);
    EXPECT_EQ(command->Wait(), 0) << OutputOf(*command);
  }
  void Submit(const std::string& name, const std::string& more) {
    const std::string spec = absl::StrCat(directory_, "/", name, ".yaml");
    std::ofstream(spec) << "name: " << name
                        << "\nnodes: 2\nworkers_per_node: 2\nworking_dir: " << directory_ << "\n"
                        << more << "command: [/bin/sh, -c, '" << kTrains << "']\n";
    Run({"submit", spec});
  }

  const std::string directory_ = MakeTempDir("cluster"), token_ = directory_ + "/token";
  const std::string port_ = absl::StrCat(FreePort());
  const std::string http_ = absl::StrCat("127.0.0.1:", FreePort());
  std::unique_ptr<Process> server_;
  std::vector<std::unique_ptr<Process>> agents_;
};

TEST_F(ClusterDashboardTest, NodesQueueAndOutputOfAnotherNode) {
  // What the page's form for the token does; asked first, the browser would complain.
  browser_->Open(absl::StrCat("http://", http_, "/style.css"));
  browser_->Evaluate(absl::StrCat("sessionStorage.setItem('cadre-token', '",
                                  absl::StripAsciiWhitespace(ReadFileOrEmpty(token_)), "')"));
  browser_->Open(absl::StrCat("http://", http_, "/#wide"));
  EXPECT_TRUE(browser_->Await("document.querySelectorAll('#nodes tr').length === 2"));
  EXPECT_TRUE(
      browser_->Await("document.getElementById('cluster-line').textContent === "
                      "'2 nodes · 0 of 4 CPUs in use'"));

  // Output of a rank streams from another agent's node.
  Submit("wide", "");
  EXPECT_TRUE(browser_->Await("document.querySelectorAll('.rank.running').length === 4"));
  EXPECT_TRUE(
      browser_->Await("document.getElementById('totals').textContent === "
                      "'1 live job · 2 nodes · 4 running workers'"));
  EXPECT_TRUE(browser_->Await(
      "document.getElementById('cluster-line').textContent.includes('4 of 4 CPUs')"));
  browser_->Evaluate("document.querySelector('.rank[data-rank=\"3\"]').click()");
  const std::string log = "document.getElementById('log').textContent";
  EXPECT_TRUE(browser_->Await(absl::StrCat(log, ".includes('rank 3 step 5')")));
  EXPECT_TRUE(browser_->Await(absl::StrCat(log, ".includes('rank 3 step 15')")));

  // Jobs that wait appear, in order, with the reason.
  Submit("later", "");
  Submit("sooner", "priority: 5\n");
  const std::string queue = "document.getElementById('queue').textContent";
  EXPECT_TRUE(browser_->Await("document.querySelectorAll('#queue tr').length === 2"));
  EXPECT_TRUE(browser_->Await("document.querySelector('#queue a').textContent === 'sooner'"));
  EXPECT_TRUE(browser_->Await(absl::StrCat(queue, ".includes('it is the next')")));
  EXPECT_TRUE(browser_->Await(absl::StrCat(queue, ".includes('job sooner is the next')")));
  // So does a node that is drained.
  Run({"drain", "n1", "--reason", "new fan"});
  EXPECT_TRUE(
      browser_->Await("document.getElementById('nodes').textContent.includes('drained: new fan')"));
  EXPECT_EQ(browser_->Evaluate(kCellsAreWhole), true);
  browser_->Screenshot("dashboard_cluster");

  // A job in the queue can be looked at; and one that ends leaves it.
  browser_->Evaluate("location.hash = 'later'");
  EXPECT_TRUE(browser_->Await("document.getElementById('job-name').textContent === 'later'"));
  EXPECT_TRUE(browser_->Await(
      "document.getElementById('log-choice').textContent === 'No worker has started yet.'"));
  for (const char* job : {"later", "sooner", "wide"}) Run({"cancel", job});
  EXPECT_TRUE(browser_->Await("document.getElementById('queue-section').hidden"));
  EXPECT_TRUE(browser_->Await(
      "document.getElementById('cluster-line').textContent.includes('0 of 4 CPUs')"));

  // What runs where the agent is away is not known, and not said to be nothing.
  agents_.back()->Kill(SIGKILL);
  agents_.back()->Wait();
  agents_.pop_back();
  EXPECT_TRUE(browser_->Await("document.getElementById('nodes').textContent.includes('?/2')"));
  EXPECT_TRUE(browser_->Await(
      "document.getElementById('cluster-line').textContent.includes('0 of 2 CPUs')"));
  browser_->Open("about:blank");
}

TEST_F(DashboardTest, WhatAPeerSaysIsText) {
  const int http = FreePort();
  auto run = StartCadre({"run", "--standalone", "--http", absl::StrCat("127.0.0.1:", http),
                         "--job-name", "said", "--log-dir", MakeTempDir("logs"), "--node-name",
                         "<img src=x onerror=alert(1)>", "--", "/bin/sh", "-c",
                         "echo '<script>alert(1)</script>'; exec sleep 1000"});
  ASSERT_TRUE(run->WaitForLine("dashboard at http://").has_value()) << OutputOf(*run);
  browser_->Open(absl::StrCat("http://127.0.0.1:", http, "/"));
  EXPECT_TRUE(browser_->Await(
      "document.getElementById('log').textContent.includes('<script>alert(1)</script>')"));
  EXPECT_TRUE(
      browser_->Await("document.querySelector('.node').textContent.includes('<img src=x')"));
  EXPECT_EQ(browser_->Evaluate("document.querySelectorAll('img, #log *').length"), 0);
  browser_->Open("about:blank");
  run->Kill(SIGINT);
  EXPECT_TRUE(run->Wait().has_value()) << OutputOf(*run);
}

}  // namespace
}  // namespace cadre
