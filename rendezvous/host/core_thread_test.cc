#include "rendezvous/host/core_thread.h"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "rendezvous/host/commit_queue.h"
#include "rendezvous/host/core_host.h"
#include "rendezvous/host/fakes_for_test.h"
#include "rendezvous/host/messages_for_test.h"
#include "rendezvous/host/stream_registry.h"
#include "rpc/versions.h"

namespace cadre::host {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

// Keeps the core's messages.
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

  // Waits for a message with this body; false if none comes in time.
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
  // The number of messages at each Flush.
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
    disk.log = std::make_unique<FullDiskLog>(room_);
    core_ = std::make_unique<CoreThread>(config, nullptr, std::move(disk));
  }
  void FillDisk() {
    const absl::MutexLock lock(&room_->mutex);
    room_->is_there = false;
  }

  StreamId last_stream_;
  const std::shared_ptr<FullDiskLog::Room> room_ = std::make_shared<FullDiskLog::Room>();
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
    *renew = GenerationMessageForTest("node0");
    renew->mutable_renew()->set_number(number);
  }
  ASSERT_OK(core_->Post(stream, std::move(join)));
  // The second answer comes after the batch that may contain the first.
  EXPECT_OK(core_->AllStatuses());
  EXPECT_OK(core_->AllStatuses());
  size_t renewed = 0;
  for (const v1::ServerMessage& message : inbox->messages()) renewed += message.has_renewed();
  EXPECT_EQ(renewed, 2u);
  EXPECT_EQ(inbox->flushed(), std::vector<size_t>{inbox->messages().size()});
}

TEST_F(CoreThreadTest, DeadlinesPassWithoutEvents) {
  // The settle window ends although no other event comes.
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

// Fails like a log in etcd when another server leads.
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
  // When this is answered, both have been handled.
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

// A node that stops its workers as soon as it gets the order.
class ObedientNode final : public NodeSink {
 public:
  explicit ObedientNode(CoreThread& core) : core_(core) {}
  void set_stream(StreamId stream) { stream_ = stream; }
  Inbox& inbox() { return inbox_; }

  void Send(v1::ServerMessage message) override {
    const bool stops = message.has_stop();
    inbox_.Send(std::move(message));
    if (!stops) return;
    v1::NodeMessage stopped = GenerationMessageForTest("node0");
    stopped.mutable_node_stopped();
    EXPECT_OK(core_.Post(stream_, stopped));
  }
  void Close(const absl::Status& status) override { inbox_.Close(status); }

 private:
  CoreThread& core_;
  StreamId stream_;
  Inbox inbox_;
};

// The deadline of the stop order has long passed when it is saved at last.
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
  v1::NodeMessage exited = GenerationMessageForTest("node0");
  exited.mutable_worker_exited()->mutable_exit()->set_exit_code(1);
  exited.mutable_worker_exited()->set_cause(v1::CRASH);
  ASSERT_OK(core_->Post(stream, exited));
  {
    const absl::MutexLock lock(&room_->mutex);
    const auto tried = [&] { return room_->refused >= 3; };
    ASSERT_TRUE(room_->mutex.AwaitWithTimeout(absl::Condition(&tried), kPatience));
    room_->is_there = true;
  }
  // A node that was given up would not get the end.
  EXPECT_TRUE(node->inbox().Await(v1::ServerMessage::kFinished));
}

