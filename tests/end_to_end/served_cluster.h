// A fixture: a server and three agents on this machine, with given names and CPUs, and jobs that
// run until the test finishes them.
#ifndef CADRE_TESTS_END_TO_END_SERVED_CLUSTER_H_
#define CADRE_TESTS_END_TO_END_SERVED_CLUSTER_H_

#include <pwd.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/launch.h"

namespace cadre {

inline constexpr absl::Duration kTimeout = absl::Seconds(90);

class ServedCluster : public testing::Test {
 protected:
  void SetUp() override {
    const auto made = Cadre({"token", "new", Token()}, /*client=*/false);
    ASSERT_EQ(made->Wait(), 0) << OutputOf(*made);
    StartServer();
    for (int i = 0; i < 3; ++i) StartAgent(i);
    for (const auto& agent : agents_) AwaitIn(*agent);
  }
  // Ends the agents first: they end their launchers and leave the cluster.
  void TearDown() override {
    for (const auto& agent : agents_) agent->Kill(SIGTERM);
    for (const auto& agent : agents_) EXPECT_EQ(agent->Wait(kTimeout), 0) << OutputOf(*agent);
    if (server_ != nullptr) server_->Kill(SIGTERM);
  }

  std::string Token() const { return directory_ + "/token"; }
  std::string Done(const std::string& job) const { return directory_ + "/" + job + ".done"; }
  void Finish(const std::string& job) { std::ofstream(Done(job)) << "now"; }

  void StartServer() {
    server_ = StartCadre({"server", absl::StrCat("--port=", port_), "--token-file=" + Token(),
                          "--state-dir=" + directory_ + "/state"});
    ASSERT_TRUE(server_->WaitForLine("serving at", kTimeout).has_value()) << OutputOf(*server_);
  }
  void StartAgent(int node) {
    // The user who runs the tests, also if that is root.
    const std::string user = getpwuid(geteuid())->pw_name;
    agents_.push_back(StartCadre({"agent", Server(), "--token-file=" + Token(),
                                  absl::StrCat("--node-name=n", node), "--cpus=2", "--gpus=0",
                                  "--user=" + user}));
  }
  void AwaitIn(Process& agent) {
    EXPECT_TRUE(agent.WaitForLine("is in the cluster", kTimeout).has_value()) << OutputOf(agent);
  }
  std::string Server() const { return absl::StrCat("--server=127.0.0.1:", port_); }

  std::unique_ptr<Process> Cadre(std::vector<std::string> arguments, bool client = true) {
    if (client) {
      arguments.push_back(Server());
      arguments.push_back("--token-file=" + Token());
    }
    return StartCadre(arguments);
  }
  // Expects that the program succeeds; returns its output.
  std::string Output(const std::vector<std::string>& arguments) {
    const auto command = Cadre(arguments);
    EXPECT_EQ(command->Wait(kTimeout), 0) << OutputOf(*command);
    return command->standard_output();
  }

  // Submits a job of whole nodes with two workers each, which print their ranks and run until
  // Finish.
  std::string WriteJob(const std::string& name, const std::string& nodes,
                       const std::string& more = "", const std::string& script = "") {
    const std::string path = directory_ + "/" + name + ".yaml";
    std::ofstream(path) << "name: " << name << "\nnodes: " << nodes
                        << "\nworkers_per_node: 2\nworking_dir: " << directory_
                        << "\ntimeouts: {stop_grace: 5s}\n"
                        << more << "command: [/bin/sh, -c, '"
                        << (script.empty() ? absl::StrCat("echo rank=$RANK of $WORLD_SIZE; until [ "
                                                          "-e ",
                                                          Done(name), " ]; do sleep 0.02; done")
                                           : script)
                        << "']\n";
    return path;
  }
  void Submit(const std::string& name, const std::string& nodes, const std::string& more = "") {
    EXPECT_THAT(Output({"submit", WriteJob(name, nodes, more)}),
                testing::HasSubstr("submitted " + name));
  }

  nlohmann::json Status(const std::string& job) {
    const auto command = Cadre({"status", job, "--output=json"});
    if (command->Wait(kTimeout) != 0) return {};
    const auto all = nlohmann::json::parse(command->standard_output(), nullptr, false);
    return all.is_object() && !all["jobs"].empty() ? all["jobs"][0] : nlohmann::json();
  }
  // Polls until `is` holds for the job.
  void Await(const std::string& job, const std::string& what,
             const std::function<bool(const nlohmann::json&)>& is) {
    const absl::Time end = absl::Now() + kTimeout;
    nlohmann::json last;
    while (absl::Now() < end) {
      last = Status(job);
      if (last.is_object() && is(last)) return;
      absl::SleepFor(absl::Milliseconds(100));
    }
    FAIL() << job << " is not " << what << " but " << last.dump(1) << OutputOf(*server_);
  }
  void AwaitPhase(const std::string& job, const std::string& phase) {
    Await(job, phase, [&](const nlohmann::json& status) { return status["phase"] == phase; });
  }
  // Polls until all workers of so many nodes run.
  void AwaitRunning(const std::string& job, int nodes) {
    Await(job, absl::StrCat("running on ", nodes), [&](const nlohmann::json& status) {
      return status["phase"] == "RUNNING" && status.value("world_size", 0) == 2 * nodes &&
             status.value("workers_running", 0) == 2 * nodes;
    });
  }
  std::string WhyOf(const std::string& job) { return Output({"why", job}); }

  const int port_ = FreePort();
  const std::string directory_ = MakeTempDir("cluster");
  std::unique_ptr<Process> server_;
  std::vector<std::unique_ptr<Process>> agents_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_END_TO_END_SERVED_CLUSTER_H_
