#include "tests/watching/browser.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

const char* Program() {
  for (const char* path : {"/usr/bin/chromium-headless-shell", "/usr/bin/chromium"}) {
    if (access(path, X_OK) == 0) return path;
  }
  return nullptr;
}

// A named pipe, open on this side whatever the other one does.
int OpenFifo(const std::string& path) {
  EXPECT_EQ(mkfifo(path.c_str(), 0600), 0) << path;
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  EXPECT_GE(fd, 0) << path;
  return fd;
}

}  // namespace

bool Browser::IsInstalled() { return Program() != nullptr; }

std::unique_ptr<Browser> Browser::Start() {
  const std::string directory = MakeTempDir("browser");
  std::unique_ptr<Browser> browser(new Browser());
  browser->to_browser_ = OpenFifo(directory + "/to");
  browser->from_browser_ = OpenFifo(directory + "/from");
  ProcessOptions options;
  // It speaks on descriptors 3 and 4.
  options.argv = {"/bin/sh",
                  "-c",
                  "d=$1; shift; exec \"$@\" 3<\"$d/to\" 4>\"$d/from\"",
                  "sh",
                  directory,
                  Program(),
                  "--headless",
                  "--no-sandbox",
                  "--disable-gpu",
                  "--disable-dev-shm-usage",
                  "--remote-debugging-pipe",
                  "--user-data-dir=" + directory + "/profile",
                  "--window-size=1280,1000"};
  // What it keeps for its user belongs to the test.
  options.env = {{"HOME", directory}};
  auto process = Process::Start(options);
  if (!process.ok()) {
    ADD_FAILURE() << process.status();
    return nullptr;
  }
  browser->process_ = *std::move(process);
  const nlohmann::json page = browser->Call("Target.createTarget", {{"url", "about:blank"}});
  if (page.is_null()) return nullptr;
  const nlohmann::json session =
      browser->Call("Target.attachToTarget", {{"targetId", page["targetId"]}, {"flatten", true}});
  if (session.is_null()) return nullptr;
  browser->session_ = session["sessionId"];
  for (const char* domain : {"Page", "Runtime", "Log", "Network"}) {
    browser->Call(absl::StrCat(domain, ".enable"), nlohmann::json::object());
  }
  return browser;
}

Browser::~Browser() {
  close(to_browser_);
  close(from_browser_);
}

void Browser::Send(const nlohmann::json& message) {
  const std::string text = message.dump() + '\0';
  size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t count = write(to_browser_, text.data() + sent, text.size() - sent);
    ASSERT_GT(count, 0);
    sent += count;
  }
}

nlohmann::json Browser::Receive(absl::Time deadline) {
  for (;;) {
    const size_t end = received_.find('\0');
    if (end != received_.npos) {
      nlohmann::json message = nlohmann::json::parse(received_.substr(0, end), nullptr, false);
      received_.erase(0, end + 1);
      return message;
    }
    const absl::Duration left = deadline - absl::Now();
    pollfd readable = {from_browser_, POLLIN, 0};
    if (left <= absl::ZeroDuration() ||
        poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) != 1) {
      return nullptr;
    }
    char buffer[65536];
    const ssize_t count = read(from_browser_, buffer, sizeof(buffer));
    if (count > 0) received_.append(buffer, count);
  }
}

nlohmann::json Browser::Call(const std::string& method, nlohmann::json parameters) {
  nlohmann::json message = {{"id", ++last_id_}, {"method", method}};
  message["params"] = std::move(parameters);
  if (!session_.empty()) message["sessionId"] = session_;
  Send(message);
  const absl::Time deadline = absl::Now() + kTimeout;
  for (;;) {
    nlohmann::json answer = Receive(deadline);
    if (answer.is_null()) {
      ADD_FAILURE() << "the browser does not answer " << method << ": "
                    << process_->standard_error();
      return nullptr;
    }
    if (answer.contains("method")) Note(answer);
    if (answer.value("id", 0) != last_id_) continue;
    EXPECT_FALSE(answer.contains("error")) << method << ": " << answer;
    return answer.value("result", nlohmann::json());
  }
}

