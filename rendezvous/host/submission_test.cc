// Jobs that are submitted while the server may not be able to save, and again.
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/host/full_log_for_test.h"
#include "rendezvous/host/join_for_test.h"

namespace cadre::host {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

class SubmissionTest : public ::testing::Test {
 protected:
  SubmissionTest() {
    log::OpenedLog full;
    full.log = std::make_unique<FullLog>(room_);
    core_ = std::make_unique<CoreThread>(NewCoreConfig(), nullptr, std::move(full));
  }
  void SetRoom(bool is_there) {
    const absl::MutexLock lock(&room_->mutex);
    room_->is_there = is_there;
  }
  absl::Status Submit(const std::string& job, const std::string& request_id,
                      const OwnerCheck& may = nullptr) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = JoinForTest("node0", 1, 1).join().spec();
    request.mutable_spec()->set_name(job);
    request.set_user("ann");
    request.set_request_id(request_id);
    absl::Notification answered;
    absl::Status status;
    const auto done = [&](absl::StatusOr<v1::JobStatus> answer) {
      status = answer.status();
      answered.Notify();
    };
    core_->AskSubmit(request, done, may);
    EXPECT_TRUE(answered.WaitForNotificationWithTimeout(kPatience));
    return status;
  }
  void AwaitSaved() {
    const MonoTime deadline = MonoNow() + kPatience;
    while (!Submit("probe", "probe").ok()) ASSERT_LT(MonoNow(), deadline);
  }

  const std::shared_ptr<FullLog::Room> room_ = std::make_shared<FullLog::Room>();
  std::unique_ptr<CoreThread> core_;
};

TEST_F(SubmissionTest, WhoMayNotUseAJobDoesNotGetItsName) {
  SetRoom(true);
  const auto none_of_anns = [](absl::string_view owner) {
    return owner == "ann" ? absl::PermissionDeniedError("it is ann's") : absl::OkStatus();
  };
  ASSERT_OK(Submit("job", "1", none_of_anns));
  EXPECT_THAT(
      Submit("job", "2", none_of_anns),
      StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("job job is ann's: it has not")));
  ASSERT_OK(core_->Cancel("job", "", 0));
  EXPECT_THAT(Submit("job", "3", none_of_anns),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("keeps its name")));
  EXPECT_OK(Submit("job", "4"));
}

TEST_F(SubmissionTest, AJobThatMayHaveBeenTakenIsSaidToBe_AndTheNextIsNotTaken) {
  SetRoom(false);
  EXPECT_THAT(Submit("first", "1"), StatusIs(absl::StatusCode::kResourceExhausted,
                                             HasSubstr("job first may have been taken: no room")));
  EXPECT_THAT(Submit("second", "2"), StatusIs(absl::StatusCode::kResourceExhausted,
                                              HasSubstr("job second was not taken: no room")));
  // The same again: still nobody knows.
  EXPECT_THAT(Submit("first", "1"), StatusIs(absl::StatusCode::kResourceExhausted,
                                             HasSubstr("job first may have been taken")));
  SetRoom(true);
  AwaitSaved();
  EXPECT_OK(core_->Status("first"));
  EXPECT_THAT(core_->Status("second"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(SubmissionTest, TheSameSubmissionAgainMakesNoSecondJob) {
  EXPECT_OK(Submit("job", "1"));
  EXPECT_OK(Submit("job", "1"));
  EXPECT_THAT(Submit("job", "2"), StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_OK(core_->Cancel("job", "enough", 0));
  EXPECT_OK(Submit("job", "1"));
  EXPECT_EQ(core_->Status("job")->phase(), v1::CANCELLED_PHASE);
  EXPECT_OK(Submit("job", "2"));
  EXPECT_EQ(core_->Status("job")->phase(), v1::QUEUED);
}

}  // namespace
}  // namespace cadre::host
