#include "worker_runtime/store/mpi_worker.h"

#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::store {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

// Each rank is a thread of this process; what they share is as between processes.
class MpiWorkerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char home[] = "/tmp/mpi_worker_XXXXXX";
    ASSERT_NE(mkdtemp(home), nullptr);
    home_ = home;
    setenv("HOME", home, 1);
    setenv("XDG_RUNTIME_DIR", home, 1);
    options_.connect_timeout = kLong;
    options_.farewell_timeout = kLong;
  }
  void TearDown() override { std::filesystem::remove_all(home_); }

  static environment::MpiEnvironment Rank(int rank, int world_size, int per_node) {
    environment::MpiEnvironment mpi;
    mpi.launch = "mpi-1";
    mpi.rank = rank;
    mpi.world_size = world_size;
    mpi.local_rank = rank % per_node;
    mpi.local_world_size = per_node;
    return mpi;
  }

  void Run(int world_size, int per_node, const std::function<void(Worker&)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_size; ++rank) {
      threads.emplace_back([&, rank] {
        auto worker = ConnectUnderMpi(Rank(rank, world_size, per_node), options_);
        ASSERT_OK(worker);
        body(**worker);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::string> FilesIn(const std::string& directory) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      files.push_back(entry.path());
    }
    return files;
  }

  std::string home_;
  MpiWorkerOptions options_;
};

TEST_F(MpiWorkerTest, OneNode_AllOperations) {
  Run(3, 3, [](Worker& worker) {
    EXPECT_EQ(worker.place().nodes, 1);
    EXPECT_EQ(worker.place().generation, 1u);
    EXPECT_EQ(worker.place().address, "127.0.0.1");
    EXPECT_FALSE(worker.in_place());
    const int next = (worker.rank() + 1) % 3;
    EXPECT_OK(worker.Set(absl::StrCat("mark/", worker.rank()), absl::StrCat(worker.rank())));
    EXPECT_EQ(*worker.Get(absl::StrCat("mark/", next), kLong), absl::StrCat(next));
    EXPECT_OK(worker.Add("count", 1));
    EXPECT_OK(worker.Barrier("counted", kLong));
    EXPECT_EQ(*worker.Add("count", 0), 3);
    if (worker.rank() == 2) {
      EXPECT_OK(worker.PublishCommunicatorId("world", "id"));
    }
    EXPECT_EQ(*worker.CommunicatorId("world", kLong), "id");
    EXPECT_OK(worker.Barrier("read", kLong));
    EXPECT_OK(worker.Delete(absl::StrCat("mark/", worker.rank())));
    EXPECT_THAT(worker.Get(absl::StrCat("mark/", worker.rank()), std::chrono::nanoseconds(0)),
                StatusIs(StatusCode::kNotFound));
    worker.ReportProgress(1, 1, 1);
  });
}

TEST_F(MpiWorkerTest, SeveralNodes_MeetInTheHomeAndLeaveNothingThere) {
  Run(4, 2, [](Worker& worker) {
    EXPECT_EQ(worker.place().nodes, 2);
    EXPECT_EQ(worker.place().node_rank, worker.rank() / 2);
    EXPECT_EQ(worker.place().local_rank, worker.rank() % 2);
  });
  EXPECT_THAT(FilesIn(home_ + "/.cadre"), ::testing::IsEmpty());
}

TEST_F(MpiWorkerTest, OneRankAlone) {
  Run(1, 1, [](Worker& worker) { EXPECT_OK(worker.Barrier("alone", kLong)); });
}

TEST_F(MpiWorkerTest, WhatAnEarlierRunLeftIsPassedOver) {
  ASSERT_OK(ConnectUnderMpi(Rank(0, 1, 1), options_));
  const std::string directory = FilesIn(home_).at(0);
  ASSERT_OK(WriteTokenFile(directory + "/mpi-1", "127.0.0.1:1 0123456789abcdef"));
  Run(2, 2, [](Worker& worker) { EXPECT_OK(worker.Barrier("here", kLong)); });
  EXPECT_THAT(FilesIn(directory), ::testing::IsEmpty());
}

TEST_F(MpiWorkerTest, WhoIsMissingIsNamed) {
  options_ = {std::chrono::milliseconds(300), std::chrono::nanoseconds(0)};
  EXPECT_THAT(ConnectUnderMpi(Rank(0, 2, 2), options_),
              StatusIs(StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 1 of 2 has not called Worker::Connect() within 300ms")));
  EXPECT_THAT(ConnectUnderMpi(Rank(1, 2, 2), options_),
              StatusIs(StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 1 did not find rank 0 within 300ms")));
  EXPECT_THAT(ConnectUnderMpi(Rank(1, 2, 1), options_),
              StatusIs(StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("not shared"), HasSubstr("cadre run"))));
}

TEST_F(MpiWorkerTest, RanksThatAreSpreadAreRefused) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      environment::MpiEnvironment mpi = Rank(rank, 4, 2);
      mpi.local_rank = rank / 2;
      EXPECT_THAT(ConnectUnderMpi(mpi, options_),
                  StatusIs(StatusCode::kInvalidArgument, HasSubstr("--map-by slot")));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// What rank 0 has written can still be read when it has nothing more to do.
TEST_F(MpiWorkerTest, RankZeroWaitsForTheOthersToEnd) {
  Run(2, 2, [](Worker& worker) {
    if (worker.rank() == 0) {
      EXPECT_OK(worker.Set("result", "42"));
      return;
    }
    for (int i = 0; i < 200; ++i) ASSERT_EQ(*worker.Get("result", kLong), "42");
  });
}

TEST_F(MpiWorkerTest, NoHome) {
  setenv("HOME", "", 1);
  EXPECT_THAT(
      ConnectUnderMpi(Rank(0, 4, 2), options_),
      StatusIs(StatusCode::kFailedPrecondition, AllOf(HasSubstr("HOME"), HasSubstr("cadre run"))));
}

}  // namespace
}  // namespace cadre::store
