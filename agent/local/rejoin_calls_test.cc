// The worker runtime's end of a rejoin with the agent's own service in between.
#include <poll.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/local/local_service.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/store/agent_worker.h"

namespace cadre::agent {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

v1::Assign AssignOf(uint32_t first_rank, uint32_t world_size) {
  v1::Assign assign;
  assign.set_nodes(1);
  assign.set_first_rank(first_rank);
  assign.set_local_world_size(2);
  assign.set_world_size(world_size);
  return assign;
}

// Ranks 2 and 3 of 4 live here, in generation 3.
class RejoinCallsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(parent_.data()), nullptr);
    LocalService::Options options;
    options.job = "j";
    options.parent = parent_;
    auto service = LocalService::Open(std::move(options));
    ASSERT_OK(service);
    service_ = *std::move(service);
    service_->BeginGeneration(3, AssignOf(2, 4), /*in_place=*/true);
    loop_ = std::thread([this] {
      while (!leaving_) {
        pollfd wait = {service_->fd(), POLLIN, 0};
        if (poll(&wait, 1, 20) <= 0) continue;
        absl::MutexLock lock(&mutex_);
        for (AgentEvent& event : service_->Read()) events_.push_back(std::move(event));
      }
    });
  }
  void TearDown() override {
    Leave();
    std::filesystem::remove_all(parent_);
  }

  void Leave() {
    leaving_ = true;
    if (loop_.joinable()) loop_.join();
    service_.reset();
  }
  void Begin(uint64_t generation, const v1::Assign& assign, bool in_place = false,
             const std::set<uint32_t>& kept = {}) {
    absl::MutexLock lock(&mutex_);
    service_->BeginGeneration(generation, assign, in_place, kept);
  }
  void End(const std::set<uint32_t>& kept, const std::string& reason) {
    absl::MutexLock lock(&mutex_);
    service_->EndGeneration(kept, reason);
  }
  bool WouldStandBy() {
    absl::MutexLock lock(&mutex_);
    return service_->WouldStandBy();
  }

  environment::WorkerEnvironment Environment() {
    environment::WorkerEnvironment environment;
    environment.agent_socket = service_->socket_path();
    const auto token = ReadTokenFile(service_->token_path());
    EXPECT_OK(token);
    environment.token = *token;
    return environment;
  }
  std::unique_ptr<Worker> Connect(int rank) {
    environment::WorkerEnvironment environment = Environment();
    environment.generation = 3;
    environment.rank = rank;
    auto worker = store::ConnectToAgent(environment);
    EXPECT_OK(worker);
    return *std::move(worker);
  }

  bool Await(const std::function<bool()>& condition) {
    const auto holds = [&condition] { return condition(); };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&holds), absl::FromChrono(kLong));
  }
  // Waits until the worker has said that it can rejoin, or no longer can.
  void AwaitMay(uint32_t local_rank, bool may) {
    EXPECT_TRUE(Await([&] {
      for (const AgentEvent& event : events_) {
        const auto* said = std::get_if<WorkerMayRejoin>(&event);
        if (said != nullptr && said->local_rank == local_rank && said->may == may) return true;
      }
      return false;
    }));
  }
  std::string AwaitWaits(uint32_t local_rank) {
    std::string reason;
    EXPECT_TRUE(Await([&] {
      for (const AgentEvent& event : events_) {
        const auto* waits = std::get_if<WorkerWaits>(&event);
        if (waits == nullptr || waits->local_rank != local_rank) continue;
        EXPECT_EQ(waits->generation, 3u);
        reason = waits->reason;
        return true;
      }
      return false;
    }));
    return reason;
  }

  std::string parent_ = "/tmp/cadre_test_XXXXXX";
  absl::Mutex mutex_;
  std::vector<AgentEvent> events_;
  std::unique_ptr<LocalService> service_;
  std::atomic<bool> leaving_{false};
  std::thread loop_;
};

TEST_F(RejoinCallsTest, AKeptWorkerHearsOfTheEnd_AndGetsItsNextPlace) {
  const auto worker = Connect(3);
  EXPECT_TRUE(worker->in_place());
  bool ended = false;
  ASSERT_OK(worker->AnnounceRejoin([&] {
    absl::MutexLock lock(&mutex_);
    ended = true;
  }));
  AwaitMay(1, true);
  End({1}, "rank 0 died");
  EXPECT_TRUE(Await([&] { return ended; }));
  std::thread agent([&] {
    EXPECT_EQ(AwaitWaits(1), "rank 0 \xef\xbf\xbd is gone");
    Begin(4, AssignOf(0, 2), true, {1});
  });
  const auto next = worker->Rejoin("rank 0 \xff is gone", kLong);
  agent.join();
  ASSERT_OK(next);
  EXPECT_EQ((*next)->place().generation, 4u);
  EXPECT_EQ((*next)->rank(), 1);
  EXPECT_EQ((*next)->world_size(), 2);
  // It can do so again.
  ASSERT_OK((*next)->AnnounceRejoin([] {}));
}

TEST_F(RejoinCallsTest, AWorkerThatIsNotKept_IsTold) {
  const auto worker = Connect(3), early = Connect(2);
  ASSERT_OK(worker->AnnounceRejoin([] {}));
  AwaitMay(1, true);
  std::thread waits([&] {
    EXPECT_THAT(early->Rejoin("", kLong),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("not kept")));
  });
  AwaitWaits(0);
  End({}, "the job has ended");
  waits.join();
  EXPECT_THAT(worker->Rejoin("", kLong),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("not kept")));
}

TEST_F(RejoinCallsTest, AWorkerThatLeaves_CanRejoinNoLonger) {
  auto worker = Connect(2);
  bool ended = false;
  ASSERT_OK(worker->AnnounceRejoin([&] { ended = true; }));
  AwaitMay(0, true);
  worker.reset();
  AwaitMay(0, false);
  EXPECT_FALSE(ended);
}

TEST_F(RejoinCallsTest, TheAgentLeaves_WhoWaitsIsTold) {
  const auto worker = Connect(2);
  std::thread waits(
      [&] { EXPECT_THAT(worker->Rejoin("", kLong), StatusIs(absl::StatusCode::kUnavailable)); });
  AwaitWaits(0);
  Leave();
  waits.join();
}

TEST_F(RejoinCallsTest, AProcessWouldStandBy_WhereWorkersTakePart) {
  EXPECT_FALSE(WouldStandBy());
  const auto worker = Connect(2);
  EXPECT_FALSE(WouldStandBy());
  ASSERT_OK(worker->AnnounceRejoin([] {}));
  AwaitMay(0, true);
  EXPECT_TRUE(WouldStandBy());
  End({0}, "over");
  EXPECT_FALSE(WouldStandBy());
  // Without recovery in place all that use the worker runtime do.
  Begin(3, AssignOf(2, 4));
  EXPECT_FALSE(WouldStandBy());
  Connect(3);
  EXPECT_TRUE(WouldStandBy());
}

TEST_F(RejoinCallsTest, AJobThatDoesNotRecoverInPlace_SaysSo) {
  Begin(3, AssignOf(2, 4));
  const auto worker = Connect(2);
  EXPECT_FALSE(worker->in_place());
  EXPECT_THAT(worker->AnnounceRejoin([] {}), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(worker->Rejoin("", kLong), StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace cadre::agent