// Fault (state): A node renews its lease while the server cannot save -> The lease is renewed
TEST_F(CoreThreadTest, ALeaseIsRenewedWhileItCannotSave) {
  UseDisk();
  const auto node = AddNode("node0", 1, 1);
  ASSERT_TRUE(node->Await(v1::ServerMessage::kAssign));
  FillDisk();
  ASSERT_THAT(core_->Cancel("job", "", 0), StatusIs(absl::StatusCode::kResourceExhausted));
  v1::NodeMessage renew = GenerationMessageForTest("node0");
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
  *joined.mutable_agent()->mutable_joined()->mutable_version() = rpc::ThisVersion();
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

// --- events that their poster handles ---

// Records on which thread the core sends to a node.
class Listener final : public NodeSink {
 public:
  void Send(v1::ServerMessage message) override {
    const absl::MutexLock lock(&mutex_);
    if (message.has_assign()) assigned_ = true;
    if (message.has_renewed()) {
      renewed_on_ = std::this_thread::get_id();
      ++renewals_;
    }
    if (message.has_store()) ++answers_[message.store().code()];
  }
  void Close(const absl::Status&) override {}

  bool AwaitAssign() {
    const absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&assigned_), kPatience);
  }
  std::thread::id renewed_on() {
    const absl::MutexLock lock(&mutex_);
    return renewed_on_;
  }
  // Waits for this many answered renewals; false if they do not come in time.
  bool AwaitRenewals(int count) {
    const absl::MutexLock lock(&mutex_);
    const auto come = [&] { return renewals_ >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&come), kPatience);
  }
  // Waits for this many answers with this code; false if they do not come in time.
  bool AwaitAnswers(absl::StatusCode code, int count) {
    const absl::MutexLock lock(&mutex_);
    const auto come = [&] { return answers_[static_cast<int>(code)] >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&come), kPatience);
  }
  int answers() {
    const absl::MutexLock lock(&mutex_);
    int all = 0;
    for (const auto& [code, count] : answers_) all += count;
    return all;
  }

 private:
  absl::Mutex mutex_;
  bool assigned_ = false;
  std::thread::id renewed_on_;
  int renewals_ = 0;
  std::map<int, int> answers_;  // the number of answers by code
};

v1::NodeMessage RenewForTest() {
  v1::NodeMessage renew = GenerationMessageForTest("node0");
  renew.mutable_renew()->set_number(1);
  return renew;
}

v1::NodeMessage AskForTest(v1::StoreRequest request) {
  v1::NodeMessage message = GenerationMessageForTest("node0");
  *message.mutable_store() = std::move(request);
  return message;
}

class CoreThreadPosterTest : public ::testing::Test {
 protected:
  // Starts a running job of one node.
  void Start(log::OpenedLog log = {}) {
    core_ = std::make_unique<CoreThread>(NewCoreConfig(), nullptr, std::move(log));
    stream_ = core_->OpenStream(listener_);
    ASSERT_OK(core_->Post(stream_, JoinForTest("node0", 1, 1)));
    ASSERT_TRUE(listener_->AwaitAssign());
  }

  const std::shared_ptr<Listener> listener_ = std::make_shared<Listener>();
  std::unique_ptr<CoreThread> core_;
  StreamId stream_;
};

TEST_F(CoreThreadPosterTest, WhoPostsHandlesItWhenTheThreadHasNothingToDo) {
  Start();
  // The thread becomes idle at some time. Each answer is awaited, because on a busy machine the
  // thread may leave more in the queue than fits.
  const MonoTime until = MonoNow() + kPatience;
  for (int i = 1; listener_->renewed_on() != std::this_thread::get_id() && MonoNow() < until; ++i) {
    ASSERT_OK(core_->Post(stream_, RenewForTest()));
    ASSERT_TRUE(listener_->AwaitRenewals(i));
  }
  EXPECT_EQ(listener_->renewed_on(), std::this_thread::get_id());
}

TEST_F(CoreThreadPosterTest, TheThreadLearnsOfDeadlinesThatOthersMake) {
  Start();
  // The thread wakes every 1.7 s for the node's lease, which is too late for all of them.
  for (int i = 1; i <= 40; ++i) {
    v1::StoreRequest get = GetForTest("absent", static_cast<uint64_t>(i));
    get.set_wait_ms(1);
    ASSERT_OK(core_->Post(stream_, AskForTest(get)));
    ASSERT_TRUE(listener_->AwaitAnswers(absl::StatusCode::kDeadlineExceeded, i));
  }
}

