// Ranks are processes, and one of them dies, stops, leaves, runs another program, or has bad data
// or none. One row for each fault gives the error that the ranks must report, under each backend.
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "cadre/reducer.h"
#include "worker_runtime/backend/exit_grace.h"
#include "worker_runtime/hierarchical/hierarchical_communicator.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/testing/forked_workers.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);
constexpr std::chrono::nanoseconds kShort = std::chrono::seconds(1);
// The promise is 100 ms in shared memory and one second elsewhere; a machine that is busy with
// other work gets more.
constexpr std::chrono::nanoseconds kNoticed = std::chrono::seconds(10);
constexpr int kFaultStep = 6;
// The exit status of a rank that has reported its result.
constexpr int kTold = 0;

using ConnectFunction = Result<std::unique_ptr<Communicator>> (*)(Worker&,
                                                                  const CommunicatorOptions&);

struct Backend {
  const char* name;
  ConnectFunction connect;
  int ranks;
  int nodes;
  int culprit;  // leads no node
};

enum class Fault {
  kKilled,
  kStopped,
  kOtherShape,
  kOtherSize,
  kOtherOrder,
  kNotANumber,
  kReturnsEarly,
  kExitsEarly,
  kNoData
};

struct Row {
  const char* name;
  Fault fault;
  StatusCode code;
  // A part of the other ranks' error; $ stands for the culprit's rank.
  const char* text;
  // Whether the culprit gets the error too.
  bool culprit_tells;
};

constexpr Row kRows[] = {
    {"Killed", Fault::kKilled, StatusCode::kUnavailable, "rank $ is gone", false},
    {"Stopped", Fault::kStopped, StatusCode::kDeadlineExceeded, "rank $ (", false},
    {"OtherShape", Fault::kOtherShape, StatusCode::kInvalidArgument,
     "'bias' float32 with 8 elements on rank $ but 'bias' float32 with 7 elements on rank 0", true},
    {"OtherSize", Fault::kOtherSize, StatusCode::kInvalidArgument,
     "rank $ an all-reduce (sum) of 5 float32", true},
    {"OtherOrder", Fault::kOtherOrder, StatusCode::kInvalidArgument, "rank $ a barrier", true},
    {"NotANumber", Fault::kNotANumber, StatusCode::kOutOfRange,
     "not finite in step 6: on rank $ of 'bias'", true},
    {"ReturnsEarly", Fault::kReturnsEarly, StatusCode::kAborted, "rank $ has left the communicator",
     false},
    {"ExitsEarly", Fault::kExitsEarly, StatusCode::kUnavailable, "rank $ is gone", false},
    {"NoData", Fault::kNoData, StatusCode::kOk, "", true},
};

constexpr Backend kBackends[] = {{"SharedMemory", shared_memory::ConnectSharedMemory, 3, 1, 1},
                                 {"Sockets", sockets::ConnectSockets, 3, 1, 1},
                                 {"Hierarchical", hierarchical::ConnectHierarchical, 4, 2, 3}};

struct Ended {
  Status status;
  MonoTime at;
};

void Tell(Worker& worker, const Status& status) {
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
  return {Status(static_cast<StatusCode>(code), parts[2]), MonoTime::FromMicros(micros)};
}

// One rank's program.
class Rank {
 public:
  Rank(Worker& worker, const Backend& backend, Fault fault)
      : worker_(worker), backend_(backend), fault_(fault) {}

  int Run() {
    const Status status = Train();
    Tell(worker_, status);
    // The other ranks detect the loss by themselves.
    worker_.Get("over", kLong).IgnoreError();
    return kTold;
  }

 private:
  bool IsCulprit(Fault fault) const {
    return fault_ == fault && worker_.rank() == backend_.culprit;
  }

  Status Train() {
    const std::chrono::nanoseconds timeout = fault_ == Fault::kStopped ? kShort : kLong;
    auto communicator = backend_.connect(worker_, {"failures", timeout});
    if (!communicator.ok()) return communicator.status();
    std::vector<float> weight(50000), bias(IsCulprit(Fault::kOtherShape) ? 8 : 7);
    auto reducer =
        Reducer::Create(**communicator,
                        {{"weight", {weight.data(), weight.size(), DataType::kFloat32}, {}},
                         {"bias", {bias.data(), bias.size(), DataType::kFloat32}, {}}},
                        {});
    if (!reducer.ok()) return reducer.status();
    const bool until_the_end = fault_ == Fault::kKilled || fault_ == Fault::kStopped;
    for (int step = 1; until_the_end || step <= kFaultStep + 2; ++step) {
      if (step == kFaultStep) {
        worker_.Set(absl::StrCat("runs/", worker_.rank()), "").IgnoreError();
        // A rank must not be stopped while it holds the store's lock.
        if (!until_the_end) worker_.Get("fault", kLong).IgnoreError();
        const Status other = DoOtherThings(**communicator);
        if (!other.ok()) return other;
        if (IsCulprit(Fault::kReturnsEarly)) return OkStatus();
      }
      const Status stepped = Step(**reducer, step);
      if (!stepped.ok()) return stepped;
    }
    return OkStatus();
  }

