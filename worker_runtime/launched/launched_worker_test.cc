#include "worker_runtime/launched/launched_worker.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/scoped_fd.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/environment/read_launch.h"
#include "worker_runtime/sockets/tcp_socket.h"

namespace cadre::launched {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

// Each rank is a thread of this process, and shares only what processes share.
class LaunchedWorkerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char home[] = "/tmp/mpi_worker_XXXXXX";
    ASSERT_NE(mkdtemp(home), nullptr);
    home_ = home;
    setenv("HOME", home, 1);
    setenv("XDG_RUNTIME_DIR", home, 1);
    options_.connect_timeout = kLong;
    options_.others_exit_timeout = kLong;
  }
  void TearDown() override { std::filesystem::remove_all(home_); }

  // A launch by mpirun.
  static environment::Launch Rank(int rank, int world_size, int per_node) {
    environment::Launch launch;
    launch.launcher = "mpirun";
    launch.name = "mpi-1";
    launch.rank = rank;
    launch.world_size = world_size;
    launch.local_rank = rank % per_node;
    launch.local_world_size = per_node;
    launch.one_node = per_node == world_size;
    launch.meeting = environment::ThroughFile{"mpi-1"};
    return launch;
  }
  // A launch for which only an address is known.
  static environment::Launch At(uint16_t port, int rank, int world_size) {
    environment::Launch launch;
    launch.launcher = "the environment";
    launch.name = "here";
    launch.rank = rank;
    launch.world_size = world_size;
    launch.meeting = environment::AtAddress{"127.0.0.1", port};
    return launch;
  }
  static uint16_t FreePort() {
    const auto listener = sockets::Listen("127.0.0.1");
    EXPECT_OK(listener);
    const std::string endpoint = sockets::EndpointOf(*listener);
    return static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.find(':') + 1)));
  }
  environment::GetVariable Get() {
    return [this](const char* name) -> const char* {
      return secret_file_.empty() || std::string(name) != "CADRE_SECRET_FILE"
                 ? nullptr
                 : secret_file_.c_str();
    };
  }
  Result<std::unique_ptr<Worker>> Connect(const environment::Launch& launch) {
    return launched::Connect(launch, Get(), options_);
  }

  void RunAll(const std::vector<environment::Launch>& launches,
              const std::function<void(Worker&)>& body) {
    std::vector<std::thread> threads;
    for (const environment::Launch& launch : launches) {
      threads.emplace_back([&] {
        auto worker = Connect(launch);
        ASSERT_OK(worker);
        body(**worker);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void Run(int world_size, int per_node, const std::function<void(Worker&)>& body) {
    std::vector<environment::Launch> launches;
    for (int rank = 0; rank < world_size; ++rank) {
      launches.push_back(Rank(rank, world_size, per_node));
    }
    RunAll(launches, body);
  }

  std::vector<std::string> FilesIn(const std::string& directory) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      files.push_back(entry.path());
    }
    return files;
  }

  std::string home_;
  std::string secret_file_;
  Options options_;
};

TEST_F(LaunchedWorkerTest, OneNode_AllOperations) {
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

TEST_F(LaunchedWorkerTest, SeveralNodes_MeetInTheHomeAndLeaveNothingThere) {
  Run(4, 2, [](Worker& worker) {
    EXPECT_EQ(worker.place().nodes, 2);
    EXPECT_EQ(worker.place().node_rank, worker.rank() / 2);
    EXPECT_EQ(worker.place().local_rank, worker.rank() % 2);
  });
  EXPECT_THAT(FilesIn(home_ + "/.cadre"), ::testing::IsEmpty());
}

TEST_F(LaunchedWorkerTest, OneRankAlone) {
  Run(1, 1, [](Worker& worker) { EXPECT_OK(worker.Barrier("alone", kLong)); });
}

TEST_F(LaunchedWorkerTest, WhatAnEarlierRunLeftIsPassedOver) {
  ASSERT_OK(Connect(Rank(0, 1, 1)));
  const std::string directory = FilesIn(home_).at(0);
  ASSERT_OK(WriteTokenFile(directory + "/mpi-1", "127.0.0.1:1 0123456789abcdef"));
  Run(2, 2, [](Worker& worker) { EXPECT_OK(worker.Barrier("here", kLong)); });
  EXPECT_THAT(FilesIn(directory), ::testing::IsEmpty());
}

TEST_F(LaunchedWorkerTest, WhoIsMissingIsNamed) {
  options_ = {std::chrono::milliseconds(300), std::chrono::nanoseconds(0)};
  EXPECT_THAT(Connect(Rank(0, 2, 2)),
              StatusIs(StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 1 of 2 has not called Worker::Connect() within 300ms")));
  EXPECT_THAT(Connect(Rank(1, 2, 2)),
              StatusIs(StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 1 did not find rank 0 within 300ms")));
  EXPECT_THAT(Connect(Rank(1, 2, 1)),
              StatusIs(StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("not shared"), HasSubstr("cadre run"))));
}

TEST_F(LaunchedWorkerTest, RanksThatAreSpreadAreRefused) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      environment::Launch mpi = Rank(rank, 4, 2);
      mpi.local_rank = rank / 2;
      EXPECT_THAT(Connect(mpi), StatusIs(StatusCode::kInvalidArgument, HasSubstr("--map-by slot")));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Values that rank 0 has set can still be read when it has finished.
TEST_F(LaunchedWorkerTest, RankZeroWaitsForTheOthersToEnd) {
  Run(2, 2, [](Worker& worker) {
    if (worker.rank() == 0) {
      EXPECT_OK(worker.Set("result", "42"));
      return;
    }
    for (int i = 0; i < 200; ++i) ASSERT_EQ(*worker.Get("result", kLong), "42");
  });
}

TEST_F(LaunchedWorkerTest, NoHome) {
  setenv("HOME", "no/path", 1);
  EXPECT_THAT(Connect(Rank(0, 4, 2)), StatusIs(StatusCode::kFailedPrecondition,
                                               AllOf(HasSubstr("HOME"), HasSubstr("cadre run"))));
}

TEST_F(LaunchedWorkerTest, AnAddressIsEnough_NodesAreTheMachines) {
  const uint16_t port = FreePort();
  RunAll({At(port, 0, 3), At(port, 1, 3), At(port, 2, 3)}, [](Worker& worker) {
    const WorkerPlace& place = worker.place();
    EXPECT_EQ(place.local_rank, place.rank);
    EXPECT_EQ(place.local_world_size, 3);
    EXPECT_EQ(place.nodes, 1);
    EXPECT_EQ(place.address, "127.0.0.1");
    EXPECT_FALSE(worker.in_place());
    EXPECT_OK(worker.Barrier("here", kLong));
  });
}

TEST_F(LaunchedWorkerTest, ARankAloneTakesNoPort) {
  const auto taken = sockets::Listen("127.0.0.1");
  ASSERT_OK(taken);
  const std::string endpoint = sockets::EndpointOf(*taken);
  const int port = std::stoi(endpoint.substr(endpoint.find(':') + 1));
  RunAll({At(static_cast<uint16_t>(port), 0, 1)},
         [](Worker& worker) { EXPECT_OK(worker.Set("key", "value")); });
}

// Fault (store): Under another launcher a rank has a different secret -> It gets an error that says
// so at once
TEST_F(LaunchedWorkerTest, AnotherSecretIsSaidAtOnce) {
  options_.connect_timeout = std::chrono::seconds(2);
  const uint16_t port = FreePort();
  std::thread first([&] {
    EXPECT_THAT(
        Connect(At(port, 0, 2)),
        StatusIs(StatusCode::kDeadlineExceeded,
                 AllOf(HasSubstr("rank 1 of 2"),
                       HasSubstr("a process that says it is rank 1 did not prove that it knows"))));
  });
  const std::string file = home_ + "/secret";
  EXPECT_OK(WriteTokenFile(file, "0123456789abcdef"));
  const environment::GetVariable get = [&](const char*) { return file.c_str(); };
  EXPECT_THAT(launched::Connect(At(port, 1, 2), get, options_),
              StatusIs(StatusCode::kPermissionDenied, HasSubstr("CADRE_SECRET_FILE")));
  first.join();
}

// Fault (store): Under another launcher two processes have the same rank, or ranks disagree about
// the world size -> Once all have connected, each gets an error that says what contradicts what
TEST_F(LaunchedWorkerTest, TwoOfOneRankAndRanksThatDisagreeAreNamed) {
  // No rank may wait for one that is gone, which would take kLong.
  const uint16_t port = FreePort();
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    EXPECT_THAT(Connect(At(port, 0, 2)),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("rank 1 that there are 3")));
  });
  threads.emplace_back(
      [&] { EXPECT_THAT(Connect(At(port, 1, 3)), StatusIs(StatusCode::kInvalidArgument)); });
  for (std::thread& thread : threads) thread.join();

  const uint16_t other = FreePort();
  RunAll({At(other, 0, 2), At(other, 1, 2)}, [&](Worker& worker) {
    if (worker.rank() == 1) {
      EXPECT_THAT(Connect(At(other, 1, 2)),
                  StatusIs(StatusCode::kFailedPrecondition,
                           HasSubstr("rank 1 of here has called Worker::Connect() before")));
    }
    EXPECT_OK(worker.Barrier("asked", kLong));
  });
}

TEST_F(LaunchedWorkerTest, WhoWaitsSaysForWhom) {
  options_.connect_timeout = std::chrono::milliseconds(200);
  options_.first_notice_after = std::chrono::milliseconds(1);
  const uint16_t port = FreePort();
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(Connect(At(port, 0, 2)),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("rank 1 of 2 has not called")));
  EXPECT_THAT(Connect(At(port, 1, 2)),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("rank 1 did not find rank 0")));
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr(absl::StrCat("cadre: rank 0 waits at 127.0.0.1:", port, " for rank 1 of 2")),
            HasSubstr("cadre: rank 1 of 2 is still waiting for rank 0")));
}