TEST_F(CoreThreadPosterTest, ManyWhoPostAtOnceAreHandledOneAfterTheOther) {
  constexpr int kThreads = 4, kEach = 500;
  Start();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        v1::StoreRequest add = GetForTest("", static_cast<uint64_t>(t * kEach + i + 1));
        add.mutable_add()->set_key("sum");
        add.mutable_add()->set_delta(1);
        if (i % 2 == 0) {
          EXPECT_OK(core_->Post(stream_, AskForTest(add)));
        } else {
          core_->CallStore(add, [](const v1::StoreReply& reply) { EXPECT_EQ(reply.code(), 0); });
        }
        if (i % 50 == 0) {
          EXPECT_OK(core_->AllStatuses());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(listener_->AwaitAnswers(absl::StatusCode::kOk, kThreads * kEach / 2));
  absl::Notification answered;
  v1::StoreReply sum;
  core_->CallStore(GetForTest("sum", kThreads * kEach + 1), [&](const v1::StoreReply& reply) {
    sum = reply;
    answered.Notify();
  });
  ASSERT_TRUE(answered.WaitForNotificationWithTimeout(kPatience));
  EXPECT_EQ(sum.value(), std::to_string(kThreads * kEach));
}

// A disk that blocks while the test holds it.
class SlowLog final : public log::RecordLog {
 public:
  struct Disk {
    absl::Mutex mutex;
    bool held = false;
    bool waits = false;
    std::set<std::thread::id> used_by;
  };
  explicit SlowLog(std::shared_ptr<Disk> disk) : disk_(std::move(disk)) {}

  uint64_t server_id() const override { return 1; }
  absl::Status Append(const log::RecordRows&) override {
    const absl::MutexLock lock(&disk_->mutex);
    disk_->used_by.insert(std::this_thread::get_id());
    disk_->waits = disk_->held;
    const auto free = [&] { return !disk_->held; };
    EXPECT_TRUE(disk_->mutex.AwaitWithTimeout(absl::Condition(&free), kPatience));
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<Disk> disk_;
};

TEST_F(CoreThreadPosterTest, WhoPostsNeitherSavesNorWaitsForTheDisk) {
  const auto disk = std::make_shared<SlowLog::Disk>();
  log::OpenedLog slow;
  slow.log = std::make_unique<SlowLog>(disk);
  Start(std::move(slow));
  {
    const absl::MutexLock lock(&disk->mutex);
    disk->held = true;
  }
  ASSERT_OK(core_->Post(stream_, AskForTest(SetForTest("k", "v", 1))));
  ASSERT_OK(core_->Post(stream_, AskForTest(GetForTest("k", 2))));
  {
    const absl::MutexLock lock(&disk->mutex);
    ASSERT_TRUE(disk->mutex.AwaitWithTimeout(absl::Condition(&disk->waits), kPatience));
  }
  // The set, and what follows from it, must not be answered before it is saved.
  EXPECT_EQ(listener_->answers(), 0);
  {
    const absl::MutexLock lock(&disk->mutex);
    disk->held = false;
    EXPECT_EQ(disk->used_by.count(std::this_thread::get_id()), 0u);
  }
  EXPECT_TRUE(listener_->AwaitAnswers(absl::StatusCode::kOk, 2));
}

// --- how the core thread saves: while it continues, before messages are sent, in order ---

// A disk that hangs until the test releases it, and what was written to it.
class StandingLog final : public log::RecordLog {
 public:
  struct Disk {
    absl::Mutex mutex;
    bool stands = false;
    absl::Status outcome;
    std::vector<size_t> tried;  // records of each Append
    std::vector<std::string> keys;
  };
  explicit StandingLog(std::shared_ptr<Disk> disk) : disk_(std::move(disk)) {}

  uint64_t server_id() const override { return 1; }
  absl::Status Append(const log::RecordRows& records) override {
    const absl::MutexLock lock(&disk_->mutex);
    disk_->tried.push_back(records.size());
    const auto moves = [this] { return !disk_->stands; };
    EXPECT_TRUE(disk_->mutex.AwaitWithTimeout(absl::Condition(&moves), kPatience));
    if (!disk_->outcome.ok()) return disk_->outcome;
    for (const v1::Record& record : records.Decoded()) {
      if (record.has_key_written()) disk_->keys.push_back(record.key_written().key());
    }
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<Disk> disk_;
};

class CoreThreadSavingTest : public ::testing::Test {
 protected:
  // More than the thread handles before it saves on the other thread, and less than twice as many.
  static constexpr int kSets = kEventsPerCommit + 200;

  CoreThreadSavingTest() {
    log::OpenedLog standing;
    standing.log = std::make_unique<StandingLog>(disk_);
    core_ = std::make_unique<CoreThread>(NewCoreConfig(), nullptr, std::move(standing));
    const StreamId stream = core_->OpenStream(std::make_shared<DiscardingSink>());
    EXPECT_OK(core_->Post(stream, JoinForTest("node0", 1, 1)));
    // The generation has formed, and its records are saved.
    EXPECT_EQ(core_->AllStatuses()->at(0).generation(), 1u);
    const absl::MutexLock lock(&disk_->mutex);
    disk_->stands = true;
    disk_->tried.clear();
  }
  ~CoreThreadSavingTest() override { LetGo(absl::OkStatus()); }

  void CallAll() {
    // They arrive while the thread is busy, so they form one batch.
    absl::Notification entered, all_called, left;
    core_->AskAllStatuses([&](const absl::StatusOr<std::vector<v1::JobStatus>>&) {
      entered.Notify();
      all_called.WaitForNotification();
      left.Notify();
    });
    entered.WaitForNotification();
    for (int i = 0; i < kSets; ++i) {
      core_->CallStore(SetForTest(KeyOf(i), "v", i + 1), [this](const v1::StoreReply& reply) {
        const absl::MutexLock lock(&mutex_);
        replies_.push_back(reply);
      });
    }
    all_called.Notify();
    left.WaitForNotification();
  }
  static std::string KeyOf(int i) { return "k" + std::to_string(i); }
  void AwaitTried(size_t times) {
    const absl::MutexLock lock(&disk_->mutex);
    const auto tried = [&] { return disk_->tried.size() >= times; };
    EXPECT_TRUE(disk_->mutex.AwaitWithTimeout(absl::Condition(&tried), kPatience));
  }
  void LetGo(const absl::Status& outcome) {
    const absl::MutexLock lock(&disk_->mutex);
    disk_->outcome = outcome;
    disk_->stands = false;
  }
  void AwaitReplies() {
    const absl::MutexLock lock(&mutex_);
    const auto all = [&] { return replies_.size() >= kSets; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&all), kPatience));
  }

  const std::shared_ptr<StandingLog::Disk> disk_ = std::make_shared<StandingLog::Disk>();
  absl::Mutex mutex_;
  std::vector<v1::StoreReply> replies_;
  std::unique_ptr<CoreThread> core_;
};

TEST_F(CoreThreadSavingTest, NothingIsAnsweredBeforeItIsSavedAndAllInOrder) {
  CallAll();
  AwaitTried(1);
  {
    const absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(replies_.empty());
  }
  LetGo(absl::OkStatus());
  AwaitReplies();
  {
    const absl::MutexLock lock(&mutex_);
    ASSERT_EQ(replies_.size(), static_cast<size_t>(kSets));
    for (int i = 0; i < kSets; ++i) {
      EXPECT_EQ(replies_[i].request_id(), static_cast<uint64_t>(i + 1));
      EXPECT_EQ(replies_[i].code(), 0);
    }
  }
  const absl::MutexLock lock(&disk_->mutex);
  ASSERT_EQ(disk_->tried.size(), 2u);
  ASSERT_EQ(disk_->keys.size(), static_cast<size_t>(kSets));
  for (int i = 0; i < kSets; ++i) EXPECT_EQ(disk_->keys[i], KeyOf(i));
}

// Fault (state): A batch cannot be saved, and calls of the next one wait for their answers -> The
// callers of both are told to try again
TEST_F(CoreThreadSavingTest, WhenABatchCannotBeSavedCallersOfTheNextAreToldToo) {
  CallAll();
  AwaitTried(1);
  LetGo(absl::ResourceExhaustedError("no room"));
  AwaitReplies();
  {
    const absl::MutexLock lock(&mutex_);
    for (const v1::StoreReply& reply : replies_) {
      EXPECT_NE(reply.code(), 0) << "request " << reply.request_id();
    }
  }
  // Both batches are saved in order as soon as there is room.
  LetGo(absl::OkStatus());
  const auto saved = [&] { return disk_->keys.size() >= kSets; };
  const absl::MutexLock lock(&disk_->mutex);
  EXPECT_TRUE(disk_->mutex.AwaitWithTimeout(absl::Condition(&saved), kPatience));
  for (int i = 0; i < kSets; ++i) EXPECT_EQ(disk_->keys[i], KeyOf(i));
}

TEST_F(CoreThreadSavingTest, WhatItHasIsSavedBeforeItEnds) {
  CallAll();
  AwaitTried(1);
  LetGo(absl::OkStatus());
  core_ = nullptr;
  AwaitReplies();
  const absl::MutexLock lock(&disk_->mutex);
  EXPECT_EQ(disk_->keys.size(), static_cast<size_t>(kSets));
}

// The list of jobs is cached for longer than a test takes, as if it were very long.
class KeptListTest : public ::testing::Test {
 protected:
  void Submit(const std::string& job) {
    v1::JobSpec spec = JoinForTest("", 1, 1).join().spec();
    spec.set_name(job);
    EXPECT_OK(host_.Submit({spec, "ann", ""}, nullptr));
  }
  void Join(const std::string& node) {
    host_.Handle(NodeMessageReceived{registry_.OpenStream(std::make_shared<DiscardingSink>()),
                                     JoinForTest(node, 2, 2)});
    host_.CommitAll();
  }
  std::shared_ptr<const v1::JobStatus> Listed(const std::string& name) {
    for (const auto& job : *host_.AllStatuses()) {
      if (job->name() == name) return job;
    }
    return nullptr;
  }

  StreamRegistry registry_;
  CoreHost host_{CoreConfig(), nullptr, {}, registry_, {absl::ZeroDuration(), 100000000}};
};

// Fault (state): The server is killed before it has written jobs that ended -> They are handed
// over again when it starts, from its state
TEST(CoreHostAccounting, JobsThatEndAreHandedOverAndAgainAtTheStart) {
  std::vector<v1::AccountedJob> ended, at_start;
  const auto account = [&](std::vector<v1::AccountedJob> jobs, bool starts) {
    for (v1::AccountedJob& job : jobs) (starts ? at_start : ended).push_back(std::move(job));
  };
  StreamRegistry registry;
  CoreHost host(CoreConfig(), nullptr, {}, registry, {}, account);
  v1::JobSpec spec = JoinForTest("", 1, 1).join().spec();
  spec.set_name("a");
  EXPECT_OK(host.Submit({spec, "ann", ""}, nullptr));
  EXPECT_TRUE(ended.empty());
  EXPECT_OK(host.Cancel({"a", "enough", 0}, nullptr));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].user(), "ann");
  EXPECT_EQ(ended[0].phase(), v1::CANCELLED_PHASE);
  EXPECT_EQ(ended[0].server_id(), CoreConfig().server_id);
  EXPECT_TRUE(at_start.empty());
  log::OpenedLog durable;
  durable.records = host.core().Snapshot();
  const CoreHost again(CoreConfig(), nullptr, std::move(durable), registry, {}, account);
  ASSERT_EQ(at_start.size(), 1u);
  EXPECT_EQ(at_start[0].SerializeAsString(), ended[0].SerializeAsString());
}

