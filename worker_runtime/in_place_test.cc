#include "cadre/in_place.h"

#include <chrono>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "base/status_matchers.h"
#include "cadre/connect.h"
#include "worker_runtime/testing/in_process_workers.h"
#include "worker_runtime/testing/rejoining_worker.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using testing::RejoiningWorker;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

// A sum over steps; each step adds the sum over the ranks.
class Sum : public InPlaceState {
 public:
  explicit Sum(int64_t step = -1, double value = 0) : step(step), value(value) {}

  int64_t position() const override { return step; }
  Result<std::string> Save() const override {
    ++saves;
    if (broken) return DataLossError("cannot be saved");
    return absl::StrCat(step, " ", value);
  }
  Status Load(std::string_view bytes) override {
    ++loads;
    const std::vector<std::string> parts = absl::StrSplit(std::string(bytes), ' ');
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &step) ||
        !absl::SimpleAtod(parts[1], &value)) {
      return InvalidArgumentError("not a sum");
    }
    return OkStatus();
  }

  Status Step(Communicator& communicator) {
    double sum = 1;
    const Status status =
        communicator.AllReduce({&sum, 1, DataType::kFloat64}, ReduceOp::kSum)->Wait(kLong);
    if (!status.ok()) return status;
    value += sum;
    ++step;
    return OkStatus();
  }

  int64_t step;
  double value;
  bool broken = false;
  mutable int saves = 0;
  int loads = 0;
};

Status Share(Worker& worker, Sum& sum) {
  auto communicator = ConnectCommunicator(worker, {"share", kLong});
  if (!communicator.ok()) return communicator.status();
  const Status status = ShareState(**communicator, sum, kLong);
  // No rank may leave while another one still reads.
  if (!status.ok()) return status;
  return (*communicator)->Barrier()->Wait(kLong);
}

TEST(ShareStateTest, WhoIsBehindGetsTheStateOfTheFirstThatIsFurthest) {
  testing::InProcessWorkers workers(4);
  std::vector<Sum> sums = {Sum(5, 50), Sum(6, 60), Sum(), Sum(6, 60)};
  workers.Run([&](Worker& worker) { EXPECT_OK(Share(worker, sums[worker.rank()])); });
  for (const Sum& sum : sums) {
    EXPECT_EQ(sum.step, 6);
    EXPECT_EQ(sum.value, 60);
  }
  EXPECT_EQ(sums[1].saves, 1);
  EXPECT_EQ(sums[3].saves + sums[1].loads + sums[3].loads, 0);
  EXPECT_EQ(sums[0].loads + sums[2].loads, 2);
}

TEST(ShareStateTest, EqualStatesStayWhereTheyAre) {
  testing::InProcessWorkers workers(2);
  std::vector<Sum> sums(2);
  workers.Run([&](Worker& worker) { EXPECT_OK(Share(worker, sums[worker.rank()])); });
  EXPECT_EQ(sums[0].saves + sums[1].saves + sums[0].loads + sums[1].loads, 0);
}

TEST(ShareStateTest, AStateThatCannotBeSavedKeepsNobodyWaiting) {
  testing::InProcessWorkers workers(2);
  std::vector<Sum> sums = {Sum(1, 1), Sum()};
  sums[0].broken = true;
  workers.Run([&](Worker& worker) {
    EXPECT_EQ(Share(worker, sums[worker.rank()]).code(),
              worker.rank() == 0 ? StatusCode::kDataLoss : StatusCode::kAborted);
  });
}

TEST(TrainInPlaceTest, ARankIsLost_TheOthersGoOnWithANewcomer) {
  testing::InProcessWorkers first(3), second(3);
  std::vector<Sum> sums(4);
  // Rank 2 of the first generation is lost; sums[3] belongs to its replacement, which becomes rank
  // 0.
  const auto train = [](Sum& sum, int lost) {
    return [&sum, lost](Worker& worker, Communicator& communicator) -> Status {
      if (sum.step < 0) sum.step = 0;
      while (sum.step < 8) {
        if (worker.rank() == lost && sum.step == 3) return InternalError("lost");
        const Status status = sum.Step(communicator);
        if (!status.ok()) return status;
      }
      return communicator.Barrier()->Wait(kLong);
    };
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      Worker& here = i == 3 ? second.worker(0) : first.worker(i);
      RejoiningWorker worker(here, i < 2 ? &second.worker(i + 1) : nullptr);
      const Status status = TrainInPlace(worker, sums[i], {}, train(sums[i], i == 2 ? 2 : -1));
      // A worker does not rejoin after its own error.
      EXPECT_EQ(status.code(), i == 2 ? StatusCode::kInternal : StatusCode::kOk);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int i : {0, 1, 3}) {
    EXPECT_EQ(sums[i].step, 8) << i;
    EXPECT_EQ(sums[i].value, 24) << i;
  }
  EXPECT_EQ(sums[3].loads, 1);
}

TEST(TrainInPlaceTest, AGenerationThatEndsWithoutAFailure_IsLeft) {
  testing::InProcessWorkers first(2), second(2);
  std::vector<Sum> sums(2);
  std::vector<std::unique_ptr<RejoiningWorker>> workers;
  for (int i = 0; i < 2; ++i) {
    workers.push_back(std::make_unique<RejoiningWorker>(first.worker(i), &second.worker(i)));
  }
  absl::Mutex mutex;
  int running = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      bool again = false;
      EXPECT_OK(TrainInPlace(*workers[i], sums[i], {},
                             [&](Worker&, Communicator& communicator) -> Status {
                               if (std::exchange(again, true)) return OkStatus();
                               {
                                 absl::MutexLock lock(&mutex);
                                 ++running;
                               }
                               Status status;
                               while (status.ok()) status = sums[i].Step(communicator);
                               return status;
                             }));
      EXPECT_TRUE(again);
    });
  }
  {
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(
        +[](int* count) { return *count == 2; }, &running));
  }
  for (const auto& worker : workers) worker->EndGeneration();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sums[0].step, sums[1].step);
}

TEST(TrainInPlaceTest, WhoIsNotKept_GetsTheErrorThatEndedItsTraining) {
  testing::InProcessWorkers first(1);
  RejoiningWorker worker(first.worker(0), nullptr);
  Sum sum;
  EXPECT_THAT(TrainInPlace(worker, sum, {},
                           [](Worker&, Communicator&) -> Status {
                             return UnavailableError("rank 1 is gone");
                           }),
              StatusIs(StatusCode::kUnavailable,
                       HasSubstr("rank 1 is gone; cannot rejoin: this process is not kept")));
}

TEST(TrainInPlaceTest, InAnyOtherJob_ItIsCalledOnce) {
  testing::InProcessWorkers first(1);
  Sum sum;
  int calls = 0;
  EXPECT_THAT(TrainInPlace(first.worker(0), sum, {},
                           [&](Worker&, Communicator&) -> Status {
                             ++calls;
                             return UnavailableError("rank 1 is gone");
                           }),
              StatusIs(StatusCode::kUnavailable));
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace cadre
