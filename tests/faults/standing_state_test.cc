// The file system that holds a server's state does not answer: it is on a disk or a server of its
// own that is gone for a while. Needs /dev/fuse; skipped without.
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "tests/faults/mortal_server.h"
#include "tests/faults/store_job.h"
#include "tests/testing/standing_file_system.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kOverTheLease = absl::Seconds(12);
constexpr absl::Duration kPatience = absl::Seconds(20);

class StandingStateTest : public testing::Test {
 protected:
  void SetUp() override {
    auto disk = StandingFileSystem::Mount();
    if (absl::IsFailedPrecondition(disk.status())) GTEST_SKIP() << disk.status().message();
    ASSERT_OK(disk);
    disk_ = *std::move(disk);
    server_ = std::make_unique<MortalServer>(disk_->path() + "/state");
  }
  void TearDown() override {
    if (disk_ != nullptr) disk_->GoOn();
    if (server_ != nullptr && server_->running()) server_->Kill();
  }

  std::unique_ptr<StandingFileSystem> disk_;
  std::unique_ptr<MortalServer> server_;
};

TEST_F(StandingStateTest, ForLongerThanALease_WorkersStayNobodyIsLostAndAllGoesOn) {
  ASSERT_TRUE(server_->Start());
  StoreJob job(server_->token_file());
  for (int node = 0; node < 2; ++node) job.StartNode(server_->port(), "2");
  job.AwaitWorkers();
  job.ExpectAdditions();
  disk_->StandStill();
  EXPECT_EQ(server_->process().Wait(kOverTheLease), std::nullopt);
  job.ExpectUndisturbed();
  disk_->GoOn();
  job.ExpectAdditions();
  job.ExpectUndisturbed();
  job.Finish();
  job.ExpectOneGeneration();
  for (size_t node = 0; node < job.size(); ++node) {
    EXPECT_THAT(job.node(node).standard_error(), Not(HasSubstr("lost the rendezvous server")));
  }
}

// Nothing ends a process that the kernel makes wait for an answer of its file system.
TEST_F(StandingStateTest, AServerThatIsToldToEndMeanwhileEndsWhenItAnswers) {
  ASSERT_TRUE(server_->Start());
  disk_->StandStill();
  Process& server = server_->process();
  server.Kill(SIGTERM);
  EXPECT_TRUE(server.WaitForLine("received signal 15, ending").has_value()) << Said(server);
  disk_->GoOn();
  EXPECT_EQ(server.Wait(kPatience), 0) << Said(server);
  server_ = nullptr;
}

TEST_F(StandingStateTest, AServerThatIsStartedMeanwhileSaysForWhatItWaits) {
  ASSERT_TRUE(server_->Start());
  server_->Kill();
  disk_->StandStill();
  const auto server = StartCadre({"server", "--port", absl::StrCat(server_->port()), "--token-file",
                                  server_->token_file(), "--state-dir", server_->state_dir()});
  EXPECT_TRUE(server->WaitForLine("its file system does not answer", kPatience).has_value())
      << Said(*server);
  disk_->GoOn();
  EXPECT_TRUE(server->WaitForLine("serving at", kPatience).has_value()) << Said(*server);
  server->Kill(SIGTERM);
  EXPECT_EQ(server->Wait(kPatience), 0) << Said(*server);
}

}  // namespace
}  // namespace cadre
