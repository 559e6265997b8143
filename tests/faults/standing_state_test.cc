// The file system that holds a server's state does not answer: it is on a disk or a server of its
// own that is gone for a while. Needs /dev/fuse; skipped without.
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "tests/faults/mortal_server.h"
#include "tests/faults/store_job.h"
#include "tests/testing/file_systems.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kOverTheLease = absl::Seconds(12);
constexpr absl::Duration kTimeout = absl::Seconds(20);

class StandingStateTest : public testing::Test {
 protected:
  void SetUp() override {
    auto disk = HangingFileSystem::Mount();
    if (absl::IsFailedPrecondition(disk.status())) GTEST_SKIP() << disk.status().message();
    ASSERT_OK(disk);
    disk_ = *std::move(disk);
    server_ = std::make_unique<MortalServer>(disk_->path() + "/state");
  }
  void TearDown() override {
    if (disk_ != nullptr) disk_->Resume();
    if (server_ != nullptr && server_->running()) server_->Kill();
  }

  std::unique_ptr<HangingFileSystem> disk_;
  std::unique_ptr<MortalServer> server_;
};

// Fault (server): The file system of the server's state does not answer for longer than a lease ->
// The server stands still with it: no worker and no node is lost, and requests are answered when it
// goes on
TEST_F(StandingStateTest, ForLongerThanALease_WorkersStayNobodyIsLostAndAllGoesOn) {
  ASSERT_TRUE(server_->Start());
  StoreJob job(server_->token_file());
  for (int node = 0; node < 2; ++node) job.StartNode(server_->port(), "2");
  job.AwaitWorkers();
  job.ExpectAdditions();
  disk_->Hang();
  EXPECT_EQ(server_->process().Wait(kOverTheLease), std::nullopt);
  job.ExpectUndisturbed();
  disk_->Resume();
  job.ExpectAdditions();
  job.ExpectUndisturbed();
  job.Finish();
  job.ExpectOneGeneration();
  for (size_t node = 0; node < job.size(); ++node) {
    EXPECT_THAT(job.node(node).standard_error(), Not(HasSubstr("lost the rendezvous server")));
  }
}

// Nothing ends a process that the kernel makes wait for an answer of its file system.
//
// Fault (server): A server is told to end while the file system of its state does not answer -> It
// ends when the file system answers
TEST_F(StandingStateTest, AServerThatIsToldToEndMeanwhileEndsWhenItAnswers) {
  ASSERT_TRUE(server_->Start());
  disk_->Hang();
  Process& server = server_->process();
  server.Kill(SIGTERM);
  EXPECT_TRUE(server.WaitForLine("received signal 15, ending").has_value()) << OutputOf(server);
  disk_->Resume();
  EXPECT_EQ(server.Wait(kTimeout), 0) << OutputOf(server);
  server_ = nullptr;
}

// Fault (server): A server is started while the file system of its state does not answer -> After 3
// s it says what it waits for
TEST_F(StandingStateTest, AServerThatIsStartedMeanwhileSaysForWhatItWaits) {
  ASSERT_TRUE(server_->Start());
  server_->Kill();
  disk_->Hang();
  const auto server = StartCadre({"server", "--port", absl::StrCat(server_->port()), "--token-file",
                                  server_->token_file(), "--state-dir", server_->state_dir()});
  EXPECT_TRUE(server->WaitForLine("its file system does not answer", kTimeout).has_value())
      << OutputOf(*server);
  disk_->Resume();
  EXPECT_TRUE(server->WaitForLine("serving at", kTimeout).has_value()) << OutputOf(*server);
  server->Kill(SIGTERM);
  EXPECT_EQ(server->Wait(kTimeout), 0) << OutputOf(*server);
}

}  // namespace
}  // namespace cadre
