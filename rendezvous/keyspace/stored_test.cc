#include "rendezvous/keyspace/stored.h"

#include "gtest/gtest.h"

namespace cadre::keyspace {
namespace {

TEST(StoredTest, BytesAreThoseOfWhatIsThere) {
  Stored stored;
  stored.Apply({KeyWritten{"k", "value"}, {}});
  stored.Apply({IdPublished{"k", "id"}, {}});
  EXPECT_EQ(stored.bytes, 9u);
  stored.Apply({KeyWritten{"k", "v"}, {}});
  EXPECT_EQ(stored.bytes, 5u);
  stored.Apply({KeyErased{"absent"}, {}});
  stored.Apply({KeyErased{"k"}, {}});
  EXPECT_EQ(stored.bytes, 3u);
  EXPECT_TRUE(stored.keys.empty());
  EXPECT_EQ(stored.communicator_ids.at("k"), "id");
}

TEST(StoredTest, AnswersAreRememberedWithTheChange) {
  Stored stored;
  Reply reply;
  reply.client = 1;
  reply.id = 2;
  reply.number = 7;
  stored.Apply({Answered{}, {reply}});
  ASSERT_NE(stored.answers.Find(1, 2), nullptr);
  EXPECT_EQ(stored.answers.Find(1, 2)->number, 7);
  EXPECT_EQ(stored.answers.Find(1, 3), nullptr);
}

}  // namespace
}  // namespace cadre::keyspace
