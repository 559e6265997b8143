#include "worker_runtime/sockets/socket_communicator.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "worker_runtime/backend/exit_grace.h"
#include "worker_runtime/sockets/meeting.h"
#include "worker_runtime/testing/in_process_workers.h"
#include "worker_runtime/testing/no_threads.h"

namespace cadre::sockets {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

CommunicatorOptions WithTimeout(std::chrono::nanoseconds timeout) {
  CommunicatorOptions options;
  options.timeout = timeout;
  return options;
}

std::unique_ptr<Communicator> Connect(Worker& worker, std::chrono::nanoseconds timeout = kLong) {
  auto communicator = ConnectSockets(worker, WithTimeout(timeout));
  EXPECT_OK(communicator);
  return communicator.ok() ? *std::move(communicator) : nullptr;
}

template <typename T>
Buffer Of(std::vector<T>& values, DataType type) {
  return {values.data(), values.size(), type};
}
Buffer Of(std::vector<float>& values) { return Of(values, DataType::kFloat32); }

template <typename T>
void ExpectReduces(Communicator& world, DataType type) {
  const T first = static_cast<T>(world.rank() + 1);
  const T last = static_cast<T>(world.size());
  for (const size_t count : {size_t{1}, size_t{5}, size_t{1000}}) {
    std::vector<T> sum(count, first), max(count, first), min(count, first);
    EXPECT_OK(world.AllReduce(Of(sum, type), ReduceOp::kSum)->Wait(kLong));
    EXPECT_OK(world.AllReduce(Of(max, type), ReduceOp::kMax)->Wait(kLong));
    EXPECT_OK(world.AllReduce(Of(min, type), ReduceOp::kMin)->Wait(kLong));
    EXPECT_THAT(sum, Each(static_cast<T>(world.size() * (world.size() + 1) / 2)));
    EXPECT_THAT(max, Each(last));
    EXPECT_THAT(min, Each(T{1}));
  }
}

class SocketWorldTest : public ::testing::TestWithParam<int> {};

TEST_P(SocketWorldTest, AllReduceForEveryType) {
  testing::InProcessWorkers workers(GetParam());
  workers.Run([](Worker& worker) {
    const auto world = Connect(worker);
    EXPECT_EQ(world->rank(), worker.rank());
    EXPECT_EQ(world->size(), worker.world_size());
    ExpectReduces<float>(*world, DataType::kFloat32);
    ExpectReduces<double>(*world, DataType::kFloat64);
    ExpectReduces<int32_t>(*world, DataType::kInt32);
    ExpectReduces<int64_t>(*world, DataType::kInt64);
    ExpectReduces<uint8_t>(*world, DataType::kUint8);
  });
}

TEST_P(SocketWorldTest, AllReduceOfHalves) {
  constexpr uint16_t kHalf[] = {0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600};  // 0 to 6
  testing::InProcessWorkers workers(GetParam());
  workers.Run([&](Worker& worker) {
    const auto world = Connect(worker);
    const int size = world->size();
    std::vector<uint16_t> sum(9, kHalf[world->rank() + 1]);
    std::vector<uint16_t> max = sum;
    EXPECT_OK(world->AllReduce(Of(sum, DataType::kFloat16), ReduceOp::kSum)->Wait(kLong));
    EXPECT_OK(world->AllReduce(Of(max, DataType::kFloat16), ReduceOp::kMax)->Wait(kLong));
    EXPECT_THAT(sum, Each(kHalf[size * (size + 1) / 2]));
    EXPECT_THAT(max, Each(kHalf[size]));
  });
}

TEST_P(SocketWorldTest, AllReduceOfSeveralSegmentsIsTheSameEverywhere) {
  constexpr size_t kCount = 3 * 1024 * 1024 + 7;
  testing::InProcessWorkers workers(GetParam());
  std::vector<std::vector<float>> results(workers.world_size());
  workers.Run([&](Worker& worker) {
    const auto world = Connect(worker);
    std::vector<float>& values = results[worker.rank()];
    values.resize(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      values[i] = 1.0f / static_cast<float>(i + 1 + worker.rank());
    }
    EXPECT_OK(world->AllReduce(Of(values), ReduceOp::kSum)->Wait(kLong));
  });
  for (size_t i = 0; i < kCount; i += 9973) {
    double sum = 0;
    for (int rank = 0; rank < workers.world_size(); ++rank) sum += 1.0 / (i + 1.0 + rank);
    ASSERT_NEAR(results[0][i], sum, 1e-6 * sum) << i;
  }
  for (const auto& result : results) EXPECT_TRUE(result == results[0]);
}

TEST_P(SocketWorldTest, BroadcastFromEveryRoot) {
  testing::InProcessWorkers workers(GetParam());
  workers.Run([](Worker& worker) {
    const auto world = Connect(worker);
    for (int root = 0; root < world->size(); ++root) {
      std::vector<float> values(100, static_cast<float>(world->rank()));
      EXPECT_OK(world->Broadcast(Of(values), root)->Wait(kLong));
      EXPECT_THAT(values, Each(static_cast<float>(root)));
    }
  });
}

TEST_P(SocketWorldTest, AllGatherInRankOrder) {
  testing::InProcessWorkers workers(GetParam());
  workers.Run([](Worker& worker) {
    const auto world = Connect(worker);
    std::vector<int64_t> input = {worker.rank() * 10, worker.rank() * 10 + 1};
    std::vector<int64_t> output(2 * world->size());
    EXPECT_OK(
        world->AllGather(Of(input, DataType::kInt64), Of(output, DataType::kInt64))->Wait(kLong));
    for (int rank = 0; rank < world->size(); ++rank) {
      EXPECT_EQ(output[2 * rank], rank * 10);
      EXPECT_EQ(output[2 * rank + 1], rank * 10 + 1);
    }
  });
}

TEST_P(SocketWorldTest, NothingWaitsForTheCaller) {
  testing::InProcessWorkers workers(GetParam());
  workers.Run([](Worker& worker) {
    const auto world = Connect(worker);
    std::vector<std::vector<float>> buckets(20, std::vector<float>(1000, 1));
    std::vector<std::shared_ptr<Work>> works;
    for (auto& bucket : buckets) works.push_back(world->AllReduce(Of(bucket), ReduceOp::kSum));
    works.push_back(world->Barrier());
    for (const auto& work : works) EXPECT_OK(work->Wait(kLong));
    for (const auto& bucket : buckets) EXPECT_THAT(bucket, Each(world->size()));
    std::vector<float> empty;
    EXPECT_OK(world->AllReduce(Of(empty), ReduceOp::kSum)->Wait(kLong));
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, SocketWorldTest, ::testing::Values(1, 2, 3));

TEST(SocketCommunicatorTest, SeveralCommunicatorsLiveSideBySideAndOneAfterTheOther) {
  testing::InProcessWorkers workers(2);
  workers.Run([](Worker& worker) {
    CommunicatorOptions other_name;
    other_name.name = "gradients";
    auto first = Connect(worker);
    auto second = Connect(worker);
    auto named = ConnectSockets(worker, other_name);
    ASSERT_OK(named);
    std::vector<float> a(10, 1), b(10, 2), c(10, 3);
    auto work_a = first->AllReduce(Of(a), ReduceOp::kSum);
    auto work_b = second->AllReduce(Of(b), ReduceOp::kSum);
    auto work_c = (*named)->AllReduce(Of(c), ReduceOp::kSum);
    EXPECT_OK(work_c->Wait(kLong));
    EXPECT_OK(work_b->Wait(kLong));
    EXPECT_OK(work_a->Wait(kLong));
    EXPECT_THAT(a, Each(2));
    EXPECT_THAT(b, Each(4));
    EXPECT_THAT(c, Each(6));
    first.reset();
    first = Connect(worker);
    EXPECT_OK(first->Barrier()->Wait(kLong));
  });
}

TEST(SocketCommunicatorTest, AbortEndsWhatRunsAndWhatWaits) {
  testing::InProcessWorkers workers(2);
  workers.Run([](Worker& worker) {
    const auto world = Connect(worker);
    EXPECT_OK(world->Barrier()->Wait(kLong));
    std::vector<float> values(1 << 20, 1);
    if (worker.rank() == 0) {
      const auto running = world->AllReduce(Of(values), ReduceOp::kSum);
      const auto waiting = world->Barrier();
      EXPECT_THAT(running->Wait(std::chrono::milliseconds(20)),
                  StatusIs(StatusCode::kDeadlineExceeded));
      const MonoTime start = MonoNow();
      world->Abort();
      world->Abort();
      EXPECT_THAT(running->Wait(kLong), StatusIs(StatusCode::kAborted, HasSubstr("\"world\"")));
      EXPECT_THAT(waiting->Wait(kLong), StatusIs(StatusCode::kAborted));
      EXPECT_LT(MonoNow() - start, absl::FromChrono(std::chrono::seconds(1)));
      EXPECT_THAT(world->Barrier()->Wait(kLong), StatusIs(StatusCode::kAborted));
      ASSERT_OK(worker.Set("aborted", ""));
    } else {
      ASSERT_OK(worker.Get("aborted", kLong));
      EXPECT_THAT(world->AllReduce(Of(values), ReduceOp::kSum)->Wait(kLong),
                  StatusIs(StatusCode::kAborted,
                           AllOf(HasSubstr("rank 0 has left"), HasSubstr("all-reduce"))));
    }
  });
}

// Ranks that survive the end of a generation do this one after the other.
TEST(SocketCommunicatorTest, WhoAbortsAsWellAwaitsNoLastWords) {
  constexpr int kRounds = 5;
  testing::InProcessWorkers workers(2);
  absl::Duration fastest = absl::InfiniteDuration();
  workers.Run([&](Worker& worker) {
    const auto outer = Connect(worker);
    for (int round = 0; round < kRounds; ++round) {
      auto world = outer->Split(0, worker.rank());
      ASSERT_OK(world);
      const bool aborts_first = worker.rank() == 0;
      std::shared_ptr<Work> waiting;
      if (aborts_first) {
        world->reset();
      } else {
        waiting = (*world)->Barrier();
      }
      EXPECT_OK(outer->Barrier()->Wait(kLong));
      if (aborts_first) continue;
      const MonoTime start = MonoNow();
      world->reset();
      fastest = std::min(fastest, MonoNow() - start);
      EXPECT_THAT(waiting->Wait(kLong), StatusIs(StatusCode::kAborted));
    }
  });
  EXPECT_LT(fastest, backend::kExitGrace / 2);
}

TEST(SocketCommunicatorTest, DestructionDoesNotWaitForPeers) {
  testing::InProcessWorkers workers(2);
  workers.Run([](Worker& worker) {
    auto world = Connect(worker);
    std::vector<float> values(1 << 20, 1);
    std::shared_ptr<Work> work;
    if (worker.rank() == 0) work = world->AllReduce(Of(values), ReduceOp::kSum);
    world.reset();
    if (work != nullptr) {
      EXPECT_TRUE(work->done());
      EXPECT_FALSE(work->Wait(kLong).ok());
    }
  });
}

TEST(SocketCommunicatorTest, NoticesAPeerThatGoesInTheMiddleOfAMessage) {
  constexpr size_t kCount = 16 * 1024 * 1024;
  for (int round = 0; round < 4; ++round) {
    testing::InProcessWorkers workers(2);
    workers.Run([round](Worker& worker) {
      auto world = Connect(worker);
      EXPECT_OK(world->Barrier()->Wait(kLong));
      std::vector<float> values(kCount, 1);
      const auto work = world->AllReduce(Of(values), ReduceOp::kSum);
      if (worker.rank() == 1) {
        const Status status = work->Wait(std::chrono::milliseconds(3 * round));
        EXPECT_TRUE(status.ok() || status.code() == StatusCode::kDeadlineExceeded) << status;
        world.reset();
        return;
      }
      const MonoTime start = MonoNow();
      const Status status = work->Wait(kLong);
      EXPECT_TRUE(status.ok() || status.code() == StatusCode::kAborted) << status;
      EXPECT_LT(MonoNow() - start, absl::FromChrono(std::chrono::seconds(20)));
      if (!status.ok()) {
        EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
      }
    });
  }
}

// Fault (input): A rank may start no thread for a message -> That message fails and says what to
// raise (`ulimit -u`, `pids.max`); the communicator ends on all ranks
TEST(SocketCommunicatorTest, AMessageWithoutAThreadFailsAndNamesTheLimit) {
  testing::InProcessWorkers workers(2);
  workers.Run([](Worker& worker) {
    auto world = Connect(worker);
    std::vector<float> values(4, 1);
    std::shared_ptr<Work> work;
    // NoThreads holds for the whole process, and the other rank's communicator starts a thread too.
    EXPECT_OK(worker.Barrier("connected", kLong));
    if (worker.rank() == 0) {
      // The other rank waits in the next barrier meanwhile.
      const testing::NoThreads none;
      work = world->Send(Of(values), 1, 5);
    }
    EXPECT_OK(worker.Barrier("sent", kLong));
    if (worker.rank() == 1) work = world->Receive(Of(values), 0, 5);
    EXPECT_THAT(work->Wait(kLong),
                StatusIs(StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("rank 0 cannot start a thread"), HasSubstr("ulimit -u"))));
    // The communicator can be destroyed together with its messages.
    world.reset();
  });
}

TEST(SocketCommunicatorTest, SaysWhichRankDidNotAnswerInTime) {
  testing::InProcessWorkers workers(2);
  workers.Run([](Worker& worker) {
    const auto world = Connect(worker, worker.rank() == 0 ? std::chrono::milliseconds(500) : kLong);
    std::vector<float> values(100, 1);
    if (worker.rank() == 0) {
      EXPECT_THAT(world->AllReduce(Of(values), ReduceOp::kSum)->Wait(kLong),
                  StatusIs(StatusCode::kDeadlineExceeded,
                           AllOf(HasSubstr("rank 1"), HasSubstr("all-reduce (sum) of 100 float32"),
                                 HasSubstr("500ms"))));
      ASSERT_OK(worker.Set("timed_out", ""));
    } else {
      ASSERT_OK(worker.Get("timed_out", kLong));
    }
  });
}

TEST(SocketCommunicatorTest, DifferentCallsAreNamedOnEveryRank) {
  testing::InProcessWorkers workers(3);
  workers.Run([](Worker& worker) {
    const auto world = Connect(worker);
    std::vector<float> values(worker.rank() == 2 ? 200 : 100, 1);
    EXPECT_OK(world->Barrier()->Wait(kLong));
    EXPECT_THAT(world->AllReduce(Of(values), ReduceOp::kSum)->Wait(kLong),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("made different calls as collective 2"),
                               HasSubstr(" an all-reduce (sum) of 100 float32, "),
                               HasSubstr("rank 2 an all-reduce (sum) of 200 float32"))));
    EXPECT_THAT(world->Barrier()->Wait(kLong), StatusIs(StatusCode::kInvalidArgument));
  });
}

