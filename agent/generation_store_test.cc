#include "agent/generation_store.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "agent/recording_display.h"
#include "agent/torch_store/agent_store.h"
#include "agent/torch_store/store_client_rig.h"
#include "agent/workers/ports.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/file_systems.h"

namespace cadre::agent {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(WantsAgentStoreTest, ByTheVersionOfTorch) {
  const WorkerEnvironmentOptions environment;
  const auto wants = [&](std::optional<TorchVersion> torch) {
    return WantsAgentStore(environment, absl::ZeroDuration(), torch);
  };
  EXPECT_FALSE(wants(std::nullopt));
  EXPECT_FALSE(wants(TorchVersion{1, 13}));
  EXPECT_FALSE(wants(TorchVersion{2, 0}));
  EXPECT_TRUE(wants(TorchVersion{2, 1}));
  EXPECT_TRUE(wants(TorchVersion{2, 15}));
}

TEST(WantsAgentStoreTest, WhatTurnsItOff) {
  const TorchVersion torch = {2, 15};
  WorkerEnvironmentOptions environment;
  EXPECT_FALSE(WantsAgentStore(environment, absl::Minutes(1), torch));
  environment.spec.set_agent_store(true);
  EXPECT_TRUE(WantsAgentStore(environment, absl::ZeroDuration(), torch));
  environment.spec.set_agent_store(false);
  EXPECT_FALSE(WantsAgentStore(environment, absl::ZeroDuration(), torch));
  environment.spec.clear_agent_store();
  environment.base = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"};
  EXPECT_FALSE(WantsAgentStore(environment, absl::ZeroDuration(), torch));
  (*environment.spec.mutable_env())["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "0";
  EXPECT_TRUE(WantsAgentStore(environment, absl::ZeroDuration(), torch));
}

// Uses an interpreter that, according to its files, has a recent torch.
class GenerationStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    fs::create_directories(root_ + "/bin");
    fs::create_directories(root_ + "/lib/python3.11/site-packages/torch");
    std::ofstream(root_ + "/bin/python3.11") << "";
    std::ofstream(root_ + "/lib/python3.11/site-packages/torch/version.py")
        << "__version__ = '2.15.0'\n";
    environment_.spec.add_command(root_ + "/bin/python3.11");
    auto hold = PortReservation::Acquire("");
    ASSERT_OK(hold);
    hold_ = *std::move(hold);
    v1::Assign& assign = environment_.assign;
    assign.set_nodes(2);
    assign.set_master_addr("127.0.0.1");
    assign.set_master_port(hold_.port());
    for (int i = 0; i < 2; ++i) assign.add_node_addresses("127.0.0.1");
  }
  void TearDown() override { fs::remove_all(root_); }
  bool Connects() {
    StoreClient client(environment_.assign.master_port());
    return client.connected() && client.Send(ValidateBytes() + PingBytes(5)) &&
           client.Read(4) == rpc::LittleEndian32(5);
  }

  std::string root_ = testing::TempDir() + "/store_XXXXXX";
  WorkerEnvironmentOptions environment_;
  PortReservation hold_;
  RecordingDisplay display_;
  GenerationStore store_{absl::ZeroDuration(), display_};
};

TEST_F(GenerationStoreTest, OnTheNodeOfRankZero) {
  store_.Begin(&environment_);
  EXPECT_TRUE(environment_.agent_store);
  EXPECT_TRUE(Connects());
  EXPECT_THAT(display_.own, IsEmpty());
  // The next generation may have the same port.
  hold_.Release();
  store_.Begin(&environment_);
  EXPECT_TRUE(Connects());
  store_.End();
  EXPECT_FALSE(Connects());
}

// Without the hook such a program has PyTorch's variable alone, which does not contain the address.
TEST_F(GenerationStoreTest, NotForAnInterpreterWithoutTheStartHook) {
  environment_.spec.add_command("-I");
  environment_.spec.add_command("train.py");
  store_.Begin(&environment_);
  EXPECT_FALSE(environment_.agent_store);
  EXPECT_FALSE(Connects());
}

TEST_F(GenerationStoreTest, OnOtherNodes) {
  environment_.assign.set_node_rank(1);
  environment_.assign.clear_node_addresses();
  store_.Begin(&environment_);
  EXPECT_TRUE(environment_.agent_store);
  EXPECT_FALSE(Connects());
  EXPECT_THAT(display_.own, IsEmpty());
}