// Fault (store): Under another launcher rank 0 can open no more descriptors -> Its message about
// the ranks that it waits for says so, and which ranks it could not accept
TEST_F(LaunchedWorkerTest, RankZeroSaysThatItHasNoDescriptorsForTheOthers) {
  options_.connect_timeout = std::chrono::seconds(2);
  options_.first_notice_after = std::chrono::milliseconds(1);
  const uint16_t port = FreePort();
  // Captures standard error: once rank 0 waits for others it has all descriptors that it needs.
  int said[2];
  ASSERT_EQ(pipe(said), 0);
  const ScopedFd read_end(said[0]), write_end(said[1]), before(dup(STDERR_FILENO));
  const ScopedFd comes(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  dup2(write_end.get(), STDERR_FILENO);
  std::thread rank([&] {
    EXPECT_THAT(Connect(At(port, 0, 2)),
                StatusIs(StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr("rank 1 of 2 has not called"), HasSubstr("ulimit -n"))));
  });
  char text[64];
  EXPECT_GT(read(read_end.get(), text, sizeof(text)), 0);
  dup2(before.get(), STDERR_FILENO);
  rlimit limit = {};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  // poll() accepts no more descriptors than the limit.
  const rlimit none = {3, limit.rlim_max};
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(comes.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
  rank.join();
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST_F(LaunchedWorkerTest, WithTheSharedSecretRanksMayBeAnywhere) {
  secret_file_ = home_ + "/secret";
  ASSERT_OK(WriteTokenFile(secret_file_, "0123456789abcdef"));
  const uint16_t port = FreePort();
  std::vector<environment::Launch> launches = {At(port, 0, 2), At(port, 1, 2)};
  for (environment::Launch& launch : launches) launch.one_node = false;
  RunAll(launches, [](Worker& worker) { EXPECT_OK(worker.Barrier("here", kLong)); });
}

}  // namespace
}  // namespace cadre::launched
