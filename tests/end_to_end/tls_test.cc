// What protects a cluster's tokens: TLS by the token's key, and by certificates, with jobs of other
// users and through a change of the token.
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/bearer_token.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/end_to_end/served_cluster.h"
#include "tests/testing/certificates.h"
#include "tests/testing/loopback_socket.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Takes the server's place on a port of loopback: greets whoever connects as a server in clear text
// does, and keeps what it is sent.
class Impostor {
 public:
  Impostor() {
    listener_.Listen();
    thread_ = std::thread([this] { Run(); });
  }
  ~Impostor() { Stop(); }

  int port() const { return listener_.port(); }
  // What came, in the order in which it did. Nothing more is taken.
  const std::string& Heard() {
    Stop();
    return heard_;
  }

 private:
  void Stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }

  void Run() {
    std::vector<pollfd> open = {{listener_.fd(), POLLIN, 0}};
    while (!stopping_) {
      if (poll(open.data(), open.size(), 20) <= 0) continue;
      for (size_t i = open.size(); i-- > 1;) {
        if (open[i].revents == 0) continue;
        char block[4096];
        const ssize_t got = read(open[i].fd, block, sizeof(block));
        if (got > 0) {
          heard_.append(block, static_cast<size_t>(got));
        } else {
          close(open[i].fd);
          open.erase(open.begin() + static_cast<ssize_t>(i));
        }
      }
      if (open[0].revents == 0) continue;
      const int caller = accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
      // HTTP/2's settings, all as they are by default.
      const char settings[] = {0, 0, 0, 4, 0, 0, 0, 0, 0};
      EXPECT_EQ(write(caller, settings, sizeof(settings)), static_cast<ssize_t>(sizeof(settings)));
      open.push_back({caller, POLLIN, 0});
    }
    for (size_t i = 1; i < open.size(); ++i) close(open[i].fd);
  }

  const LoopbackSocket listener_;
  std::atomic<bool> stopping_{false};
  std::string heard_;
  std::thread thread_;
};

// What an impostor hears of a command with this token.
std::string HeardOf(const std::string& token, const std::vector<std::string>& more = {}) {
  const std::string file = MakeTempDir("token") + "/token";
  EXPECT_OK(WriteTokenFile(file, token));
  Impostor impostor;
  std::vector<std::string> arguments = {
      "status", absl::StrCat("--server=127.0.0.1:", impostor.port()), "--token-file=" + file};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const auto command = StartCadre(arguments);
  EXPECT_EQ(command->Wait(kTimeout), 69) << OutputOf(*command);
  return impostor.Heard();
}

// Fault (access): Another process answers at the server's address, with a key or without -> It is
// sent no token; the launcher exits with 69 and says that this is not the token's server
TEST(TlsTest, WhoeverAnswersInTheServersPlaceHearsNoToken) {
  const std::string secret = RandomToken();
  for (const std::string& token : {secret, UserToken(secret, 7, "ann", absl::InfiniteFuture())}) {
    EXPECT_THAT(HeardOf(token), AllOf(Not(IsEmpty()), Not(HasSubstr(token))));
  }
  // Unless that is what was asked for.
  EXPECT_THAT(HeardOf(secret, {"--insecure"}), HasSubstr(secret));
}

using TokenChangeTest = ServedCluster;

// Fault (access): The token is replaced while jobs run, and the server is restarted afterwards ->
// Running jobs go on in the same generation, and agents give launchers new tokens
TEST_F(TokenChangeTest, AReplacedTokenEndsNoJobAlsoWhereTheServerIsStartedAgain) {
  Submit("job", "2");
  AwaitRunning("job", 2);
  const auto made = Cadre({"token", "new", Token(), "--force"}, /*client=*/false);
  ASSERT_EQ(made->Wait(kTimeout), 0) << OutputOf(*made);
  ASSERT_TRUE(server_->WaitForLine("has a new token now", kTimeout).has_value());
  int renewed = 0;
  for (const auto& agent : agents_) {
    if (agent->WaitForLine("1 launcher on this node got a new one", absl::Seconds(5)).has_value()) {
      ++renewed;
    }
  }
  EXPECT_EQ(renewed, 2);
  server_->Kill(SIGKILL);
  server_->Wait(kTimeout);
  StartServer();
  for (const auto& agent : agents_) AwaitIn(*agent);
  AwaitRunning("job", 2);
  EXPECT_EQ(Status("job")["generation"], "1");
  Finish("job");
  AwaitPhase("job", "SUCCEEDED");
}

