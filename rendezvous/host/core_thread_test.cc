#include "rendezvous/host/core_thread.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/status_matchers.h"
#include "rendezvous/host/full_log_for_test.h"
#include "rendezvous/host/join_for_test.h"

namespace cadre::host {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

// Keeps what the core sends.
class Inbox final : public NodeSink {
 public:
  void Send(v1::ServerMessage message) override {
    const absl::MutexLock lock(&mutex_);
    messages_.push_back(std::move(message));
  }
  void Flush() override {
    const absl::MutexLock lock(&mutex_);
    flushed_.push_back(messages_.size());
  }
  void Close(const absl::Status& status) override {
    const absl::MutexLock lock(&mutex_);
    closed_ = status;
  }

  // Whether a message with this body has come, or comes in time.
  bool Await(v1::ServerMessage::BodyCase body) {
    const absl::MutexLock lock(&mutex_);
    const auto come = [&] {
      for (const v1::ServerMessage& message : messages_) {
        if (message.body_case() == body) return true;
      }
      return false;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&come), kPatience);
  }
  absl::Status AwaitClose() {
    const absl::MutexLock lock(&mutex_);
    const auto come = [&] { return closed_.has_value(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&come), kPatience)) {
      return absl::DeadlineExceededError("still open");
    }
    return *closed_;
  }
  std::vector<v1::ServerMessage> messages() {
    const absl::MutexLock lock(&mutex_);
    return messages_;
  }
  // How many messages there were at each Flush.
  std::vector<size_t> flushed() {
    const absl::MutexLock lock(&mutex_);
    return flushed_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<v1::ServerMessage> messages_;
  std::vector<size_t> flushed_;
  std::optional<absl::Status> closed_;
};

// Keeps the core thread busy until it is destroyed.
class Blockade {
 public:
  explicit Blockade(CoreThread& core) {
    core.AskAllStatuses([this](absl::StatusOr<std::vector<v1::JobStatus>>) {
      entered_.Notify();
      open_.WaitForNotificationWithTimeout(kPatience);
      left_.Notify();
    });
    entered_.WaitForNotification();
  }
  ~Blockade() {
    open_.Notify();
    left_.WaitForNotification();
  }

 private:
  absl::Notification entered_, open_, left_;
};

class CoreThreadTest : public ::testing::Test {
 protected:
  // Opens a stream and joins on it.
  std::shared_ptr<Inbox> AddNode(const std::string& node, uint32_t min, uint32_t max) {
    auto inbox = std::make_shared<Inbox>();
    last_stream_ = core_->OpenStream(inbox);
    EXPECT_OK(core_->Post(last_stream_, JoinForTest(node, min, max)));
    return inbox;
  }

  // A server that can save as long as its disk has room.
  void UseDisk(const CoreConfig& config = NewCoreConfig()) {
    log::OpenedLog disk;
    disk.log = std::make_unique<FullLog>(room_);
    core_ = std::make_unique<CoreThread>(config, nullptr, std::move(disk));
  }
  void FillDisk() {
    const absl::MutexLock lock(&room_->mutex);
    room_->is_there = false;
  }

  StreamId last_stream_;
  const std::shared_ptr<FullLog::Room> room_ = std::make_shared<FullLog::Room>();
  std::unique_ptr<CoreThread> core_ = std::make_unique<CoreThread>(NewCoreConfig());
};

TEST_F(CoreThreadTest, TwoNodesFormAGeneration) {
  const auto first = AddNode("node0", 2, 2);
  EXPECT_TRUE(first->Await(v1::ServerMessage::kWelcome));
  const auto second = AddNode("node1", 2, 2);
  EXPECT_TRUE(first->Await(v1::ServerMessage::kAssign));
  EXPECT_TRUE(second->Await(v1::ServerMessage::kAssign));
  EXPECT_EQ(second->messages().front().body_case(), v1::ServerMessage::kWelcome);
  const absl::StatusOr<v1::JobStatus> status = core_->Status("job");
  ASSERT_OK(status);
  EXPECT_EQ(status->generation(), 1u);
  EXPECT_EQ(status->world_size(), 4u);
  EXPECT_EQ(core_->AllStatuses()->size(), 1u);
}