TEST_F(KeptListTest, ItIsNotMadeAgainForEachCaller) {
  Submit("a");
  Submit("b");
  const CoreHost::JobList list = host_.AllStatuses();
  EXPECT_EQ(list->size(), 2u);
  EXPECT_EQ(host_.AllStatuses(), list);
  Submit("c");
  EXPECT_EQ(Listed("a"), list->front()) << "only what has changed is made again";
}

TEST_F(KeptListTest, ItHasWhatCallersWereAnswered) {
  EXPECT_EQ(Listed("a"), nullptr);
  Submit("a");
  ASSERT_NE(Listed("a"), nullptr);
  EXPECT_EQ(Listed("a")->phase(), v1::QUEUED);
  EXPECT_OK(host_.Cancel({"a", "enough", 0}, nullptr));
  EXPECT_EQ(Listed("a")->phase(), v1::CANCELLED_PHASE);
}

// A launcher learns from its stream that the job has begun, and its user may then ask for the list.
TEST_F(KeptListTest, ItHasWhatNodesWereTold) {
  EXPECT_EQ(Listed("job"), nullptr);
  Join("node0");
  ASSERT_NE(Listed("job"), nullptr);
  EXPECT_EQ(Listed("job")->phase(), v1::GATHERING);
  Join("node1");
  EXPECT_EQ(Listed("job")->phase(), v1::RUNNING);
  EXPECT_EQ(Listed("job")->generation(), 1u);
}