  // Only the culprit does this.
  Status DoOtherThings(Communicator& communicator) {
    if (IsCulprit(Fault::kExitsEarly)) _exit(kTold);
    std::vector<float> five(5);
    if (IsCulprit(Fault::kOtherSize)) {
      return communicator.AllReduce({five.data(), 5, DataType::kFloat32}, ReduceOp::kSum)
          ->Wait(kLong);
    }
    if (IsCulprit(Fault::kOtherOrder)) return communicator.Barrier()->Wait(kLong);
    return OkStatus();
  }

  Status Step(Reducer& reducer, int step) {
    const bool has_data = !IsCulprit(Fault::kNoData);
    Status status = reducer.BeginStep(true, has_data ? 1 : 0);
    for (size_t i = 0; i < reducer.size() && has_data; ++i) {
      auto* const values = static_cast<float*>(reducer.Gradient(i).data);
      for (size_t k = 0; k < reducer.Gradient(i).count; ++k) values[k] = 2;
      if (i == 1 && step == kFaultStep && IsCulprit(Fault::kNotANumber)) values[3] = NAN;
      status.Update(reducer.MarkReady(i));
    }
    const auto report = reducer.Finish(kLong);
    status.Update(report.status());
    if (!status.ok()) return status;
    const double missing = fault_ == Fault::kNoData ? 1 : 0;
    const float average = static_cast<const float*>(reducer.Gradient(0).data)[7];
    if (report->weight != backend_.ranks - missing || std::abs(average - 2) > 1e-5) {
      return InternalError(absl::StrCat("weight ", report->weight, ", average ", average));
    }
    return OkStatus();
  }

  Worker& worker_;
  const Backend& backend_;
  const Fault fault_;
};

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

class ProcessFailuresTest : public ::testing::TestWithParam<std::tuple<Backend, Row>> {};

// Fault (collective): A rank dies, stops, leaves or makes a different call in the middle of a
// collective between nodes -> Every other rank's call ends with the same cause and names that rank,
// within 10 s (of the call's timeout if the rank is stopped)
TEST_P(ProcessFailuresTest, EveryRankNamesTheCulprit) {
  const auto [backend, row] = GetParam();
  const std::string text = absl::StrReplaceAll(row.text, {{"$", absl::StrCat(backend.culprit)}});
  const auto shared_before = OurFiles("/dev/shm"), temporary_before = OurFiles("/tmp");
  {
    ForkedWorkers workers(backend.ranks, backend.nodes);
    workers.Start([&backend = backend, &row = row](Worker& worker) {
      return Rank(worker, backend, row.fault).Run();
    });
    const bool begins = row.fault != Fault::kOtherShape;
    for (int rank = 0; rank < backend.ranks && begins; ++rank) {
      ASSERT_OK(workers.observer().Get(absl::StrCat("runs/", rank), kLong));
    }
    const MonoTime start = MonoNow();
    ASSERT_OK(workers.observer().Set("fault", ""));
    if (row.fault == Fault::kKilled) workers.Signal(backend.culprit, SIGKILL);
    if (row.fault == Fault::kStopped) workers.Signal(backend.culprit, SIGSTOP);
    for (int rank = 0; rank < backend.ranks; ++rank) {
      if (rank == backend.culprit && !row.culprit_tells) continue;
      const Ended ended = EndOf(workers, rank);
      EXPECT_EQ(ended.status.code(), row.code) << "rank " << rank << ": " << ended.status;
      EXPECT_THAT(std::string(ended.status.message()), HasSubstr(text)) << "rank " << rank;
      EXPECT_LT(ended.at - start, absl::FromChrono(kNoticed));
      printf("rank %d after %s: %s\n", rank, absl::FormatDuration(ended.at - start).c_str(),
             ended.status.ToString().c_str());
    }
    ASSERT_OK(workers.observer().Set("over", ""));
    // No rank hangs while it exits.
    for (int rank = 0; rank < backend.ranks; ++rank) {
      if (rank == backend.culprit && row.fault == Fault::kStopped) continue;
      const bool was_killed = rank == backend.culprit && row.fault == Fault::kKilled;
      EXPECT_EQ(workers.Wait(rank), was_killed ? 128 + SIGKILL : kTold) << "rank " << rank;
    }
  }
  EXPECT_EQ(OurFiles("/dev/shm"), shared_before);
  EXPECT_EQ(OurFiles("/tmp"), temporary_before);
}

