#include "rendezvous/state/records.h"

#include "gtest/gtest.h"

namespace cadre::state {
namespace {

TEST(StoreRecordsTest, EveryChangeComesBackFromItsRecord) {
  keyspace::Reply reply;
  reply.client = 1;
  reply.id = 2;
  reply.code = absl::StatusCode::kFailedPrecondition;
  reply.message = "why";
  reply.value = "v";
  reply.number = -3;
  const keyspace::Change changes[] = {
      {keyspace::Answered{}, {reply}},
      {keyspace::KeyWritten{"k", "v"}, {reply}},
      {keyspace::KeyErased{"k"}, {}},
      {keyspace::IdPublished{"world", "id"}, {reply, reply}},
  };
  for (const keyspace::Change& change : changes) {
    const v1::Record record = RecordOf(7, change);
    EXPECT_EQ(GenerationOfChange(record), 7u);
    const keyspace::Change back = ChangeOf(record);
    EXPECT_EQ(back.what.index(), change.what.index());
    EXPECT_EQ(RecordOf(7, back).SerializeAsString(), record.SerializeAsString());
  }
  EXPECT_EQ(GenerationOfChange(v1::Record()), std::nullopt);
}

TEST(StoreRecordsTest, ARequestWithoutAnOperationIsNone) {
  v1::StoreRequest message;
  EXPECT_FALSE(FromProto(message).has_value());
  message.set_client(1);
  message.set_request_id(2);
  message.set_rank(3);
  message.set_wait_ms(4);
  message.mutable_barrier()->set_name("b");
  message.mutable_barrier()->set_size(5);
  const auto request = FromProto(message);
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->client, 1u);
  EXPECT_EQ(request->id, 2u);
  EXPECT_EQ(request->rank, 3);
  EXPECT_EQ(request->wait_ms, 4u);
  const auto& barrier = std::get<keyspace::EnterBarrier>(request->operation);
  EXPECT_EQ(barrier.name, "b");
  EXPECT_EQ(barrier.size, 5u);
}

}  // namespace

}  // namespace cadre::state
