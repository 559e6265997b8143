#include "rendezvous/core/caller_check.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/core/core_rig.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

class CallerCheckTest : public CoreRig {
 protected:
  v1::NodeMessage JoinOf(const std::string& user, const std::string& node, uint64_t incarnation) {
    v1::NodeMessage message = JoinFrom({spec_.name(), node, incarnation, 0}, spec_, 2);
    if (!user.empty()) message.mutable_join()->mutable_caller()->set_user(user);
    return message;
  }
  static v1::NodeMessage Ended(v1::NodeMessage message) {
    message.mutable_join()->mutable_caller()->set_token_ended("the token of user ann ended");
    return message;
  }
  // With what the stream is refused; OK: it is welcomed.
  absl::Status Said(uint64_t stream, const v1::NodeMessage& message) {
    const Effects effects = Say(stream, message);
    for (const SendToStream& send : effects.send) {
      if (!(send.stream == StreamId{stream})) continue;
      if (send.message.has_welcome()) return absl::OkStatus();
      if (send.message.has_rejected()) {
        return absl::Status(static_cast<absl::StatusCode>(send.message.rejected().code()),
                            send.message.rejected().message());
      }
    }
    return absl::UnknownError("nothing was said");
  }

  const v1::JobSpec spec_ = SpecOf("train", 2, 2, 0);
};

TEST_F(CallerCheckTest, WithATokenThatHasEndedNothingBeginsAndWhatRunsComesBack) {
  EXPECT_THAT(Said(1, Ended(JoinOf("ann", "a", 5))),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("ended")));
  EXPECT_THAT(core_.Status(now_, "train"), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_OK(Said(2, JoinOf("ann", "a", 5)));
  Step(StreamClosed{StreamId{2}});
  // A job may run for longer than a token.
  EXPECT_OK(Said(3, Ended(JoinOf("ann", "a", 5))));
  // Another process on that node, or another node, would be a new one.
  EXPECT_THAT(Said(4, Ended(JoinOf("ann", "a", 6))), StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_THAT(Said(5, Ended(JoinOf("ann", "b", 5))), StatusIs(absl::StatusCode::kUnauthenticated));
}

TEST_F(CallerCheckTest, AJobThatNodesBringIsTheirUsersOrTheAdministrators) {
  ASSERT_OK(Said(1, JoinOf("ann", "a", 5)));
  EXPECT_EQ(*core_.OwnerOf("train"), "ann");
  EXPECT_EQ(core_.Status(now_, "train")->started_by(), "ann");
  EXPECT_THAT(Said(2, JoinOf("bob", "b", 6)),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("job train is ann's, and this is the token of user bob; take "
                                 "another name with --job-name")));
  // An administrator adds a node, and it stays hers.
  ASSERT_OK(Said(3, JoinOf("", "b", 6)));
  EXPECT_EQ(*core_.OwnerOf("train"), "ann");
}

TEST_F(CallerCheckTest, AnEndedJobKeepsItsNameForItsUser) {
  ASSERT_OK(Said(1, JoinOf("ann", "a", 5)));
  Step(JobCancelled{"train", "enough", 0});
  ASSERT_EQ(core_.Status(now_, "train")->phase(), v1::CANCELLED_PHASE);
  Step(StreamClosed{StreamId{1}});
  EXPECT_THAT(Said(2, JoinOf("bob", "c", 7)),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("job train, which has ended, is ann's")));
  ASSERT_OK(Said(3, JoinOf("ann", "a", 8)));
  EXPECT_EQ(core_.Status(now_, "train")->phase(), v1::GATHERING);
}

TEST_F(CallerCheckTest, WhatAnAdministratorBeganIsNoUsers) {
  ASSERT_OK(Said(1, JoinOf("", "a", 5)));
  EXPECT_EQ(*core_.OwnerOf("train"), "");
  EXPECT_THAT(Said(2, JoinOf("ann", "b", 6)),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("is the administrators'")));
}

TEST_F(CallerCheckTest, TheOwnerOutlivesTheServer) {
  ASSERT_OK(Said(1, JoinOf("ann", "a", 5)));
  Core anew((CoreConfig()));
  for (const v1::Record& record : core_.Snapshot()) anew.Apply(record);
  EXPECT_EQ(*anew.OwnerOf("train"), "ann");
  EXPECT_EQ(anew.OwnerOf("none"), nullptr);
}

TEST_F(CallerCheckTest, AUserKeepsNobodyOutWithJobsThatNodesBring) {
  const auto begin = [&](int number) {
    const v1::JobSpec spec = SpecOf(absl::StrCat("job", number), 2, 2, 0);
    v1::NodeMessage message = JoinFrom({spec.name(), "a", 5, 0}, spec, 2);
    message.mutable_join()->mutable_caller()->set_user("ann");
    return Said(number, message);
  };
  for (int i = 1; i <= 1000; ++i) ASSERT_OK(begin(i));
  EXPECT_THAT(begin(1001), StatusIs(absl::StatusCode::kResourceExhausted,
                                    HasSubstr("user ann has 1000 jobs that have not ended")));
  EXPECT_OK(Said(1002, JoinOf("bob", "a", 5)));
}

}  // namespace
}  // namespace cadre