// PyTorch before 2.6 uses other keys there than if rank 0 serves.
TEST_F(GenerationStoreTest, OnOtherNodesWhereRankZerosNodeIsReachedByAName) {
  environment_.assign.set_master_addr("localhost");
  environment_.assign.set_node_addresses(0, "localhost");
  store_.Begin(&environment_);
  EXPECT_FALSE(environment_.agent_store);
  EXPECT_THAT(display_.own, HasSubstr("is not a numeric address"));
  display_.own.clear();
  environment_.assign.set_node_rank(1);
  environment_.assign.clear_node_addresses();
  store_.Begin(&environment_);
  EXPECT_FALSE(environment_.agent_store);
  EXPECT_THAT(display_.own, IsEmpty());
}

TEST_F(GenerationStoreTest, WhatIsSaidToIt) {
  store_.Begin(&environment_);
  StoreClient garbage(hold_.port());
  garbage.Send("hello");
  EXPECT_TRUE(garbage.IsClosed());
  store_.Poll();
  EXPECT_THAT(display_.own, HasSubstr("PyTorch 2.1 or newer"));
}

// Fault (store): An agent cannot listen at rank 0's port -> Rank 0 serves PyTorch's store instead,
// and the launcher says so
TEST_F(GenerationStoreTest, WhereItCannotBeRankZeroServes) {
  const auto taken = ListenAt("127.0.0.1", hold_.port());
  ASSERT_OK(taken);
  store_.Begin(&environment_);
  EXPECT_FALSE(environment_.agent_store);
  EXPECT_THAT(display_.own, HasSubstr("rank 0 serves PyTorch's store"));
  EXPECT_TRUE(store_.PortIsTaken());
}

TEST_F(GenerationStoreTest, APortThatSomebodyElseListensAt) {
  EXPECT_FALSE(MasterPortIsTaken(environment_.assign));
  const auto taken = ListenAt("127.0.0.1", hold_.port());
  ASSERT_OK(taken);
  for (const char* address : {"127.0.0.1", "localhost"}) {
    environment_.assign.set_master_addr(address);
    EXPECT_TRUE(MasterPortIsTaken(environment_.assign)) << address;
  }
  environment_.assign.set_master_addr("127.0.0.2");
  EXPECT_FALSE(MasterPortIsTaken(environment_.assign));
}

// Fault (store): An agent does not know from which addresses the other nodes connect -> Rank 0
// serves PyTorch's store instead, and the launcher says so
TEST_F(GenerationStoreTest, WhereItIsNotKnownFromWhereNodesCome) {
  environment_.assign.clear_node_addresses();
  store_.Begin(&environment_);
  EXPECT_FALSE(environment_.agent_store);
  EXPECT_THAT(display_.own, HasSubstr("the server did not send the addresses of the nodes"));
}

TEST_F(GenerationStoreTest, WhereTheUserNamedAnotherAddress) {
  environment_.assign.set_master_addr("127.0.0.2");
  store_.Begin(&environment_);
  EXPECT_FALSE(environment_.agent_store);
  EXPECT_THAT(display_.own, HasSubstr("MASTER_ADDR \"127.0.0.2\""));
}

// The thread that begins a generation also renews the node's lease.
//
// Fault (python): The folders of the program's Python do not answer when a generation begins -> The
// launcher waits 1 s for PyTorch's version, once, or not at all with `agent_store=false`; rank 0
// then serves its store, which is reported
TEST_F(GenerationStoreTest, WhereItsPackagesCannotBeReadRankZeroServes) {
  auto disk = HangingFileSystem::Mount();
  if (absl::IsFailedPrecondition(disk.status())) GTEST_SKIP() << disk.status().message();
  ASSERT_OK(disk);
  environment_.spec.set_command(0, (*disk)->path() + "/bin/python3.11");
  (*disk)->Hang();
  // The files are not read here.
  MonoTime begin = MonoNow();
  environment_.spec.set_agent_store(false);
  store_.Begin(&environment_);
  EXPECT_LT(MonoNow() - begin, absl::Seconds(1));
  EXPECT_FALSE(environment_.agent_store);
  EXPECT_THAT(display_.own, IsEmpty());
  environment_.spec.clear_agent_store();
  begin = MonoNow();
  store_.Begin(&environment_);
  EXPECT_LT(MonoNow() - begin, absl::Seconds(8));
  EXPECT_FALSE(environment_.agent_store);
  EXPECT_THAT(display_.own,
              HasSubstr("the file system of the program's Python packages does not answer"));
  // The file system is known not to answer from now on.
  begin = MonoNow();
  store_.Begin(&environment_);
  EXPECT_LT(MonoNow() - begin, absl::Seconds(1));
  (*disk)->Resume();
}

TEST_F(GenerationStoreTest, OfAProgramThatIsNotPython) {
  environment_.spec.set_command(0, "/bin/true");
  store_.Begin(&environment_);
  EXPECT_FALSE(environment_.agent_store);
  EXPECT_FALSE(Connects());
  EXPECT_THAT(display_.own, IsEmpty());
}

}  // namespace
}  // namespace cadre::agent