TEST_F(CoreThreadTest, WhatFollowsFromAMessageAndThoseThatItCarriesIsFlushedOnce) {
  const auto inbox = std::make_shared<Inbox>();
  const StreamId stream = core_->OpenStream(inbox);
  v1::NodeMessage join = JoinForTest("node0", 1, 1);
  for (const uint64_t number : {1, 2}) {
    v1::NodeMessage* renew = join.add_more();
    *renew = OfGenerationForTest("node0");
    renew->mutable_renew()->set_number(number);
  }
  ASSERT_OK(core_->Post(stream, std::move(join)));
  // The second answer comes after the batch that the first one may be part of.
  EXPECT_OK(core_->AllStatuses());
  EXPECT_OK(core_->AllStatuses());
  size_t renewed = 0;
  for (const v1::ServerMessage& message : inbox->messages()) renewed += message.has_renewed();
  EXPECT_EQ(renewed, 2u);
  EXPECT_EQ(inbox->flushed(), std::vector<size_t>{inbox->messages().size()});
}

TEST_F(CoreThreadTest, DeadlinesPassWithoutEvents) {
  // The settle window ends although nobody else says anything.
  EXPECT_TRUE(AddNode("node0", 1, 2)->Await(v1::ServerMessage::kAssign));
}

TEST_F(CoreThreadTest, CancelEndsTheJobOnce) {
  const auto node = AddNode("node0", 2, 2);
  ASSERT_TRUE(node->Await(v1::ServerMessage::kWelcome));
  ASSERT_OK(core_->Cancel("job", "enough", 2));
  EXPECT_TRUE(node->Await(v1::ServerMessage::kFinished));
  EXPECT_THAT(core_->Cancel("job", "enough", 2),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has ended")));
}

TEST_F(CoreThreadTest, OneThatASchedulerCancelsIsWorthTryingLater) {
  const auto node = AddNode("node0", 2, 2);
  ASSERT_TRUE(node->Await(v1::ServerMessage::kWelcome));
  const auto job = core_->Cancel("job", "SIGUSR1", 10, v1::PREEMPTED);
  ASSERT_OK(job);
  EXPECT_EQ(job->verdict().exit_status(), 75);
}

TEST_F(CoreThreadTest, UnknownJob) {
  EXPECT_THAT(core_->Status("none"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(core_->Cancel("none", "", 0), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(CoreThreadTest, QueueIsBoundedInNumber) {
  const StreamId stream = core_->OpenStream(std::make_shared<Inbox>());
  v1::NodeMessage renew;
  renew.mutable_renew();
  const Blockade blockade(*core_);
  for (size_t i = 0; i < kEventQueueLimit; ++i) ASSERT_OK(core_->Post(stream, renew));
  EXPECT_THAT(core_->Post(stream, renew), StatusIs(absl::StatusCode::kResourceExhausted));
  v1::StoreReply reply;
  core_->CallStore(GetForTest("k", 1), [&reply](const v1::StoreReply& answer) { reply = answer; });
  EXPECT_EQ(reply.code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(reply.request_id(), 1u);
  EXPECT_EQ(reply.client(), 7u);
}

TEST_F(CoreThreadTest, QueueIsBoundedInSize) {
  const StreamId stream = core_->OpenStream(std::make_shared<Inbox>());
  v1::NodeMessage large;
  large.mutable_leave()->set_reason(std::string(4 << 20, 'x'));
  const Blockade blockade(*core_);
  absl::Status status;
  size_t accepted = 0;
  while (status.ok() && accepted <= kEventQueueBytesLimit >> 22) {
    status = core_->Post(stream, large);
    if (status.ok()) ++accepted;
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(accepted, (kEventQueueBytesLimit >> 22) - 1);
}

TEST_F(CoreThreadTest, StoreCallIsAnsweredOnce) {
  ASSERT_TRUE(AddNode("node0", 1, 1)->Await(v1::ServerMessage::kAssign));
  absl::Notification answered;
  v1::StoreReply got;
  core_->CallStore(GetForTest("k", 1), [&](const v1::StoreReply& reply) {
    got = reply;
    answered.Notify();
  });
  absl::Notification stored;
  core_->CallStore(SetForTest("k", "v", 2), [&](const v1::StoreReply&) { stored.Notify(); });
  ASSERT_TRUE(stored.WaitForNotificationWithTimeout(kPatience));
  ASSERT_TRUE(answered.WaitForNotificationWithTimeout(kPatience));
  EXPECT_EQ(got.code(), 0) << got.message();
  EXPECT_EQ(got.value(), "v");
}

TEST_F(CoreThreadTest, NobodyIsLeftWaitingAtTheEnd) {
  const auto node = AddNode("node0", 1, 1);
  ASSERT_TRUE(node->Await(v1::ServerMessage::kAssign));
  v1::StoreReply kept;
  bool dropped_answered = false;
  core_->CallStore(GetForTest("k", 1), [&kept](const v1::StoreReply& reply) { kept = reply; });
  core_->DropCall(core_->CallStore(
      GetForTest("k", 2), [&dropped_answered](const v1::StoreReply&) { dropped_answered = true; }));
  core_ = nullptr;
  EXPECT_EQ(kept.code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_FALSE(dropped_answered);
  EXPECT_THAT(node->AwaitClose(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(CoreThreadTest, WhoComesAfterTheEndIsToldWhy) {
  const absl::Status why = absl::UnavailableError("another server leads");
  core_->Stop(why);
  const auto inbox = std::make_shared<Inbox>();
  const StreamId stream = core_->OpenStream(inbox);
  EXPECT_EQ(inbox->AwaitClose(), why);
  EXPECT_OK(core_->Post(stream, JoinForTest("node0", 1, 1)));
  v1::StoreReply reply;
  core_->CallStore(GetForTest("k", 1), [&reply](const v1::StoreReply& answer) { reply = answer; });
  EXPECT_EQ(reply.code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_EQ(reply.message(), "another server leads");
  EXPECT_EQ(core_->Status("job").status(), why);
  EXPECT_EQ(core_->AllStatuses().status(), why);
  EXPECT_EQ(core_->Cancel("job", "", 0).status(), why);
}

// Fails as a log in etcd does when another server leads.
class LostLog final : public log::RecordLog {
 public:
  uint64_t server_id() const override { return 1; }
  absl::Status Append(const log::RecordRows&) override {
    return absl::AbortedError("this server no longer leads");
  }
};

TEST_F(CoreThreadTest, ADeposedServerSaysNothingMore) {
  log::OpenedLog lost;
  lost.log = std::make_unique<LostLog>();
  core_ = std::make_unique<CoreThread>(NewCoreConfig(), nullptr, std::move(lost));
  const auto first = AddNode("node0", 1, 1);
  bool answered = false;
  core_->CallStore(SetForTest("k", "v", 1), [&](const v1::StoreReply&) { answered = true; });
  // Both were handled when this is.
  EXPECT_OK(core_->AllStatuses());
  EXPECT_TRUE(first->messages().empty());
  const auto second = AddNode("node1", 1, 1);
  EXPECT_OK(core_->AllStatuses());
  EXPECT_TRUE(second->messages().empty());
  core_->Stop(absl::UnavailableError("another server leads"));
  EXPECT_TRUE(answered);
  EXPECT_THAT(first->AwaitClose(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(second->AwaitClose(), StatusIs(absl::StatusCode::kUnavailable));
}

// A node that stops its workers as soon as it is told.
class ObedientNode final : public NodeSink {
 public:
  explicit ObedientNode(CoreThread& core) : core_(core) {}
  void set_stream(StreamId stream) { stream_ = stream; }
  Inbox& inbox() { return inbox_; }

  void Send(v1::ServerMessage message) override {
    const bool stops = message.has_stop();
    inbox_.Send(std::move(message));
    if (!stops) return;
    v1::NodeMessage stopped = OfGenerationForTest("node0");
    stopped.mutable_node_stopped();
    EXPECT_OK(core_.Post(stream_, stopped));
  }
  void Close(const absl::Status& status) override { inbox_.Close(status); }

 private:
  CoreThread& core_;
  StreamId stream_;
  Inbox inbox_;
};

// Its deadline is long over when it can be saved at last.
TEST_F(CoreThreadTest, AStopOrderThatIsSavedLateHasItsTimeFromThen) {
  CoreConfig config = NewCoreConfig();
  config.stop_margin = absl::ZeroDuration();
  UseDisk(config);
  const auto node = std::make_shared<ObedientNode>(*core_);
  const StreamId stream = core_->OpenStream(node);
  node->set_stream(stream);
  v1::NodeMessage join = JoinForTest("node0", 1, 1);
  v1::Timeouts* timeouts = join.mutable_join()->mutable_spec()->mutable_timeouts();
  timeouts->mutable_stop_grace()->set_seconds(0);
  timeouts->mutable_stop_grace()->set_nanos(1000000);
  ASSERT_OK(core_->Post(stream, join));
  ASSERT_TRUE(node->inbox().Await(v1::ServerMessage::kAssign));
  FillDisk();
  v1::NodeMessage exited = OfGenerationForTest("node0");
  exited.mutable_worker_exited()->mutable_exit()->set_exit_code(1);
  exited.mutable_worker_exited()->set_cause(v1::CRASH);
  ASSERT_OK(core_->Post(stream, exited));
  {
    const absl::MutexLock lock(&room_->mutex);
    const auto tried = [&] { return room_->refused >= 3; };
    ASSERT_TRUE(room_->mutex.AwaitWithTimeout(absl::Condition(&tried), kPatience));
    room_->is_there = true;
  }
  // One that was taken for lost would not hear of the end.
  EXPECT_TRUE(node->inbox().Await(v1::ServerMessage::kFinished));
}

TEST_F(CoreThreadTest, ALeaseIsRenewedWhileItCannotSave) {
  UseDisk();
  const auto node = AddNode("node0", 1, 1);
  ASSERT_TRUE(node->Await(v1::ServerMessage::kAssign));
  FillDisk();
  ASSERT_THAT(core_->Cancel("job", "", 0), StatusIs(absl::StatusCode::kResourceExhausted));
  v1::NodeMessage renew = OfGenerationForTest("node0");
  renew.mutable_renew()->set_number(1);
  ASSERT_OK(core_->Post(last_stream_, renew));
  EXPECT_TRUE(node->Await(v1::ServerMessage::kRenewed));
}

TEST_F(CoreThreadTest, WhileItCannotSaveNeitherNodesNorAgentsAreLetIn) {
  UseDisk();
  ASSERT_TRUE(AddNode("node0", 1, 1)->Await(v1::ServerMessage::kAssign));
  FillDisk();
  ASSERT_THAT(core_->Cancel("job", "", 0), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(AddNode("node1", 1, 1)->AwaitClose(), StatusIs(absl::StatusCode::kUnavailable));
  const auto agent = std::make_shared<Inbox>();
  v1::NodeMessage joined;
  joined.mutable_agent()->mutable_joined()->set_node("node2");
  joined.mutable_agent()->mutable_joined()->set_cpus(1);
  ASSERT_OK(core_->Post(core_->OpenStream(agent), joined));
  EXPECT_THAT(agent->AwaitClose(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no room")));
}

TEST_F(CoreThreadTest, NothingComesAfterCloseStream) {
  const auto inbox = std::make_shared<Inbox>();
  const StreamId stream = core_->OpenStream(inbox);
  core_->CloseStream(stream);
  EXPECT_OK(core_->Post(stream, JoinForTest("node0", 1, 1)));
  EXPECT_TRUE(core_->AllStatuses()->empty());
  EXPECT_TRUE(inbox->messages().empty());
  EXPECT_EQ(inbox.use_count(), 1);
}

TEST_F(CoreThreadTest, WhatWasSaidBeforeTheEndCounts) {
  const StreamId stream = core_->OpenStream(std::make_shared<Inbox>());
  {
    const Blockade blockade(*core_);
    EXPECT_OK(core_->Post(stream, JoinForTest("node0", 2, 2)));
    core_->CloseStream(stream);
  }
  EXPECT_OK(core_->Status("job"));
}

TEST(CoreThreadLog, NotesAreLogged) {
  absl::Mutex mutex;
  std::vector<std::string> lines;
  {
    CoreThread core(NewCoreConfig(), [&](const std::string& line) {
      const absl::MutexLock lock(&mutex);
      lines.push_back(line);
    });
    EXPECT_OK(core.Post(core.OpenStream(std::make_shared<Inbox>()), JoinForTest("node0", 1, 1)));
    EXPECT_OK(core.AllStatuses());
  }
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines.front(), HasSubstr("job job: "));
}

}  // namespace
}  // namespace cadre::host