void Browser::Note(const nlohmann::json& event) {
  const std::string method = event["method"];
  const nlohmann::json parameters = event.value("params", nlohmann::json::object());
  bool bad = method == "Runtime.exceptionThrown";
  if (method == "Runtime.consoleAPICalled") {
    bad = parameters["type"] == "error" || parameters["type"] == "warning";
  } else if (method == "Log.entryAdded") {
    bad = parameters["entry"]["level"] == "error" || parameters["entry"]["level"] == "warning";
  } else if (method == "Network.loadingFailed") {
    // What the page itself gave up is no failure.
    bad = !parameters.value("canceled", false);
  } else if (method == "Network.responseReceived") {
    bad = parameters["response"]["status"] >= 400;
  }
  if (bad) complaints_.push_back(event.dump());
}

void Browser::Open(const std::string& url) { Call("Page.navigate", {{"url", url}}); }

nlohmann::json Browser::Evaluate(const std::string& expression) {
  const nlohmann::json answer =
      Call("Runtime.evaluate", {{"expression", expression}, {"returnByValue", true}});
  if (answer.is_null() || !answer.contains("result")) return nullptr;
  return answer["result"].value("value", nlohmann::json());
}

bool Browser::Await(const std::string& expression, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  do {
    // The page waits, and says so at once when it becomes true.
    const nlohmann::json answer = Call(
        "Runtime.evaluate",
        {{"expression", absl::StrCat("new Promise((done) => { const until = Date.now() + 1000; "
                                     "const look = () => { let is = false; try { is = !!(",
                                     expression,
                                     "); } catch (error) {} if (is || Date.now() > until) "
                                     "done(is); else setTimeout(look, 20); }; look(); })")},
         {"awaitPromise", true},
         {"returnByValue", true}});
    if (answer.is_null()) return false;
    if (answer.contains("result") && answer["result"].value("value", false)) return true;
  } while (absl::Now() < deadline);
  return false;
}

void Browser::Mouse(const std::string& type, const std::string& selector, double part, int clicks) {
  const nlohmann::json at = Evaluate(absl::StrCat(
      "(() => { const node = document.querySelector('", selector,
      "'); node.scrollIntoView({block: 'center'}); const box = node.getBoundingClientRect(); "
      "return {x: box.left + ",
      part, " * box.width, y: box.top + box.height / 2}; })()"));
  ASSERT_TRUE(at.is_object()) << selector << " is not on the page";
  Call("Input.dispatchMouseEvent",
       {{"type", type},
        {"x", at["x"]},
        {"y", at["y"]},
        {"button", type == "mouseMoved" && clicks == 0 ? "none" : "left"},
        {"buttons", clicks == 0 ? 0 : 1},
        {"clickCount", clicks}});
}

void Browser::Hover(const std::string& selector, double part) {
  Mouse("mouseMoved", selector, part, 0);
}

void Browser::Drag(const std::string& selector, double from, double to) {
  Hover(selector, from);
  Mouse("mousePressed", selector, from, 1);
  Mouse("mouseMoved", selector, (from + to) / 2, 1);
  Mouse("mouseMoved", selector, to, 1);
  Mouse("mouseReleased", selector, to, 1);
}

void Browser::DoubleClick(const std::string& selector) {
  Hover(selector, 0.5);
  for (const int clicks : {1, 2}) {
    Mouse("mousePressed", selector, 0.5, clicks);
    Mouse("mouseReleased", selector, 0.5, clicks);
  }
}

void Browser::SetWidth(int width) {
  width_ = width;
  Call("Emulation.setDeviceMetricsOverride",
       {{"width", width_}, {"height", 1000}, {"deviceScaleFactor", 1}, {"mobile", false}});
}

void Browser::Screenshot(const std::string& name) {
  const char* outputs = getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  const nlohmann::json height = Evaluate("document.documentElement.scrollHeight");
  Call("Emulation.setDeviceMetricsOverride",
       {{"width", width_}, {"height", height}, {"deviceScaleFactor", 1}, {"mobile", false}});
  const nlohmann::json picture = Call("Page.captureScreenshot", {{"format", "png"}});
  std::string bytes;
  ASSERT_TRUE(picture.is_object() && absl::Base64Unescape(std::string(picture["data"]), &bytes));
  EXPECT_GT(bytes.size(), 1000u);
  if (outputs == nullptr) return;
  std::ofstream file(absl::StrCat(outputs, "/", name, ".png"), std::ios::binary);
  file << bytes;
}

}  // namespace cadre
