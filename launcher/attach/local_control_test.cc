#include "launcher/attach/local_control.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/status_matchers.h"
#include "rpc/versions.h"

namespace cadre::launcher {
namespace {

class NoSink : public host::NodeSink {
 public:
  void Send(v1::ServerMessage) override {}
  void Close(const absl::Status&) override {}
};

class LocalControlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/local_XXXXXX";
    ASSERT_NE(mkdtemp(&name[0]), nullptr);
    const char* const before = getenv("XDG_RUNTIME_DIR");
    if (before != nullptr) runtime_dir_before_ = before;
    setenv("XDG_RUNTIME_DIR", name.c_str(), 1);
    directory_ = name + "/cadre-" + std::to_string(geteuid());
  }
  void TearDown() override {
    unsetenv("XDG_RUNTIME_DIR");
    if (runtime_dir_before_.has_value()) {
      setenv("XDG_RUNTIME_DIR", runtime_dir_before_->c_str(), 1);
    }
  }
  LocalControl::Serving Serving() {
    return [this]() -> absl::StatusOr<std::shared_ptr<host::CoreThread>> { return core_; };
  }

  std::string directory_;
  std::optional<std::string> runtime_dir_before_;
  std::shared_ptr<host::CoreThread> core_ =
      std::make_shared<host::CoreThread>(host::NewCoreConfig());
};

TEST_F(LocalControlTest, CommandsFindTheJobAndItsLogs) {
  v1::NodeMessage message;
  message.set_job("a");
  message.set_incarnation(7);
  v1::Join& join = *message.mutable_join();
  join.set_node("n0");
  join.set_host("n0");
  join.set_address("127.0.0.1");
  join.set_slots(1);
  join.set_wanted_node_rank(-1);
  *join.mutable_version() = rpc::ThisVersion();
  v1::JobSpec& spec = *join.mutable_spec();
  spec.set_name("a");
  spec.add_command("x");
  spec.mutable_nodes()->set_min(1);
  spec.mutable_nodes()->set_max(1);
  const auto stream = core_->OpenStream(std::make_shared<NoSink>());
  ASSERT_OK(core_->Post(stream, message));

  EXPECT_TRUE(LocalLauncher::All().empty());
  auto control = LocalControl::Start("/logs", "a", Serving());
  ASSERT_NE(control, nullptr);
  const std::vector<LocalLauncher> all = LocalLauncher::All();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(*all[0].LogDir(), "/logs");
  const auto jobs = all[0].List();
  ASSERT_OK(jobs);
  ASSERT_EQ(jobs->size(), 1u);
  const auto job = all[0].Get("a");
  ASSERT_OK(job);
  EXPECT_EQ(job->world_size(), 1u);
  EXPECT_TRUE(absl::IsNotFound(all[0].Get("b").status()));
  v1::GetStacksRequest stacks;
  stacks.set_job("b");
  EXPECT_FALSE(all[0].GetStacks(stacks).ok());
  EXPECT_TRUE(absl::IsNotFound(all[0].Cancel("b", "enough").status()));
  const auto cancelled = all[0].Cancel("a", "enough");
  ASSERT_OK(cancelled);
  EXPECT_TRUE(absl::IsFailedPrecondition(all[0].Cancel("a", "again").status()) ||
              !cancelled->has_verdict());
  control.reset();
  EXPECT_TRUE(absl::IsUnavailable(all[0].Get("a").status()));
  EXPECT_TRUE(LocalLauncher::All().empty());
  core_->CloseStream(stream);
}

TEST_F(LocalControlTest, WhatAKilledLauncherLeftIsRemoved) {
  auto control = LocalControl::Start("/logs", "a", Serving());
  ASSERT_NE(control, nullptr);
  const std::string path = directory_ + "/launcher_1.sock";
  const std::string working_dir = std::filesystem::current_path();
  ASSERT_EQ(chdir(directory_.c_str()), 0);
  sockaddr_un address = {AF_UNIX, "launcher_1.sock"};
  const int left = socket(AF_UNIX, SOCK_STREAM, 0);
  const int bound = bind(left, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  ASSERT_EQ(chdir(working_dir.c_str()), 0);
  ASSERT_EQ(bound, 0) << path;
  close(left);
  EXPECT_EQ(LocalLauncher::All().size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(path));
}

// A suspended launcher cannot answer, so commands must not wait for it.
TEST_F(LocalControlTest, ASuspendedLauncherIsKnownByItsFile) {
  EXPECT_TRUE(LocalLauncher::Suspended().empty());
  const pid_t child = fork();
  if (child == 0) {
    raise(SIGSTOP);
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, WUNTRACED), child);
  // Gives the files the names that a launcher in the child process would use.
  auto control = LocalControl::Start("/logs", "a", Serving());
  ASSERT_NE(control, nullptr);
  for (const char* kind : {".sock", ".job"}) {
    const std::string of = directory_ + "/launcher_";
    std::filesystem::rename(of + std::to_string(getpid()) + kind,
                            of + std::to_string(child) + kind);
  }
  EXPECT_TRUE(LocalLauncher::All().empty());
  const std::vector<SuspendedLauncher> suspended = LocalLauncher::Suspended();
  ASSERT_EQ(suspended.size(), 1u);
  EXPECT_EQ(suspended[0].pid, child);
  EXPECT_EQ(suspended[0].job, "a");
  EXPECT_EQ(suspended[0].log_dir, "/logs");
  // The child continues, and ends.
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(LocalLauncher::Suspended().empty());
  EXPECT_EQ(LocalLauncher::All().size(), 1u);
}

}  // namespace
}  // namespace cadre::launcher