// All of it lies where other users get to.
class MutualTlsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, for jobs of another user";
    std::string made = "/tmp/cadre_tls_XXXXXX";
    ASSERT_NE(mkdtemp(&made[0]), nullptr);
    directory_ = made;
    ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
    for (const char* program : {"cadre", "cadre-supervisor"}) {
      std::filesystem::copy_file(absl::StrCat("launcher/", program),
                                 absl::StrCat(directory_, "/", program));
    }
    ASSERT_OK(WriteTokenFile(Token(), RandomToken()));
    // The node's own certificate and key are root's alone.
    ASSERT_EQ(chmod(certificates_.c_str(), 0700), 0);
  }
  void TearDown() override {
    for (const auto& process : {agent_.get(), server_.get()}) {
      if (process == nullptr) continue;
      process->Kill(SIGTERM);
      EXPECT_EQ(process->Wait(kTimeout), 0) << OutputOf(*process);
    }
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }

  std::string Token() const { return directory_ + "/token"; }
  std::unique_ptr<Process> Cadre(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--token-file=" + Token(), "--tls-dir=" + certificates_});
    return StartProgram(directory_ + "/cadre", arguments);
  }
  // As a user who has a token and a certificate of its own.
  std::unique_ptr<Process> AsNobody(const std::vector<std::string>& arguments) {
    std::vector<std::string> all = {"--reuid=nobody", "--clear-groups", "--",
                                    directory_ + "/cadre"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    all.insert(all.end(), {"--token-file=" + Nobodys() + "/token", "--tls-dir=" + Nobodys()});
    return StartProgram("setpriv", all);
  }
  std::string Nobodys() const { return directory_ + "/nobodys"; }
  void GiveToNobody() {
    const passwd* const user = getpwnam("nobody");
    ASSERT_NE(user, nullptr);
    for (const char* name : {"/", "/token", "/ca.pem", "/cert.pem", "/key.pem"}) {
      ASSERT_EQ(chown((Nobodys() + name).c_str(), user->pw_uid, user->pw_gid), 0) << name;
    }
  }

  const std::string certificates_ = MakeCertificates();
  const int port_ = FreePort();
  std::string directory_;
  std::unique_ptr<Process> server_;
  std::unique_ptr<Process> agent_;
};

// Fault (access): With `--tls-dir`, launchers of submitted jobs have no certificate -> They are
// admitted by their allocation's token and never get the agent's key
TEST_F(MutualTlsTest, AJobOfAnotherUserRunsWithoutTheNodesKey) {
  const std::string server = absl::StrCat("--server=127.0.0.1:", port_);
  server_ = Cadre({"server", absl::StrCat("--port=", port_), "--state-dir=none"});
  ASSERT_TRUE(server_->WaitForLine("serving at", kTimeout).has_value()) << OutputOf(*server_);
  agent_ = Cadre({"agent", server, "--node-name=n0", "--cpus=1", "--gpus=0"});
  ASSERT_TRUE(agent_->WaitForLine("is in the cluster", kTimeout).has_value()) << OutputOf(*agent_);
  const std::string logs = directory_ + "/logs", spec = directory_ + "/job.yaml";
  std::filesystem::create_directory(logs);
  ASSERT_EQ(chmod(logs.c_str(), 0777), 0);
  std::ofstream(spec) << "name: job\nnodes: 1\nworkers_per_node: 1\nworking_dir: /tmp\nlogs: {dir: "
                      << logs << "}\ncommand: [/bin/sh, -c, 'id -un; cat " << certificates_
                      << "/key.pem']\n";
  std::filesystem::copy(certificates_, Nobodys());
  const auto made = Cadre({"token", "new", Nobodys() + "/token", "--user=nobody", server});
  ASSERT_EQ(made->Wait(kTimeout), 0) << OutputOf(*made);
  GiveToNobody();
  const auto submitted = AsNobody({"submit", spec, "--follow", server});
  EXPECT_TRUE(submitted->Wait(kTimeout).has_value()) << OutputOf(*submitted) << OutputOf(*agent_);
  const auto said = AsNobody({"logs", "job", server});
  EXPECT_EQ(said->Wait(kTimeout), 0)
      << OutputOf(*said) << OutputOf(*submitted) << OutputOf(*agent_);
  EXPECT_THAT(said->standard_output(), HasSubstr("nobody"));
  EXPECT_THAT(said->standard_output(), Not(HasSubstr("PRIVATE KEY")));
}

}  // namespace
}  // namespace cadre