// Values without a record, such as progress, change too, so a job whose status was returned is
// listed again.
TEST_F(KeptListTest, ItIsNoOlderThanTheStatusOfTheJob) {
  Join("node0");
  const std::shared_ptr<const v1::JobStatus> before = Listed("job");
  const absl::StatusOr<v1::JobStatus> status = host_.Status("job");
  ASSERT_OK(status);
  EXPECT_NE(Listed("job"), before);
  EXPECT_FALSE(host_.Status("other").ok());
  EXPECT_EQ(host_.AllStatuses()->size(), 1u);
}

class Closed final : public NodeSink {
 public:
  void Send(v1::ServerMessage) override {}
  void Close(const absl::Status& status) override { with.push_back(status); }

  std::vector<absl::Status> with;
};

class ConnectionsTest : public ::testing::Test {
 protected:
  CallId Call(uint64_t request_id) {
    v1::StoreRequest request;
    request.set_client(7);
    request.set_request_id(request_id);
    return registry_.AddCall(request,
                             [this](const v1::StoreReply& reply) { replies_.push_back(reply); });
  }
  bool IsOpen(StreamId stream) {
    bool open = false;
    registry_.IfOpen(stream, [&] { open = true; });
    return open;
  }

  std::vector<v1::StoreReply> replies_;
  const std::shared_ptr<Closed> sink_ = std::make_shared<Closed>();
  StreamRegistry registry_;
};

