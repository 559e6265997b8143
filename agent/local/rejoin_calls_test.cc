// The worker runtime's end of a rejoin with the agent's own service in between.
#include <poll.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "agent/local/local_service.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/agent_worker.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Minutes(1);

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
    options.on_request = [](v1::StoreRequest) { return absl::OkStatus(); };
    options.on_event = [this](AgentEvent event) {
      absl::MutexLock lock(&mutex_);
      events_.push_back(std::move(event));
    };
    auto service = LocalService::Open(std::move(options));
    ASSERT_OK(service);
    service_ = *std::move(service);
    service_->BeginGeneration(3, AssignOf(2, 4), /*in_place=*/true);
    acceptor_ = std::thread([this] {
      while (!leaving_) {
        pollfd wait = {service_->fd(), POLLIN, 0};
        if (poll(&wait, 1, 20) > 0) {
          EXPECT_THAT(service_->Accept(), IsOk());
        }
      }
    });
  }
  void TearDown() override {
    leaving_ = true;
    acceptor_.join();
    service_.reset();
    std::filesystem::remove_all(parent_);
  }

  WorkerEnvironment Environment() {
    WorkerEnvironment environment;
    environment.agent_socket = service_->socket_path();
    const auto token = ReadTokenFile(service_->token_path());
    EXPECT_OK(token);
    environment.token = *token;
    return environment;
  }
  std::unique_ptr<Worker> Connect(int rank) {
    WorkerEnvironment environment = Environment();
    environment.generation = 3;
    environment.rank = rank;
    auto worker = ConnectToAgent(environment);
    EXPECT_OK(worker);
    return *std::move(worker);
  }

  bool Await(const std::function<bool()>& condition) {
    const auto holds = [&condition] { return condition(); };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&holds), kLong);
  }
  // Waits until these processes stand by.
  bool AwaitStandby(const std::set<uint64_t>& units) {
    const MonoTime end = MonoNow() + kLong;
    while (service_->StandingBy() != units && MonoNow() < end) poll(nullptr, 0, 1);
    return service_->StandingBy() == units;
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
  std::thread acceptor_;
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
  service_->EndGeneration({1}, "rank 0 died");
  EXPECT_TRUE(Await([&] { return ended; }));
  std::thread agent([&] {
    EXPECT_EQ(AwaitWaits(1), "rank 0 is gone");
    service_->BeginGeneration(4, AssignOf(0, 2), true, {1});
  });
  const auto next = worker->Rejoin("rank 0 is gone", kLong);
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
  service_->EndGeneration({}, "the job has ended");
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
  leaving_ = true;
  acceptor_.join();
  service_.reset();
  waits.join();
  acceptor_ = std::thread([] {});
}

TEST_F(RejoinCallsTest, ProcessesThatStandBy_GetThePlacesTheyAreGiven) {
  WorkerEnvironment environment = Environment();
  environment.standby = 70;
  // The generation in which it was started was asked to save; its own is not.
  environment.checkpoint_file = parent_ + "/checkpoint.3";
  const auto touch = [](const std::string& path) { std::ofstream file(path); };
  touch(environment.checkpoint_file);
  const auto take_place = [&](uint64_t unit, int rank) {
    WorkerEnvironment own = environment;
    own.standby = unit;
    const auto worker = ConnectToAgent(own);
    ASSERT_OK(worker);
    EXPECT_EQ((*worker)->place().generation, 5u);
    EXPECT_EQ((*worker)->rank(), rank);
    EXPECT_TRUE((*worker)->in_place());
    if (rank != 0) return;
    EXPECT_FALSE((*worker)->MoreNodesWait());
    touch(parent_ + "/checkpoint.5");
    EXPECT_TRUE((*worker)->MoreNodesWait());
  };
  std::thread first([&] { take_place(70, 1); }), second([&] { take_place(71, 0); });
  EXPECT_TRUE(AwaitStandby({70, 71}));
  // Nothing that happens to generations without a place for them concerns them.
  service_->EndGeneration({0}, "rank 0 died");
  service_->BeginGeneration(4, AssignOf(0, 2), true);
  EXPECT_TRUE(AwaitStandby({70, 71}));
  EXPECT_THAT(ConnectToAgent(environment), StatusIs(absl::StatusCode::kAborted));
  service_->BeginGeneration(5, AssignOf(0, 2), true, {}, {{70, 1}, {71, 0}});
  first.join();
  second.join();
  EXPECT_TRUE(AwaitStandby({}));
}

TEST_F(RejoinCallsTest, AProcessThatStandsBy_IsToldThatItsAgentLeaves) {
  WorkerEnvironment environment = Environment();
  environment.standby = 70;
  std::thread process(
      [&] { EXPECT_THAT(ConnectToAgent(environment), StatusIs(absl::StatusCode::kUnavailable)); });
  EXPECT_TRUE(AwaitStandby({70}));
  leaving_ = true;
  acceptor_.join();
  service_.reset();
  process.join();
  acceptor_ = std::thread([] {});
}

TEST_F(RejoinCallsTest, AProcessWouldStandBy_WhereWorkersTakePart) {
  EXPECT_FALSE(service_->WouldStandBy());
  const auto worker = Connect(2);
  EXPECT_FALSE(service_->WouldStandBy());
  ASSERT_OK(worker->AnnounceRejoin([] {}));
  AwaitMay(0, true);
  EXPECT_TRUE(service_->WouldStandBy());
  service_->EndGeneration({0}, "over");
  EXPECT_FALSE(service_->WouldStandBy());
  // Without recovery in place all that use the worker runtime do.
  service_->BeginGeneration(3, AssignOf(2, 4));
  EXPECT_FALSE(service_->WouldStandBy());
  Connect(3);
  EXPECT_TRUE(service_->WouldStandBy());
}

TEST_F(RejoinCallsTest, AJobThatDoesNotRecoverInPlace_SaysSo) {
  service_->BeginGeneration(3, AssignOf(2, 4));
  const auto worker = Connect(2);
  EXPECT_FALSE(worker->in_place());
  EXPECT_THAT(worker->AnnounceRejoin([] {}), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(worker->Rejoin("", kLong), StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace cadre
