#include "rendezvous/core/caller_check.h"

#include <string>

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

}  // namespace
}  // namespace cadre