TEST_F(ConnectionsTest, AStreamIsOpenUntilItIsTaken) {
  const StreamId stream = registry_.OpenStream(sink_);
  EXPECT_TRUE(IsOpen(stream));
  EXPECT_EQ(registry_.Find(stream), sink_);
  EXPECT_EQ(registry_.streams(), 1u);
  bool then = false;
  EXPECT_EQ(registry_.Take(stream, [&] { then = true; }), sink_);
  EXPECT_TRUE(then);
  EXPECT_FALSE(IsOpen(stream));
  EXPECT_EQ(registry_.Find(stream), nullptr);
  EXPECT_EQ(registry_.Take(stream), nullptr);
  EXPECT_FALSE(registry_.OpenStream(sink_) == stream) << "numbers are not used again";
  EXPECT_TRUE(sink_->with.empty());
}

TEST_F(ConnectionsTest, ACallIsTakenOnce) {
  const CallId call = Call(1);
  EXPECT_EQ(registry_.calls(), 1u);
  const StreamRegistry::CallDone done = registry_.TakeCall(call);
  ASSERT_NE(done, nullptr);
  EXPECT_EQ(registry_.TakeCall(call), nullptr);
  EXPECT_EQ(registry_.calls(), 0u);
  EXPECT_TRUE(replies_.empty());
}

