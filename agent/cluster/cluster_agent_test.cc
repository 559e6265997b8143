// The agent of a cluster's node with a real supervisor, and file systems that do not answer.
#include "agent/cluster/cluster_agent.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/run_files.h"
#include "agent/supervisor/processes/cgroup_limits.h"
#include "base/duration.h"
#include "base/scoped_fd.h"
#include "base/status_matchers.h"
#include "base/tokens/renewed_token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/versions.h"
#include "tests/testing/file_systems.h"

namespace cadre::agent {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::chrono::seconds kTestTimeout(30);
constexpr uint32_t kNvidiaMajor = 195;

// A server that welcomes the agent with a short lease, and records its messages.
class Server final : public ServerLink {
 public:
  void Start(LinkCallbacks callbacks) override {
    callbacks_ = std::move(callbacks);
    callbacks_.on_up(1);
    v1::ServerMessage welcome;
    *welcome.mutable_welcome()->mutable_lease() = ToProto(absl::Milliseconds(150));
    welcome.mutable_welcome()->set_server_id(7);
    *welcome.mutable_welcome()->mutable_version() = rpc::ThisVersion();
    callbacks_.on_message(welcome);
    const std::lock_guard<std::mutex> lock(mutex_);
    started_ = true;
    changed_.notify_all();
  }
  void Send(uint64_t, v1::NodeMessage message) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    heard_.push_back(std::move(message));
    changed_.notify_all();
  }
  void Stop() override {}

  void Order(const v1::AgentOrder& order) {
    v1::ServerMessage message;
    *message.mutable_agent() = order;
    callbacks_.on_message(message);
  }
  // Ends the agent.
  void Reject() {
    v1::ServerMessage message;
    message.mutable_rejected()->set_code(static_cast<int>(absl::StatusCode::kAlreadyExists));
    callbacks_.on_message(message);
  }
  bool AwaitStart() {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kTestTimeout, [this] { return started_; });
  }
  // Waits for `count` more renewals.
  bool AwaitRenewals(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    const size_t before = Renewals();
    return changed_.wait_for(lock, kTestTimeout, [&] { return Renewals() >= before + count; });
  }
  v1::LogChunk AwaitLog(uint64_t call) {
    return Await<v1::LogChunk>([call](const v1::AgentReport& report, v1::LogChunk* found) {
      *found = report.log();
      return report.has_log() && report.log().call() == call;
    });
  }
  bool AwaitClosing() {
    return Await<bool>(
        [](const v1::AgentReport& report, bool* found) { return *found = report.closing(); });
  }
  // The last message that is no renewal of the lease.
  v1::AgentReport LastReport() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto last =
        std::find_if(heard_.rbegin(), heard_.rend(),
                     [](const v1::NodeMessage& message) { return message.has_agent(); });
    return last == heard_.rend() ? v1::AgentReport() : last->agent();
  }
  v1::PartReport AwaitEnd(uint64_t part) {
    return Await<v1::PartReport>([part](const v1::AgentReport& report, v1::PartReport* found) {
      *found = report.ended();
      return report.has_ended() && report.ended().id() == part;
    });
  }

 private:
  size_t Renewals() const {
    size_t count = 0;
    for (const v1::NodeMessage& message : heard_) count += message.has_renew() ? 1 : 0;
    return count;
  }
  template <typename Found, typename Is>
  Found Await(const Is& is) {
    std::unique_lock<std::mutex> lock(mutex_);
    Found found{};
    const bool came = changed_.wait_for(lock, kTestTimeout, [&] {
      for (const v1::NodeMessage& message : heard_) {
        if (is(message.agent(), &found)) return true;
      }
      return false;
    });
    EXPECT_TRUE(came) << "the agent did not say what was waited for";
    return found;
  }

  LinkCallbacks callbacks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  std::vector<v1::NodeMessage> heard_;
};

v1::AgentOrder StartOf(uint64_t part) {
  v1::AgentOrder order;
  v1::StartPart& start = *order.mutable_start();
  start.mutable_part()->set_id(part);
  start.mutable_part()->set_job("train");
  start.mutable_part()->set_node("n0");
  start.set_user("root");
  return order;
}

class ClusterAgentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs to be root";
    auto mounted = HangingFileSystem::Mount();
    if (absl::IsFailedPrecondition(mounted.status())) GTEST_SKIP() << mounted.status().message();
    ASSERT_THAT(mounted, IsOk());
    disk_ = *std::move(mounted);
    ASSERT_EQ(chmod(std::filesystem::path(disk_->path()).parent_path().c_str(), 0755), 0);
    // Done before any thread exists: the supervisor is started, and the loop's signals are blocked.
    auto supervisor = supervisor::Client::Start();
    ASSERT_THAT(supervisor, IsOk());
    ClusterAgentOptions options;
    options.node.set_node("n0");
    options.node.set_cpus(1000);
    options.start.directory = disk_->path();
    options.start.root_too = true;
    options.start.launcher = disk_->behind() + "/launcher";
    options.gpus = {0, 1};
    options.start.gpus = {{0, {"GPU-a", 0}}, {1, {"GPU-b", 1}}};
    options.start.token = std::make_shared<RenewedToken>("an agent's token", "");
    options.log = [](const std::string&) {};
    agent_ = std::thread([this, options, client = *std::move(supervisor)]() mutable {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_BLOCK, &all, nullptr);
      end_ = RunClusterAgent(options, std::move(client), server_);
    });
    ASSERT_TRUE(server_.AwaitStart());
  }
  void TearDown() override {
    if (!agent_.joinable()) return;
    disk_->Resume();
    server_.Reject();
    agent_.join();
    EXPECT_EQ(end_.code(), absl::StatusCode::kAlreadyExists);
  }

  // An order to read a log file of this user in this directory.
  static v1::AgentOrder ReadLog(const std::string& directory, const std::string& user,
                                uint64_t call) {
    v1::AgentOrder order;
    v1::ReadLog& read = *order.mutable_read_log();
    read.set_call(call);
    read.set_job("train");
    read.set_user(user);
    read.set_dir(directory);
    read.set_generation(1);
    read.set_limit(100);
    return order;
  }
  static void WriteLog(const std::string& directory, const std::string& text) {
    const std::string folder = RankDirectory(RunDirectory(directory, "train", ""), 1, 0);
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/stdout.log") << text;
  }

  std::unique_ptr<HangingFileSystem> disk_;
  Server server_;
  absl::Status end_;
  std::thread agent_;
};

// Fault (queue): The file system of a job's log does not answer a cluster's agent -> Reading that
// log fails with this reason, and other logs and jobs are not delayed
TEST_F(ClusterAgentTest, ALogThatCannotBeReadHoldsUpNothingElse) {
  WriteLog(disk_->behind(), "written");
  WriteLog(disk_->behind() + "/other", "another's");
  server_.Order(ReadLog(disk_->path(), "root", 1));
  EXPECT_EQ(server_.AwaitLog(1).bytes(), "written");
  disk_->Hang();
  server_.Order(ReadLog(disk_->path(), "root", 2));
  ASSERT_TRUE(server_.AwaitRenewals(10));
  // A log of another user on a file system that answers.
  server_.Order(ReadLog(disk_->behind() + "/other", "daemon", 3));
  EXPECT_EQ(server_.AwaitLog(3).bytes(), "another's");
  const v1::LogChunk late = server_.AwaitLog(2);
  EXPECT_EQ(late.code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(late.message(), HasSubstr("does not answer"));
  // The file system is known not to answer from now on.
  server_.Order(ReadLog(disk_->path(), "root", 4));
  EXPECT_THAT(server_.AwaitLog(4).message(), HasSubstr("does not answer"));
  ASSERT_TRUE(server_.AwaitRenewals(1));
}

TEST_F(ClusterAgentTest, APartCannotOpenAGpuThatItWasNotGiven) {
  const std::string launcher = disk_->behind() + "/launcher";
  for (const uint32_t minor : {0, 1}) {
    ASSERT_EQ(mknod(absl::StrCat(launcher, ".gpu", minor).c_str(), S_IFCHR | 0666,
                    makedev(kNvidiaMajor, minor)),
              0);
  }
  std::ofstream(launcher) << "#!/bin/sh\n"
                             "for n in 0 1; do said=\"$said gpu$n: $( (: <$0.gpu$n && echo opens) "
                             "2>&1)\"; done; echo \"$said\" >&2; exit 1\n";
  ASSERT_EQ(chmod(launcher.c_str(), 0755), 0);
  v1::AgentOrder order = StartOf(12);
  order.mutable_start()->mutable_part()->set_gpus(1);
  server_.Order(order);
  const std::string said = server_.AwaitEnd(12).text();
  const std::string why_not = supervisor::FindUnsupportedLimits().devices;
  if (!why_not.empty()) GTEST_SKIP() << why_not;
  const std::string second = said.substr(std::min(said.find("gpu1:"), said.size()));
  EXPECT_THAT(second, HasSubstr("Operation not permitted"));
  // The line is empty after the first GPU on a machine without the second.
  EXPECT_THAT(said.substr(0, said.size() - second.size()),
              AllOf(HasSubstr("gpu0:"), Not(HasSubstr("not permitted"))));
}

// Fault (queue): A cluster's agent gets SIGTERM while a launcher is still ending -> It renews its
// lease, answers orders to start others, and leaves the cluster when the launcher has ended
TEST_F(ClusterAgentTest, AnAgentThatIsToldToEndLeavesAfterItsLaunchers) {
  const std::string launcher = disk_->behind() + "/launcher";
  const std::string up = launcher + ".up", go = launcher + ".go";
  for (const std::string& fifo : {up, go}) ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const ScopedFd is_up(open(up.c_str(), O_RDWR | O_CLOEXEC)),
      goes(open(go.c_str(), O_RDWR | O_CLOEXEC));
  std::ofstream(launcher) << "#!/bin/sh\n"
                             "trap '' TERM\n"
                             "echo up >$0.up; read go <$0.go; echo it has saved >&2; exit 1\n";
  ASSERT_EQ(chmod(launcher.c_str(), 0755), 0);
  v1::AgentOrder order = StartOf(1);
  order.mutable_start()->mutable_spec()->mutable_timeouts()->mutable_stop_grace()->set_seconds(60);
  server_.Order(order);
  pollfd ready = {is_up.get(), POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 30000), 1);
  ASSERT_EQ(pthread_kill(agent_.native_handle(), SIGTERM), 0);
  ASSERT_TRUE(server_.AwaitClosing());
  ASSERT_TRUE(server_.AwaitRenewals(2));
  server_.Order(StartOf(2));
  EXPECT_EQ(server_.AwaitEnd(2).blame(), v1::BLAME_NOBODY);
  EXPECT_FALSE(server_.LastReport().leaving());
  ASSERT_EQ(write(goes.get(), "go\n", 3), 3);
  EXPECT_THAT(server_.AwaitEnd(1).text(), HasSubstr("it has saved"));
  agent_.join();
  EXPECT_THAT(end_, IsOk());
  EXPECT_TRUE(server_.LastReport().leaving());
}

