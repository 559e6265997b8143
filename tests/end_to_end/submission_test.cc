// What `cadre submit` says is true, also when the server is killed while it asks.
#include <signal.h>

#include <atomic>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(90);
constexpr int kShells = 4, kKills = 5;
// That were answered between two deaths of the server.
constexpr int kBetween = 12;

class SubmissionTest : public testing::Test {
 protected:
  void StartServer() {
    server_ = StartCadre({"server", absl::StrCat("--port=", port_), "--token-file=" + Token(),
                          "--state-dir=" + directory_ + "/state"});
    ASSERT_TRUE(server_->WaitForLine("serving at", kTimeout).has_value()) << OutputOf(*server_);
  }
  std::string Token() const { return directory_ + "/token"; }
  std::unique_ptr<Process> Ask(std::vector<std::string> arguments) const {
    arguments.push_back(absl::StrCat("--server=127.0.0.1:", port_));
    arguments.push_back("--token-file=" + Token());
    return StartCadre(arguments);
  }

  struct Answer {
    int status = -1;
    std::string said;
  };
  // One job after the other, until it is enough.
  void Submit(int shell) {
    for (int i = 0; !enough_; ++i) {
      const std::string name = absl::StrCat("job-", shell, "-", i);
      const std::string spec = absl::StrCat(directory_, "/", name, ".yaml");
      std::ofstream(spec) << "name: " << name << "\nnodes: 1\ncommand: [/bin/true]\n";
      const auto submit = Ask({"submit", spec});
      const std::optional<int> status = submit->Wait(kTimeout);
      const std::lock_guard<std::mutex> lock(mutex_);
      answers_[name] = {status.value_or(-1), OutputOf(*submit)};
      taken_ += status == 0;
    }
  }

  const int port_ = FreePort();
  const std::string directory_ = MakeTempDir("submission");
  std::unique_ptr<Process> server_;
  std::atomic<bool> enough_{false};
  std::atomic<int> taken_{0};
  std::mutex mutex_;
  std::map<std::string, Answer> answers_;
};

// Fault (queue): The server is killed while jobs are submitted from several shells -> Every
// acknowledged job is there once, and no refused one is there
TEST_F(SubmissionTest, ServerThatIsKilledAgainAndAgain_WhatIsSaidToBeTakenIsThere_AndNothingElse) {
  ASSERT_EQ(StartCadre({"token", "new", Token()})->Wait(kTimeout), 0);
  StartServer();
  std::vector<std::thread> shells;
  for (int i = 0; i < kShells; ++i) shells.emplace_back([this, i] { Submit(i); });
  const absl::Time end = absl::Now() + kTimeout;
  for (int death = 1; death <= kKills; ++death) {
    while (taken_ < death * kBetween && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
    server_->Kill(SIGKILL);
    EXPECT_EQ(server_->Wait(kTimeout), 128 + SIGKILL);
    StartServer();
  }
  enough_ = true;
  for (std::thread& shell : shells) shell.join();
  EXPECT_GE(taken_, kKills * kBetween);

  const auto status = Ask({"status", "--output=json"});
  ASSERT_EQ(status->Wait(kTimeout), 0) << OutputOf(*status);
  const auto all = nlohmann::json::parse(status->standard_output());
  std::set<std::string> there, submissions;
  for (const auto& job : all["jobs"]) {
    EXPECT_TRUE(there.insert(job["name"]).second) << job["name"] << " is there twice";
    EXPECT_TRUE(submissions.insert(job["submission"]).second) << job["name"];
  }
  int unsaid = 0;
  for (const auto& [name, answer] : answers_) {
    const bool may = absl::StrContains(answer.said, "may have been accepted");
    unsaid += may;
    if (may) continue;
    EXPECT_EQ(there.count(name), answer.status == 0 ? 1u : 0u) << name << ": " << answer.said;
  }
  for (const std::string& name : there) EXPECT_EQ(answers_.count(name), 1u) << name;
  RecordProperty("asked", static_cast<int>(answers_.size()));
  RecordProperty("taken", taken_);
  RecordProperty("unsaid", unsaid);
}

}  // namespace
}  // namespace cadre
