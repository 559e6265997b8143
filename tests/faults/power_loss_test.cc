// The server's machine loses its power: its process is gone, and of its disk what was not synced.
// Whatever was acknowledged is there when it comes back. Needs /dev/fuse; skipped without.
#include <signal.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "tests/faults/counted_additions.h"
#include "tests/faults/mortal_server.h"
#include "tests/faults/store_job.h"
#include "tests/testing/file_systems.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using Lost = ForgetfulFileSystem::Lost;
using SyncKeeps = ForgetfulFileSystem::SyncKeeps;

constexpr int kCycles = 10;
constexpr absl::Duration kTimeout = absl::Seconds(20);

class PowerLossTest : public testing::Test {
 protected:
  void Start(SyncKeeps keeps = SyncKeeps::kAll) {
    auto disk = ForgetfulFileSystem::Mount(keeps);
    if (absl::IsFailedPrecondition(disk.status())) GTEST_SKIP() << disk.status().message();
    ASSERT_OK(disk);
    disk_ = *std::move(disk);
    server_ = std::make_unique<MortalServer>(disk_->path() + "/state");
    ASSERT_TRUE(server_->Start());
  }
  void TearDown() override {
    // It has files of the disk open.
    if (server_ != nullptr && server_->running()) server_->Kill();
  }
  void LosePower(Lost lost) {
    server_->Kill();
    ASSERT_OK(disk_->LosePower(lost));
  }
  // `cadre <arguments>` against the server.
  std::unique_ptr<Process> Ask(std::vector<std::string> arguments) {
    arguments.push_back("--server=" + server_->endpoint());
    arguments.push_back("--token-file=" + server_->token_file());
    auto asked = StartCadre(arguments);
    EXPECT_TRUE(asked->Wait(kTimeout).has_value()) << OutputOf(*asked);
    return asked;
  }
  void Submit() {
    const std::string spec = MakeTempDir("spec") + "/job.yaml";
    std::ofstream(spec) << "name: submitted\nnodes: 1\ncommand: [/bin/true]\n";
    const auto submitted = Ask({"submit", spec});
    ASSERT_EQ(submitted->Wait(), 0) << OutputOf(*submitted);
  }

  std::unique_ptr<ForgetfulFileSystem> disk_;
  std::unique_ptr<MortalServer> server_;
};

// At once after the first thing that is acknowledged at all, when every file of the state is new.
//
// Fault (state): The server's machine loses its power right after the first acknowledged change ->
// That change is there
TEST_F(PowerLossTest, WhatWasAcknowledgedFirstIsThere) {
  Start();
  if (IsSkipped()) return;
  Submit();
  for (const Lost lost : {Lost::kAll, Lost::kSome}) {
    LosePower(lost);
    ASSERT_TRUE(server_->Start());
    const auto status = Ask({"status", "submitted"});
    EXPECT_EQ(status->Wait(), 0) << OutputOf(*status);
    EXPECT_THAT(status->standard_output(), HasSubstr("submitted"));
  }
}

// By this disk's own measure: where syncs keep nothing, that very test would fail.
TEST_F(PowerLossTest, WhereSyncsKeepNothingItIsLost) {
  Start(SyncKeeps::kNothing);
  if (IsSkipped()) return;
  Submit();
  LosePower(Lost::kAll);
  ASSERT_TRUE(server_->Start());
  const auto status = Ask({"status", "submitted"});
  EXPECT_NE(status->Wait(), 0) << OutputOf(*status);
}

// Fault (state): The server's machine loses its power, and unsynced data and file names are lost in
// whole or in part -> Everything acknowledged is there, and the generation goes on with its workers
TEST_F(PowerLossTest, AtRandomMomentsNothingAcknowledgedIsLostAndWorkersGoOn) {
  Start();
  if (IsSkipped()) return;
  StoreJob job(server_->token_file());
  for (int node = 0; node < 2; ++node) job.StartNode(server_->port(), "2");
  job.AwaitWorkers();
  CountedAdditions additions(*server_);
  for (int cycle = 0; cycle < kCycles && !HasFailure(); ++cycle) {
    additions.AwaitAnyMoment();
    LosePower(cycle % 2 == 0 ? Lost::kAll : Lost::kSome);
    if (!server_->Start()) break;
    for (size_t node = 0; node < job.size(); ++node) {
      job.Await(node, "reached the rendezvous server");
    }
    job.ExpectUndisturbed();
  }
  printf("%d losses of power, %lld additions\n", kCycles, static_cast<long long>(additions.Stop()));
  job.Finish();
  job.ExpectOneGeneration();
}

}  // namespace
}  // namespace cadre
