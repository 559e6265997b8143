// What ranks that are processes see when one of them dies, stops or runs another program.
#include <dirent.h>
#include <signal.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "worker_runtime/gloo/gloo_communicator.h"
#include "worker_runtime/hierarchical/hierarchical_communicator.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/testing/forked_workers.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Minutes(1);
constexpr absl::Duration kShort = absl::Milliseconds(500);
// The promise is 100 ms; a machine that is busy with other things gets more.
constexpr absl::Duration kNoticed = absl::Seconds(2);

using ConnectFunction =
    absl::StatusOr<std::unique_ptr<Communicator>> (*)(Worker&, const CommunicatorOptions&);

struct Ended {
  absl::Status status;
  MonoTime at;
};

void Report(Worker& worker, const absl::Status& status) {
  worker
      .Set(absl::StrCat("ended/", worker.rank()),
           absl::StrCat(static_cast<int>(status.code()), "|", MonoNow().micros(), "|",
                        std::string(status.message())))
      .IgnoreError();
}

Ended EndOf(ForkedWorkers& workers, int rank) {
  const auto text = workers.observer().Get(absl::StrCat("ended/", rank), kLong);
  if (!text.ok()) return {text.status(), MonoTime()};
  const std::vector<std::string> parts = absl::StrSplit(*text, absl::MaxSplits('|', 2));
  int code = 0;
  int64_t micros = 0;
  EXPECT_TRUE(absl::SimpleAtoi(parts[0], &code) && absl::SimpleAtoi(parts[1], &micros));
  return {absl::Status(static_cast<absl::StatusCode>(code), parts[2]),
          MonoTime::FromMicros(micros)};
}

// Reduces until something goes wrong, and reports it.
int ReduceUntilTheEnd(Worker& worker, ConnectFunction connect, absl::Duration timeout) {
  auto communicator = connect(worker, {"failures", timeout});
  if (!communicator.ok()) {
    Report(worker, communicator.status());
    return 1;
  }
  std::vector<float> values(50000, 0);
  absl::Status status;
  for (int64_t i = 0; status.ok(); ++i) {
    status = (*communicator)
                 ->AllReduce({values.data(), values.size(), DataType::kFloat32}, ReduceOp::kSum)
                 ->Wait(kLong);
    if (i == 10) worker.Set(absl::StrCat("runs/", worker.rank()), "").IgnoreError();
  }
  Report(worker, status);
  // The others find out for themselves.
  worker.Get("over", kLong).IgnoreError();
  return 0;
}

void WaitUntilAllRun(ForkedWorkers& workers, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    ASSERT_OK(workers.observer().Get(absl::StrCat("runs/", rank), kLong));
  }
}

std::set<std::string> OurFiles(const char* folder) {
  std::set<std::string> names;
  DIR* const directory = opendir(folder);
  if (directory == nullptr) return names;
  while (const dirent* entry = readdir(directory)) {
    if (absl::StrContains(entry->d_name, "communicator")) names.insert(entry->d_name);
  }
  closedir(directory);
  return names;
}

struct BackendCase {
  const char* name;
  ConnectFunction connect;
  int ranks;
};

class ProcessFailuresTest : public ::testing::TestWithParam<BackendCase> {};

TEST_P(ProcessFailuresTest, KilledRankIsNamedByAllOthers) {
  const int ranks = GetParam().ranks;
  const auto shared_before = OurFiles("/dev/shm"), temporary_before = OurFiles("/tmp");
  ForkedWorkers workers(ranks);
  workers.Start(
      [&](Worker& worker) { return ReduceUntilTheEnd(worker, GetParam().connect, kLong); });
  WaitUntilAllRun(workers, ranks);
  const MonoTime killed = MonoNow();
  workers.Signal(1, SIGKILL);
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == 1) continue;
    const Ended ended = EndOf(workers, rank);
    EXPECT_THAT(ended.status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1")));
    EXPECT_LT(ended.at - killed, kNoticed);
    RecordProperty(absl::StrCat("milliseconds_rank_", rank),
                   absl::StrCat(absl::ToInt64Milliseconds(ended.at - killed)));
    printf("rank %d noticed after %s\n", rank, absl::FormatDuration(ended.at - killed).c_str());
  }
  ASSERT_OK(workers.observer().Set("over", ""));
  EXPECT_EQ(workers.Wait(1), 128 + SIGKILL);
  EXPECT_EQ(OurFiles("/dev/shm"), shared_before);
  EXPECT_EQ(OurFiles("/tmp"), temporary_before);
}

TEST_P(ProcessFailuresTest, StoppedRankIsNamedAtTheDeadline) {
  const int ranks = GetParam().ranks;
  ForkedWorkers workers(ranks);
  workers.Start(
      [&](Worker& worker) { return ReduceUntilTheEnd(worker, GetParam().connect, kShort); });
  WaitUntilAllRun(workers, ranks);
  workers.Signal(1, SIGSTOP);
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == 1) continue;
    EXPECT_THAT(EndOf(workers, rank).status,
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1")));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ProcessFailuresTest,
                         ::testing::Values(BackendCase{"SharedMemory", ConnectSharedMemory, 3},
                                           BackendCase{"Gloo", ConnectGloo, 2}),
                         [](const auto& info) { return info.param.name; });

TEST(ProcessFailures, SharedMemory_RankThatMakesAnotherCallIsNamedByAll) {
  ForkedWorkers workers(3);
  workers.Start([](Worker& worker) {
    auto communicator = ConnectSharedMemory(worker, {"order", kLong});
    if (!communicator.ok()) return 1;
    int64_t value = 1;
    const absl::Status status = worker.rank() == 2
                                    ? (*communicator)->Barrier()->Wait(kLong)
                                    : (*communicator)
                                          ->AllReduce({&value, 1, DataType::kInt64}, ReduceOp::kMax)
                                          ->Wait(kLong);
    Report(worker, status);
    return 0;
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(EndOf(workers, rank).status,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("rank 0 an all-reduce (max) of 1 int64"),
                               HasSubstr("rank 2 a barrier"))));
  }
  EXPECT_EQ(workers.WaitForAll(), 0);
}

TEST(ProcessFailures, SharedMemory_RankThatLeavesEarlyIsNamed) {
  ForkedWorkers workers(2);
  workers.Start([](Worker& worker) {
    auto communicator = ConnectSharedMemory(worker, {"early", kLong});
    if (!communicator.ok()) return 1;
    if (worker.rank() == 1) return 0;
    Report(worker, (*communicator)->Barrier()->Wait(kLong));
    return 0;
  });
  const absl::Status status = EndOf(workers, 0).status;
  // Gone, or given up by the destructor on its way out.
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
  EXPECT_EQ(workers.WaitForAll(), 0);
}

TEST(ProcessFailures, ProcessesOnSeveralNodesReduceTogether) {
  ForkedWorkers workers(4, 2);
  workers.Start([](Worker& worker) {
    auto communicator = ConnectHierarchical(worker, {"nodes", kLong});
    if (!communicator.ok()) return 1;
    int64_t value = worker.rank() + 1;
    const absl::Status status =
        (*communicator)->AllReduce({&value, 1, DataType::kInt64}, ReduceOp::kSum)->Wait(kLong);
    const bool all_done = (*communicator)->Barrier()->Wait(kLong).ok();
    return status.ok() && all_done && value == 10 ? 0 : 2;
  });
  EXPECT_EQ(workers.WaitForAll(), 0);
}

}  // namespace
}  // namespace cadre