TEST_F(ConnectionsTest, AtTheEndAllAreTold_AndWhoComesLater) {
  const absl::Status why = absl::UnavailableError("another server leads");
  registry_.OpenStream(sink_);
  Call(1);
  EXPECT_FALSE(registry_.ended().has_value());
  registry_.EndAll(why);
  EXPECT_EQ(registry_.ended(), why);
  EXPECT_FALSE(IsOpen(registry_.OpenStream(sink_)));
  Call(2);
  EXPECT_EQ(sink_->with, std::vector<absl::Status>(2, why));
  ASSERT_EQ(replies_.size(), 2u);
  for (uint64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(replies_[i].request_id(), i + 1);
    EXPECT_EQ(replies_[i].client(), 7u);
    EXPECT_EQ(replies_[i].code(), static_cast<int>(absl::StatusCode::kUnavailable));
  }
}

// --- jobs that are submitted while the server may be unable to save, and repeated ---

class SubmissionTest : public ::testing::Test {
 protected:
  SubmissionTest() {
    log::OpenedLog full;
    full.log = std::make_unique<FullDiskLog>(room_);
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

  const std::shared_ptr<FullDiskLog::Room> room_ = std::make_shared<FullDiskLog::Room>();
  std::unique_ptr<CoreThread> core_;
};

// Fault (access): A user repeats another user's submission, whose number became known -> It is
// refused, and tells nothing of the job
TEST_F(SubmissionTest, ARepeatedSubmissionIsAnsweredToTheOwnerAlone) {
  SetRoom(true);
  const auto none_of_anns = [](absl::string_view owner) {
    return owner == "ann" ? absl::PermissionDeniedError("it is ann's") : absl::OkStatus();
  };
  ASSERT_OK(Submit("job", "1"));
  EXPECT_OK(Submit("job", "1"));
  EXPECT_THAT(Submit("job", "1", none_of_anns), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_EQ(core_->AllStatuses()->size(), 1u);
}

TEST_F(SubmissionTest, JobsMayHaveOneName_AndANumberOfTheSubmissionIsNotNeeded) {
  SetRoom(true);
  ASSERT_OK(Submit("job", ""));
  ASSERT_OK(Submit("job", ""));
  EXPECT_EQ(core_->Status("1")->name(), "job");
  EXPECT_EQ(core_->Status("2")->name(), "job-2");
  EXPECT_EQ(core_->Status("job")->submission(), 2u);
}

// Fault (queue): A job is submitted while the server cannot save, or its answer is lost -> The
// error says that the job may have been accepted
TEST_F(SubmissionTest, AJobThatMayHaveBeenTakenIsSaidToBe_AndTheNextIsNotTaken) {
  SetRoom(false);
  EXPECT_THAT(Submit("first", "1"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("job first may have been accepted: no room")));
  EXPECT_THAT(Submit("second", "2"), StatusIs(absl::StatusCode::kResourceExhausted,
                                              HasSubstr("job second was not accepted: no room")));
  // The same again: it is still not known.
  EXPECT_THAT(Submit("first", "1"), StatusIs(absl::StatusCode::kResourceExhausted,
                                             HasSubstr("job first may have been accepted")));
  SetRoom(true);
  AwaitSaved();
  EXPECT_OK(core_->Status("first"));
  EXPECT_THAT(core_->Status("second"), StatusIs(absl::StatusCode::kNotFound));
}

// Fault (queue): A submission that may have been accepted is repeated -> It makes no second job
TEST_F(SubmissionTest, TheSameSubmissionAgainMakesNoSecondJob) {
  EXPECT_OK(Submit("job", "1"));
  EXPECT_OK(Submit("job", "1"));
  EXPECT_OK(core_->Cancel("job", "enough", 0));
  EXPECT_OK(Submit("job", "1"));
  EXPECT_EQ(core_->Status("job")->phase(), v1::CANCELLED_PHASE);
  EXPECT_OK(Submit("job", "2"));
  EXPECT_EQ(core_->Status("job")->phase(), v1::QUEUED);
}

}  // namespace

}  // namespace cadre::host
