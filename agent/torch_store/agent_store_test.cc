#include "agent/torch_store/agent_store.h"

#include "agent/torch_store/store_client_rig.h"
#include "agent/workers/ports.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A store at a port that a PortReservation keeps, as the agent opens it.
class AgentStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto hold = PortReservation::Acquire("");
    ASSERT_OK(hold);
    hold_ = *std::move(hold);
    port_ = hold_.port();
  }
  absl::StatusOr<std::unique_ptr<AgentStore>> Open() {
    return AgentStore::Open({"127.0.0.1", port_, {"127.0.0.1"}});
  }
  PortReservation hold_;
  uint16_t port_ = 0;
};

TEST_F(AgentStoreTest, IsThereBeforeThePortIsReleased) {
  const auto store = Open();
  ASSERT_OK(store);
  hold_.Release();
  StoreClient client(port_);
  ASSERT_TRUE(client.connected());
  ASSERT_TRUE(client.Send(ValidateBytes() + PingBytes(5)));
  EXPECT_EQ(client.Read(4), rpc::LittleEndian32(5));
}

TEST_F(AgentStoreTest, ItsEndClosesConnectionsAndTheNextOneIsEmpty) {
  auto first = Open();
  ASSERT_OK(first);
  StoreClient waits(port_);
  ASSERT_TRUE(waits.Send(ValidateBytes() + TextsRequest(TorchOp::kSet, {"/a", "x"}) +
                         NumberRequest(TorchOp::kBarrier, "/b", 2)));
  first->reset();
  EXPECT_TRUE(waits.IsClosed());
  const auto second = Open();
  ASSERT_OK(second);
  StoreClient client(port_);
  ASSERT_TRUE(client.Send(ValidateBytes() + rpc::TorchOpByte(TorchOp::kGetNumKeys)));
  EXPECT_EQ(client.Read(8), rpc::LittleEndian64(0));
}

TEST_F(AgentStoreTest, StopEndsWaits) {
  const auto store = Open();
  ASSERT_OK(store);
  StoreClient waits(port_), other(port_);
  ASSERT_TRUE(waits.Send(ValidateBytes() + PingBytes(1) + KeysRequest(TorchOp::kWait, {"/a"})));
  EXPECT_EQ(waits.Read(4), rpc::LittleEndian32(1));
  ASSERT_TRUE(other.Send(ValidateBytes() + PingBytes(1)));
  EXPECT_EQ(other.Read(4), rpc::LittleEndian32(1));
  (*store)->StopWaits();
  EXPECT_TRUE(waits.IsClosed());
  ASSERT_TRUE(other.Send(PingBytes(2)));
  EXPECT_EQ(other.Read(4), rpc::LittleEndian32(2));
}

TEST_F(AgentStoreTest, LinesAreTakenOnce) {
  const auto store = Open();
  ASSERT_OK(store);
  StoreClient garbage(port_);
  garbage.Send("hello");
  EXPECT_TRUE(garbage.IsClosed());
  EXPECT_THAT((*store)->TakeLines(), ElementsAre(HasSubstr("store that this agent serves")));
  EXPECT_THAT((*store)->TakeLines(), testing::IsEmpty());
}

TEST_F(AgentStoreTest, WhereItCannotBeIsSaid) {
  const auto listener = ListenAt("127.0.0.1", port_);
  ASSERT_OK(listener);
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("127.0.0.1")));
  EXPECT_THAT(AgentStore::Open({"head", port_, {}}),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  // Not an address of this machine, but one reserved for documentation.
  EXPECT_THAT(AgentStore::Open({"192.0.2.1", port_, {}}), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace cadre::agent