TEST(SocketCommunicatorTest, ARankThatIsAheadLearnsOfADifferenceToo) {
  testing::InProcessWorkers workers(2);
  workers.Run([](Worker& worker) {
    const auto world = Connect(worker);
    // A rank with an empty buffer waits for no other rank.
    std::vector<float> values(worker.rank() == 0 ? 0 : 100, 1);
    const auto first = world->AllReduce(Of(values), ReduceOp::kSum);
    EXPECT_THAT(world->Barrier()->Wait(kLong),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("as collective 1")));
    EXPECT_EQ(first->Wait(kLong).ok(), worker.rank() == 0);
  });
}

TEST(SocketCommunicatorTest, RefusesWhatCannotBe) {
  testing::InProcessWorkers workers(2);
  workers.Run([](Worker& worker) {
    const auto world = Connect(worker);
    std::vector<float> values(4);
    EXPECT_THAT(world->Broadcast(Of(values), 2)->Wait(kLong),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("ranks are 0 to 1")));
    CommunicatorOptions options;
    const std::string name(kMaxCommunicatorName + 1, 'n');
    options.name = name.c_str();
    EXPECT_THAT(ConnectSockets(worker, options), StatusIs(StatusCode::kInvalidArgument));
  });
}

TEST(SocketCommunicatorTest, ConnectingEndsWithTheGeneration) {
  testing::InProcessWorkers workers(2);
  std::thread next_generation([&workers] {
    EXPECT_OK(workers.worker(1).Get("sockets/world/opened/0", kLong));
    workers.EndGeneration();
  });
  EXPECT_THAT(ConnectSockets(workers.worker(0), WithTimeout(kLong)),
              StatusIs(StatusCode::kAborted, HasSubstr("communicator \"world\"")));
  next_generation.join();
}

TEST(SocketCommunicatorTest, ConnectingTimesOut) {
  testing::InProcessWorkers workers(2);
  EXPECT_THAT(ConnectSockets(workers.worker(0), WithTimeout(std::chrono::milliseconds(50))),
              StatusIs(StatusCode::kDeadlineExceeded));
}

}  // namespace
}  // namespace cadre::sockets