// A job can leave millions of files, or a file system in its directory that does not answer.
//
// Fault (queue): A job leaves millions of files on a node, or files that cannot be removed -> They
// are removed in a queue of that user's own, and other users' starts do not wait
TEST_F(ClusterAgentTest, AJobThatLeftWhatCannotBeRemovedDelaysNoOthersStart) {
  auto left = HangingFileSystem::Mount();
  ASSERT_THAT(left, IsOk());
  const std::string launcher = disk_->behind() + "/launcher";
  const std::string up = launcher + ".up", go = launcher + ".go";
  for (const std::string& fifo : {up, go}) ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const ScopedFd is_up(open(up.c_str(), O_RDWR | O_CLOEXEC)),
      goes(open(go.c_str(), O_RDWR | O_CLOEXEC));
  std::ofstream(launcher) << "#!/bin/sh\n"
                             "if [ $CADRE_CLUSTER_PART = 1 ]; then\n"
                             "  mkdir $XDG_RUNTIME_DIR/left && mount --bind "
                          << (*left)->path()
                          << " $XDG_RUNTIME_DIR/left\n"
                             "  echo up >$0.up; read go <$0.go\n"
                             "fi\n"
                             "echo it began >&2; exit 1\n";
  ASSERT_EQ(chmod(launcher.c_str(), 0755), 0);
  server_.Order(StartOf(1));
  pollfd ready = {is_up.get(), POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 30000), 1);
  (*left)->Hang();
  ASSERT_EQ(write(goes.get(), "go\n", 3), 3);
  EXPECT_THAT(server_.AwaitEnd(1).text(), HasSubstr("it began"));
  for (const uint64_t part : {2, 3}) {
    server_.Order(StartOf(part));
    EXPECT_THAT(server_.AwaitEnd(part).text(), HasSubstr("it began"));
  }
  (*left)->Resume();
}

// A large node gets this many launchers when it joins, and its file system is slow.
//
// Fault (queue): A node is to start more launchers at once than its file system or user database
// keeps up with -> They wait for their turn, and all are started
TEST_F(ClusterAgentTest, LaunchersThatAreOrderedAtOnceAreAllStarted) {
  const std::string launcher = disk_->behind() + "/launcher";
  std::ofstream(launcher) << "#!/bin/sh\necho it began >&2; exit 1\n";
  ASSERT_EQ(chmod(launcher.c_str(), 0755), 0);
  disk_->Hang();
  for (uint64_t part = 1; part <= 300; ++part) server_.Order(StartOf(part));
  ASSERT_TRUE(server_.AwaitRenewals(1));
  disk_->Resume();
  for (uint64_t part = 1; part <= 300; ++part) {
    ASSERT_THAT(server_.AwaitEnd(part).text(), HasSubstr("it began")) << part;
  }
}

// Fault (queue): The file system of a job's files, or the user database, does not answer a
// cluster's agent -> That launcher fails with this reason; the agent's lease is renewed, and other
// jobs go on
TEST_F(ClusterAgentTest, ALauncherWhoseFilesCannotBeMadeFailsAndNothingElseWaits) {
  disk_->Hang();
  server_.Order(StartOf(12));
  ASSERT_TRUE(server_.AwaitRenewals(10));
  const v1::PartReport late = server_.AwaitEnd(12);
  EXPECT_THAT(late.text(), HasSubstr("does not answer"));
  EXPECT_EQ(late.blame(), v1::BLAME_NOBODY);
  // A launcher that is stopped while its files are made does not wait for them.
  server_.Order(StartOf(13));
  v1::AgentOrder stop;
  stop.mutable_stop()->set_id(13);
  server_.Order(stop);
  EXPECT_THAT(server_.AwaitEnd(13).text(), HasSubstr("before it was started"));
}

}  // namespace
}  // namespace cadre::agent
