#include "rendezvous/service/permission.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::service {
namespace {

using ::testing::HasSubstr;

Bearer User(const std::string& name) {
  Bearer bearer;
  bearer.kind = Bearer::Kind::kUser;
  bearer.user = name;
  return bearer;
}
Bearer Part(uint64_t part, const std::string& job) {
  Bearer bearer;
  bearer.kind = Bearer::Kind::kPart;
  bearer.part = part;
  bearer.job = job;
  return bearer;
}
Bearer Reader() {
  Bearer bearer;
  bearer.kind = Bearer::Kind::kReader;
  return bearer;
}
v1::NodeMessage Join(const std::string& job, uint64_t part) {
  v1::NodeMessage message;
  message.set_job(job);
  message.mutable_join()->set_part(part);
  return message;
}

constexpr absl::StatusCode kDenied = absl::StatusCode::kPermissionDenied;

TEST(PermissionTest, StreamsOfAgentsLaunchersAndNodes) {
  v1::NodeMessage agent;
  agent.mutable_agent()->mutable_joined();
  EXPECT_OK(MayOpenStream(Bearer(), agent));
  EXPECT_OK(MayOpenStream(Bearer(), Join("j", 3)));
  EXPECT_THAT(MayOpenStream(User("ann"), agent), StatusIs(kDenied, HasSubstr("user ann")));
  EXPECT_THAT(MayOpenStream(Part(3, "j"), agent), StatusIs(kDenied));
  EXPECT_OK(MayOpenStream(User("ann"), Join("j", 0)));
  EXPECT_THAT(MayOpenStream(User("ann"), Join("j", 3)), StatusIs(kDenied));
  EXPECT_OK(MayOpenStream(Part(3, "j"), Join("j", 3)));
  EXPECT_THAT(MayOpenStream(Part(3, "j"), Join("j", 4)), StatusIs(kDenied));
  EXPECT_THAT(MayOpenStream(Part(3, "j"), Join("j", 0)), StatusIs(kDenied));
  EXPECT_THAT(MayOpenStream(Part(3, "j"), Join("k", 3)), StatusIs(kDenied));
}

TEST(PermissionTest, AJobIsItsOwnersAndTheAdministrators) {
  EXPECT_OK(MayUseJob(Bearer(), "ann"));
  EXPECT_OK(MayUseJob(User("ann"), "ann"));
  EXPECT_OK(MayUseJob(Bearer(), ""));
  EXPECT_THAT(MayUseJob(User("ann"), ""),
              StatusIs(kDenied, HasSubstr("the job is the administrators'")));
  EXPECT_THAT(MayUseJob(User("bob"), "ann"),
              StatusIs(kDenied, HasSubstr("the job is ann's, and this is the token of user bob")));
  EXPECT_THAT(MayUseJob(Part(3, "j"), "ann"), StatusIs(kDenied));
  v1::SubmitJobRequest request;
  request.set_user("ann");
  EXPECT_OK(MaySubmit(Bearer(), request));
  EXPECT_OK(MaySubmit(User("ann"), request));
  EXPECT_THAT(MaySubmit(User("bob"), request), StatusIs(kDenied));
  EXPECT_THAT(MaySubmit(Part(3, "j"), request), StatusIs(kDenied));
}

TEST(PermissionTest, AReadOnlyTokenLooksAndDoesNothingElse) {
  v1::NodeMessage agent;
  agent.mutable_agent()->mutable_joined();
  v1::SubmitJobRequest request;
  request.set_user("ann");
  v1::SubmitJobRequest nobodys;
  EXPECT_OK(MayLook(Reader()));
  for (const absl::Status& status :
       {MayOpenStream(Reader(), agent), MayOpenStream(Reader(), Join("j", 0)),
        MayOpenStream(Reader(), Join("", 0)), MayCallStore(Reader()), MaySubmit(Reader(), request),
        MaySubmit(Reader(), nobodys), MayUseJob(Reader(), "ann"), MayUseJob(Reader(), ""),
        MayDrain(Reader())}) {
    EXPECT_THAT(status, StatusIs(kDenied, HasSubstr("this is a read-only token, which ")));
  }
}

TEST(PermissionTest, NodesAndStores) {
  EXPECT_OK(MayDrain(Bearer()));
  EXPECT_THAT(MayDrain(User("ann")), StatusIs(kDenied, HasSubstr("the server's own token")));
  EXPECT_THAT(MayDrain(Part(3, "j")), StatusIs(kDenied));
  EXPECT_OK(MayLook(User("ann")));
  EXPECT_THAT(MayLook(Part(3, "j")), StatusIs(kDenied));
  EXPECT_OK(MayCallStore(Bearer()));
  EXPECT_THAT(MayCallStore(Part(3, "j")), StatusIs(kDenied));
  EXPECT_THAT(MayCallStore(User("ann")), StatusIs(kDenied));
}

}  // namespace
}  // namespace cadre::service