INSTANTIATE_TEST_SUITE_P(Rows, ProcessFailuresTest,
                         ::testing::Combine(::testing::ValuesIn(kBackends),
                                            ::testing::ValuesIn(kRows)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param).name, "_",
                                               std::get<1>(info.param).name);
                         });

// The rank that aborts, and the ranks that wait for it: for a message, or in a barrier.
struct ExitGraceCase {
  const char* name;
  Backend backend;
  int aborts;
  int waits;
  bool in_barrier;
};

constexpr ExitGraceCase kExitGraceCases[] = {
    {"SharedMemory", kBackends[0], 0, 2, false},
    {"Sockets", kBackends[1], 0, 2, false},
    {"Hierarchical", kBackends[2], 0, 2, false},
    // The rank that aborts is on one node, which does not know of the dead rank on the other.
    {"WithinANode", kBackends[2], 1, 0, true},
};

class ExitGraceTest : public ::testing::TestWithParam<ExitGraceCase> {
 protected:
  // One rank exits without leaving its communicator, then one aborts and lives on, as survivors do
  // whose job recovers in place. Returns how long a third rank still waits for the one that
  // aborted.
  static std::chrono::nanoseconds WaitAfterAbort(const ExitGraceCase& row) {
    ForkedWorkers workers(row.backend.ranks, row.backend.nodes);
    workers.Start([&row](Worker& worker) {
      auto communicator = row.backend.connect(worker, {"last_words", kLong});
      if (!communicator.ok() || !(*communicator)->Barrier()->Wait(kLong).ok()) return kTold + 1;
      if (worker.rank() == row.backend.culprit) _exit(kTold);
      worker.Get("died", kLong).IgnoreError();
      float value = 0;
      if (worker.rank() == row.waits) {
        const auto work =
            row.in_barrier
                ? (*communicator)->Barrier()
                : (*communicator)->Receive({&value, 1, DataType::kFloat32}, row.aborts, 0);
        worker.Set("waits", "").IgnoreError();
        Tell(worker, work->Wait(kLong));
      } else if (worker.rank() == row.aborts) {
        worker.Get("waits", kLong).IgnoreError();
        Tell(worker, OkStatus());
        (*communicator)->Abort();
      }
      worker.Get("over", kLong).IgnoreError();
      return kTold;
    });
    EXPECT_EQ(workers.Wait(row.backend.culprit), kTold);
    EXPECT_OK(workers.observer().Set("died", ""));
    const Ended aborted = EndOf(workers, row.aborts), waited = EndOf(workers, row.waits);
    EXPECT_THAT(waited.status, StatusIs(StatusCode::kAborted,
                                        HasSubstr(absl::StrCat("rank ", row.aborts, " has left"))));
    EXPECT_OK(workers.observer().Set("over", ""));
    EXPECT_EQ(workers.WaitForAll(), kTold);
    return absl::ToChronoNanoseconds(waited.at - aborted.at);
  }
};

// Fault (collective): A rank has died, and the other ranks' collectives fail -> The others do not
// wait out the exit grace: they end after less (0.5 s in the quickest of five rounds)
TEST_P(ExitGraceTest, AreNotAwaitedAfterAnothersDeath) {
  // A machine that is busy with other work may need some more rounds.
  constexpr int kRounds = 5;
  std::chrono::nanoseconds fastest = std::chrono::nanoseconds::max();
  for (int round = 0; round < kRounds && absl::FromChrono(fastest) >= backend::kExitGrace;
       ++round) {
    fastest = std::min(fastest, WaitAfterAbort(GetParam()));
  }
  EXPECT_LT(absl::FromChrono(fastest), backend::kExitGrace);
}

INSTANTIATE_TEST_SUITE_P(Cases, ExitGraceTest, ::testing::ValuesIn(kExitGraceCases),
                         [](const auto& info) { return info.param.name; });

TEST(ProcessFailures, ProcessesOnSeveralNodesReduceTogether) {
  ForkedWorkers workers(4, 2);
  workers.Start([](Worker& worker) {
    auto communicator = hierarchical::ConnectHierarchical(worker, {"nodes", kLong});
    if (!communicator.ok()) return 1;
    int64_t value = worker.rank() + 1;
    const Status status =
        (*communicator)->AllReduce({&value, 1, DataType::kInt64}, ReduceOp::kSum)->Wait(kLong);
    const bool all_done = (*communicator)->Barrier()->Wait(kLong).ok();
    return status.ok() && all_done && value == 10 ? 0 : 2;
  });
  EXPECT_EQ(workers.WaitForAll(), 0);
}

}  // namespace
}  // namespace cadre::testing
