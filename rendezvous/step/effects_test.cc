#include "rendezvous/step/effects.h"

#include <string>

#include "gtest/gtest.h"

namespace cadre::step {
namespace {

constexpr uint64_t kServer = 4711;
constexpr StreamId kStream{1};

v1::Record Created(const std::string& name) {
  v1::Record record;
  record.set_job(name);
  record.mutable_job_created()->mutable_job()->mutable_spec()->set_name(name);
  return record;
}

class OutboxTest : public testing::Test {
 protected:
  state::State state_;
  EffectsBuilder out_{kServer, &state_};
};

TEST_F(OutboxTest, ARecordIsAppliedAtOnceAndIsToBeSaved) {
  out_.Commit(Created("train"));
  EXPECT_EQ(state_.jobs.count("train"), 1u);
  const Effects effects = out_.Take();
  ASSERT_EQ(effects.append.size(), 1u);
  EXPECT_EQ(effects.append[0].job(), "train");
  EXPECT_TRUE(out_.Take().append.empty());
}

TEST_F(OutboxTest, GenerationsAreOfThisServerUnlessAMessageSaysOtherwise) {
  out_.Send(kStream, MessageFor("train", 3));
  v1::ServerMessage old = MessageFor("train", 2);
  old.set_server_id(7);
  out_.Send(kStream, old);
  const Effects effects = out_.Take();
  ASSERT_EQ(effects.send.size(), 2u);
  EXPECT_EQ(effects.send[0].message.server_id(), kServer);
  EXPECT_EQ(effects.send[0].message.generation(), 3u);
  EXPECT_EQ(effects.send[1].message.server_id(), 7u);
}

TEST_F(OutboxTest, WhoIsRejectedHearsWhyBeforeItsStreamIsClosed) {
  out_.Reject(kStream, "train", absl::StatusCode::kAlreadyExists, "node a is in it");
  const Effects effects = out_.Take();
  ASSERT_EQ(effects.send.size(), 1u);
  EXPECT_EQ(effects.send[0].message.rejected().message(), "node a is in it");
  ASSERT_EQ(effects.close.size(), 1u);
  EXPECT_EQ(effects.close[0].status, absl::AlreadyExistsError("node a is in it"));
  ASSERT_EQ(effects.notes.size(), 1u);
  EXPECT_EQ(effects.notes[0].text, "rejected a Join: node a is in it");
}

TEST_F(OutboxTest, ANoteIsOneLine) {
  out_.Note("train", "two\nlines");
  EXPECT_EQ(out_.Take().notes[0].text.find('\n'), std::string::npos);
}

TEST_F(OutboxTest, NothingIsForgottenBeforeThereAreMany) {
  out_.Commit(Created("train"));
  v1::Record ended;
  ended.set_job("train");
  ended.mutable_job_ended()->mutable_verdict()->set_outcome(v1::FAILED);
  out_.Commit(ended);
  EXPECT_TRUE(out_.TakeDroppedJobs().empty());
}

}  // namespace
}  // namespace cadre::step
