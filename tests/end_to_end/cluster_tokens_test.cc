// Tokens of users and of those who only look, as they are made and used in a cluster.
#include <pwd.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/end_to_end/served_cluster.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

using ClusterTokensTest = ServedCluster;

// Fault (access): A user's or launcher's token is used for another user's job or another allocation
// -> The call is refused
TEST_F(ClusterTokensTest, AUsersTokenIsGoodForThatUsersJobsAlone) {
  const std::string own = getpwuid(geteuid())->pw_name;
  const auto token = [&](const std::string& user) {
    const std::string path = absl::StrCat(directory_, "/", user, ".token");
    std::vector<std::string> make = {
        "token", "new", path, "--user=" + user, "--token-file=" + Token(), Server()};
    if (user == "root") make.push_back("--allow-root");
    const auto made = Cadre(make, false);
    EXPECT_EQ(made->Wait(kTimeout), 0) << OutputOf(*made);
    return "--token-file=" + path;
  };
  const std::string mine = token(own), bobs = token("bob");
  const auto as = [&](const std::string& whose, std::vector<std::string> arguments) {
    arguments.push_back(Server());
    arguments.push_back(whose);
    auto command = Cadre(arguments, false);
    command->Wait(kTimeout);
    return command;
  };
  EXPECT_THAT(as(bobs, {"submit", WriteJob("job", "1")})->standard_error(),
              HasSubstr("this is the token of user bob, which may submit jobs of that user only"));
  EXPECT_THAT(as(mine, {"submit", WriteJob("job", "1")})->standard_output(),
              HasSubstr("submitted job"));
  AwaitRunning("job", 1);
  EXPECT_THAT(as(bobs, {"cancel", "job"})->standard_error(),
              HasSubstr(absl::StrCat("the job is ", own, "'s, and this is the token of user bob")));
  EXPECT_THAT(as(bobs, {"logs", "job"})->standard_error(), HasSubstr("the job is "));
  EXPECT_THAT(as(bobs, {"stacks", "job"})->standard_error(), HasSubstr("the job is "));
  EXPECT_THAT(as(mine, {"stacks", "job"})->standard_output(),
              HasSubstr("job job, generation 1, 2 ranks"));
  EXPECT_THAT(as(bobs, {"status"})->standard_output(), HasSubstr("job"));
  EXPECT_THAT(as(mine, {"drain", "n0"})->standard_error(), HasSubstr("may not drain a node"));
  EXPECT_THAT(as(mine, {"agent", "--node-name=n9"})->standard_error(),
              HasSubstr("may not add a node to the cluster"));
  EXPECT_EQ(Status("job")["phase"], "RUNNING");
  EXPECT_THAT(as(mine, {"logs", "job", "--rank=0"})->standard_output(), HasSubstr("rank=0 of 2"));
  EXPECT_THAT(as(mine, {"cancel", "job"})->standard_output(), HasSubstr("cancelling job"));
  AwaitPhase("job", "CANCELLED_PHASE");
}

TEST_F(ClusterTokensTest, TokensOfRootAndOfUnknownUsersAreNotMadeInSilence) {
  const std::string path = directory_ + "/user.token";
  const auto make = [&](const std::string& user) {
    auto made = Cadre({"token", "new", path, "--user=" + user}, /*client=*/true);
    made->Wait(kTimeout);
    return made;
  };
  const auto roots = make("root");
  EXPECT_EQ(roots->Wait(kTimeout), 64);
  EXPECT_THAT(roots->standard_error(), HasSubstr("add --allow-root if that is meant"));
  EXPECT_FALSE(std::filesystem::exists(path));
  const auto unknown = make("no.such.user");
  EXPECT_EQ(unknown->Wait(kTimeout), 0) << OutputOf(*unknown);
  EXPECT_EQ(unknown->standard_error(),
            "cadre: --user no.such.user: this machine has no user no.such.user; the token works "
            "on nodes that have that user\n");
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST_F(ClusterTokensTest, AUsersTokenIsForOneStateOfTheServerAndIsMadeAnew) {
  const std::string path = directory_ + "/ann.token";
  const auto make = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"token", "new", path, "--user=nobody"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    auto made = Cadre(arguments);
    made->Wait(kTimeout);
    return made;
  };
  const auto status = [&] {
    auto asked = Cadre({"status", Server(), "--token-file=" + path}, /*client=*/false);
    asked->Wait(kTimeout);
    return asked;
  };
  EXPECT_THAT(make({"--days=0"})->standard_error(),
              HasSubstr("--days: expected a number from 1 to 3650, got '0'"));
  EXPECT_THAT(make({})->standard_output(), HasSubstr(path + ": of user nobody, until 20"));
  EXPECT_EQ(status()->Wait(kTimeout), 0) << OutputOf(*status());
  server_->Kill(SIGKILL);
  server_->Wait(kTimeout);
  const auto unanswered = make({"--force"});
  EXPECT_EQ(unanswered->Wait(kTimeout), 69);
  EXPECT_THAT(
      unanswered->standard_error(),
      HasSubstr("a token is valid for the state of one server, and that server cannot be asked"));
  std::filesystem::remove_all(directory_ + "/state");
  StartServer();
  const auto refused = status();
  EXPECT_EQ(refused->Wait(kTimeout), 69) << OutputOf(*refused);
  EXPECT_THAT(refused->standard_error(), HasSubstr("before this one lost its state; make a new "
                                                   "one where the cluster's token is"));
  EXPECT_EQ(make({"--force", "--days=1"})->Wait(kTimeout), 0);
  EXPECT_EQ(status()->Wait(kTimeout), 0) << OutputOf(*status());
}

