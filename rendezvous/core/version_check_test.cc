#include "rendezvous/core/version_check.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/core/core_rig.h"
#include "rpc/versions.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

class VersionCheckTest : public CoreRig {
 protected:
  // Of 0.MINOR; 2: it says nothing.
  v1::NodeMessage JoinOf(uint32_t minor, const v1::JobSpec& spec, const std::string& node = "a") {
    v1::NodeMessage message = JoinFrom({spec.name(), node, 5, 0}, spec, 2);
    message.mutable_join()->mutable_version()->set_minor(minor);
    message.mutable_join()->mutable_version()->clear_program();
    if (minor == 2) message.mutable_join()->clear_version();
    return message;
  }
  // What the stream hears first.
  v1::ServerMessage Said(uint64_t stream, const v1::NodeMessage& message) {
    for (const SendToStream& send : Say(stream, message).send) {
      if (send.stream == StreamId{stream}) return send.message;
    }
    ADD_FAILURE() << "nothing was said";
    return {};
  }

  const v1::JobSpec spec_ = SpecOf("train", 3, 3, 0);
};

TEST_F(VersionCheckTest, NeighboursAreWelcomedAndToldTheServersVersion) {
  const v1::ServerMessage welcome = Said(1, JoinOf(2, spec_));
  ASSERT_TRUE(welcome.has_welcome());
  EXPECT_EQ(welcome.welcome().version().minor(), rpc::kMinorVersion);
  EXPECT_TRUE(Said(2, JoinOf(rpc::kMinorVersion, spec_, "b")).has_welcome());
  const v1::JobStatus status = *core_.Status(now_, "train");
  ASSERT_EQ(status.nodes_size(), 2);
  EXPECT_EQ(status.nodes(0).version(), "0.2");
  EXPECT_TRUE(Said(3, JoinOf(rpc::kMinorVersion + 1, spec_, "c")).has_welcome());
}

TEST_F(VersionCheckTest, OthersAreRefused_AndTheJobIsNotMade) {
  const v1::ServerMessage refusal = Said(1, JoinOf(rpc::kMinorVersion + 2, spec_));
  EXPECT_EQ(refusal.rejected().code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_THAT(refusal.rejected().message(), HasSubstr("upgrade the server to 0."));
  EXPECT_THAT(core_.Status(now_, "train"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(VersionCheckTest, OneThatCannotEncryptDoesNotJoinAJobThatDoes) {
  v1::JobSpec encrypts = spec_;
  encrypts.set_encrypt(true);
  EXPECT_TRUE(Said(1, JoinOf(rpc::kMinorVersion, encrypts)).has_welcome());
  EXPECT_EQ(Said(2, JoinOf(2, encrypts, "b")).rejected().message(),
            "job train encrypts what its workers send, and Cadre 0.2, which runs on this node, "
            "cannot: upgrade it");
}

TEST_F(VersionCheckTest, OneThatCannotSayWhereItsWorkersAreIsNotAsked) {
  Said(1, JoinOf(2, spec_));
  Said(2, JoinOf(rpc::kMinorVersion, spec_, "b"));
  Said(3, JoinOf(rpc::kMinorVersion, spec_, "c"));
  v1::GetStacksRequest request;
  request.set_job("train");
  const auto sources = core_.FindStacks(request);
  ASSERT_OK(sources);
  ASSERT_EQ(sources->nodes.size(), 3u);
  EXPECT_FALSE(sources->nodes[0].stream.has_value());
  EXPECT_EQ(sources->nodes[0].why, "is of Cadre 0.2, which cannot say: upgrade it");
  EXPECT_TRUE(sources->nodes[1].stream.has_value());
}

}  // namespace
}  // namespace cadre
