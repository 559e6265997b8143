// A real browser without a window, driven over the Chrome DevTools Protocol. One thread.
#ifndef CADRE_TESTS_WATCHING_BROWSER_H_
#define CADRE_TESTS_WATCHING_BROWSER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "tests/testing/process.h"

namespace cadre {

class Browser {
 public:
  // Debian's chromium-headless-shell or chromium; a test that needs it says so and is skipped.
  static bool IsInstalled();

  // With one empty page. Null comes with a test failure.
  static std::unique_ptr<Browser> Start();
  ~Browser();
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  void Open(const std::string& url);
  // The value of a JavaScript expression.
  nlohmann::json Evaluate(const std::string& expression);
  // Until it is true; false when it did not become so in time.
  bool Await(const std::string& expression, absl::Duration timeout = absl::Seconds(60));
  // Moves the pointer to an element, at this part of its width and in the middle of its height.
  void Hover(const std::string& selector, double part);
  // Presses the button at one part of the element's width and releases it at another.
  void Drag(const std::string& selector, double from, double to);
  void DoubleClick(const std::string& selector);
  // Sets the width of the window, in pixels.
  void SetWidth(int width);
  // The whole page as PNG, into this test's outputs (TEST_UNDECLARED_OUTPUTS_DIR).
  void Screenshot(const std::string& name);

  // Errors and warnings on the console, exceptions, and requests that failed, so far.
  const std::vector<std::string>& complaints() const { return complaints_; }

 private:
  Browser() = default;
  // The answer's "result"; null comes with a test failure.
  nlohmann::json Call(const std::string& method, nlohmann::json parameters);
  void Send(const nlohmann::json& message);
  void Mouse(const std::string& type, const std::string& selector, double part, int clicks);
  // The next message from the browser; null: none came.
  nlohmann::json Receive(absl::Time deadline);
  void Note(const nlohmann::json& event);

  std::unique_ptr<Process> process_;
  int to_browser_ = -1;
  int from_browser_ = -1;
  std::string received_;
  std::string session_;
  int width_ = 1280;
  int last_id_ = 0;
  std::vector<std::string> complaints_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_WATCHING_BROWSER_H_