// Fault (access): A read-only token is used for a change or for a job's output -> The call is
// refused
TEST_F(ClusterTokensTest, AReadOnlyTokenShowsWhatRunsAndDoesNothing) {
  const std::string path = directory_ + "/read.token";
  const auto made = Cadre({"token", "new", path, "--read-only", "--days=365"});
  EXPECT_EQ(made->Wait(kTimeout), 0) << OutputOf(*made);
  EXPECT_THAT(made->standard_output(), HasSubstr(path + ": read-only, until 20"));
  Submit("job", "1");
  AwaitRunning("job", 1);
  const auto as_reader = [&](std::vector<std::string> arguments) {
    arguments.push_back(Server());
    arguments.push_back("--token-file=" + path);
    auto command = Cadre(arguments, /*client=*/false);
    command->Wait(kTimeout);
    return command;
  };
  for (const char* command : {"status", "nodes"}) {
    EXPECT_THAT(as_reader({command})->standard_output(), HasSubstr("job")) << command;
  }
  for (const char* command : {"status", "why", "timeline"}) {
    const auto shown = as_reader({command, "job"});
    EXPECT_EQ(shown->Wait(kTimeout), 0) << command << OutputOf(*shown);
  }
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"cancel", "job"},
                                             {"logs", "job"},
                                             {"stacks", "job"},
                                             {"drain", "n0"},
                                             {"undrain", "n0"},
                                             {"submit", WriteJob("other", "1")},
                                             {"agent", "--node-name=n9"}}) {
    EXPECT_THAT(as_reader(command)->standard_error(), HasSubstr("this is a read-only token, which"))
        << command[0];
  }
  Finish("job");
  AwaitPhase("job", "SUCCEEDED");
}

TEST_F(ClusterTokensTest, AJobOfCadreRunIsWhoseTokenBeganIt) {
  const auto token = [&](const std::string& user) {
    const std::string path = absl::StrCat(directory_, "/", user, ".token");
    const auto made = Cadre({"token", "new", path, "--user=" + user});
    EXPECT_EQ(made->Wait(kTimeout), 0) << OutputOf(*made);
    return "--token-file=" + path;
  };
  const std::string anns = token("ann"), bobs = token("bob");
  const auto run = [&](const std::string& whose) {
    return StartCadre(
        {"run", absl::StrCat("--rdzv-endpoint=127.0.0.1:", port_), whose, "--job-name=mine",
         "--no-progress", "--", "sh", "-c",
         absl::StrCat("echo up; until [ -e ", Done("mine"), " ]; do sleep 0.02; done")});
  };
  const auto as = [&](const std::string& whose, std::vector<std::string> arguments) {
    arguments.push_back(Server());
    arguments.push_back(whose);
    auto command = Cadre(arguments, /*client=*/false);
    command->Wait(kTimeout);
    return command;
  };
  const auto first = run(anns);
  ASSERT_TRUE(first->WaitForLine("up", kTimeout).has_value()) << OutputOf(*first);
  EXPECT_THAT(as(bobs, {"cancel", "mine"})->standard_error(),
              HasSubstr("the job is ann's, and this is the token of user bob"));
  EXPECT_THAT(as(bobs, {"stacks", "mine"})->standard_error(), HasSubstr("the job is ann's"));
  const auto second = run(bobs);
  EXPECT_EQ(second->Wait(kTimeout), 69) << OutputOf(*second);
  EXPECT_THAT(second->standard_error(),
              HasSubstr("job mine is ann's, and this is the token of user bob; take another name"));
  Finish("mine");
  EXPECT_EQ(first->Wait(kTimeout), 0) << OutputOf(*first);
}

}  // namespace
}  // namespace cadre
