#include "cadre/communicator.h"

#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "base/status_matchers.h"
#include "cadre.h"
#include "cadre/work.h"
#include "worker_runtime/c/borrowed_worker.h"
#include "worker_runtime/c/handles.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::c {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kLongMs = 60000;
constexpr int kRanks = 3;

// Runs `body` on every rank, with a C communicator.
void OnEachRank(const std::function<void(cadre_worker*, cadre_communicator*)>& body) {
  testing::InProcessWorkers workers(kRanks);
  workers.Run([&](Worker& one) {
    cadre_worker worker = Borrowed(one);
    cadre_communicator* communicator = nullptr;
    ASSERT_EQ(cadre_communicator_connect(&worker, "test", kLongMs, &communicator), CADRE_OK)
        << cadre_last_error();
    body(&worker, communicator);
    cadre_communicator_free(communicator);
  });
}

// Waits for an operation, if `status` says that it was started, and returns its status.
cadre_status Finish(cadre_status status, cadre_work*& work) {
  if (status == CADRE_OK) status = cadre_work_wait(work, kLongMs);
  cadre_work_free(work);
  work = nullptr;
  return status;
}

TEST(CCommunicatorTest, Reductions) {
  OnEachRank([](cadre_worker* worker, cadre_communicator* all) {
    const int rank = cadre_worker_rank(worker);
    cadre_work* work = nullptr;
    float mean[2] = {3.f * rank, 1};
    EXPECT_EQ(Finish(cadre_all_reduce(all, mean, 2, CADRE_FLOAT32, CADRE_AVERAGE, &work), work),
              CADRE_OK);
    EXPECT_THAT(mean, ElementsAre(3, 1));
    int64_t most = rank;
    EXPECT_EQ(Finish(cadre_all_reduce(all, &most, 1, CADRE_INT64, CADRE_MAX, &work), work),
              CADRE_OK);
    EXPECT_EQ(most, kRanks - 1);
    int32_t sum = rank;
    EXPECT_EQ(Finish(cadre_reduce(all, &sum, 1, CADRE_INT32, CADRE_SUM, 1, &work), work), CADRE_OK);
    EXPECT_EQ(sum, rank == 1 ? 3 : rank);
    const double parts[kRanks] = {1, 10, 100};
    double part = 0;
    EXPECT_EQ(
        Finish(cadre_reduce_scatter(all, parts, &part, 1, CADRE_FLOAT64, CADRE_SUM, &work), work),
        CADRE_OK);
    EXPECT_EQ(part, kRanks * parts[rank]);
  });
}

TEST(CCommunicatorTest, CopiesAndBarrier) {
  OnEachRank([](cadre_worker* worker, cadre_communicator* all) {
    const int rank = cadre_worker_rank(worker);
    cadre_work* work = nullptr;
    uint8_t bytes[2] = {static_cast<uint8_t>(rank), 9};
    EXPECT_EQ(Finish(cadre_broadcast(all, bytes, 2, CADRE_UINT8, 2, &work), work), CADRE_OK);
    EXPECT_THAT(bytes, ElementsAre(2, 9));
    const int32_t one = rank + 5;
    int32_t each[kRanks] = {};
    EXPECT_EQ(Finish(cadre_all_gather(all, &one, each, 1, CADRE_INT32, &work), work), CADRE_OK);
    EXPECT_THAT(each, ElementsAre(5, 6, 7));
    EXPECT_EQ(Finish(cadre_barrier(all, &work), work), CADRE_OK);
  });
}

TEST(CCommunicatorTest, ARingOfMessages) {
  OnEachRank([](cadre_worker* worker, cadre_communicator* all) {
    const int rank = cadre_worker_rank(worker);
    const double sent = rank;
    double received = -1;
    cadre_work *send = nullptr, *receive = nullptr;
    EXPECT_EQ(cadre_send(all, &sent, 1, CADRE_FLOAT64, (rank + 1) % kRanks, 4, &send), CADRE_OK);
    EXPECT_EQ(Finish(cadre_receive(all, &received, 1, CADRE_FLOAT64, (rank + kRanks - 1) % kRanks,
                                   4, &receive),
                     receive),
              CADRE_OK);
    EXPECT_EQ(Finish(CADRE_OK, send), CADRE_OK);
    EXPECT_EQ(received, (rank + kRanks - 1) % kRanks);
  });
}

TEST(CCommunicatorTest, AnOperationsOwnErrorComesFromItsWork) {
  OnEachRank([](cadre_worker*, cadre_communicator* all) {
    float value = 0;
    cadre_work* work = nullptr;
    ASSERT_EQ(cadre_broadcast(all, &value, 1, CADRE_FLOAT32, kRanks, &work), CADRE_OK);
    EXPECT_EQ(Finish(CADRE_OK, work), CADRE_INVALID_ARGUMENT);
    EXPECT_THAT(cadre_last_error(), HasSubstr("root is rank 3"));
  });
}

TEST(CCommunicatorTest, AnAbortReachesTheOthers) {
  OnEachRank([](cadre_worker* worker, cadre_communicator* all) {
    cadre_work* work = nullptr;
    if (cadre_worker_rank(worker) == 1) {
      EXPECT_EQ(cadre_communicator_abort(all), CADRE_OK);
      EXPECT_EQ(cadre_communicator_abort(all), CADRE_OK);
    }
    EXPECT_EQ(Finish(cadre_barrier(all, &work), work), CADRE_ABORTED);
  });
}

TEST(CCommunicatorTest, FreeingEndsWhatRuns_AndTheWorkStays) {
  cadre_work* work = nullptr;
  OnEachRank([&work](cadre_worker* worker, cadre_communicator* all) {
    if (cadre_worker_rank(worker) != 0) return;
    EXPECT_EQ(cadre_barrier(all, &work), CADRE_OK);
  });
  EXPECT_EQ(cadre_work_done(work), 1);
  EXPECT_NE(cadre_work_wait(work, 0), CADRE_OK);
  cadre_work_free(work);
}

TEST(CCommunicatorTest, AGroupCountsItsRanksInTheOrderGiven) {
  testing::InProcessWorkers workers(3);
  workers.Run([](Worker& one) {
    if (one.rank() == 1) return;
    cadre_worker worker = Borrowed(one);
    const int ranks[] = {2, 0};
    cadre_communicator* group = nullptr;
    ASSERT_EQ(cadre_communicator_connect_group(&worker, "ends", ranks, 2, kLongMs, &group),
              CADRE_OK)
        << cadre_last_error();
    const int32_t own = one.rank();
    int32_t both[2] = {};
    cadre_work* work = nullptr;
    EXPECT_EQ(Finish(cadre_all_gather(group, &own, both, 1, CADRE_INT32, &work), work), CADRE_OK);
    EXPECT_THAT(both, ElementsAre(2, 0));
    cadre_communicator_free(group);
  });
}

TEST(CCommunicatorTest, GroupErrors) {
  testing::InProcessWorkers workers(2);
  cadre_worker worker = Borrowed(workers.worker(0));
  const int ranks[] = {0, 5};
  cadre_communicator* group = nullptr;
  const auto connect = [&](cadre_worker* from, const char* name, const int* of, size_t count,
                           int64_t timeout_ms) {
    return cadre_communicator_connect_group(from, name, of, count, timeout_ms, &group);
  };
  EXPECT_EQ(connect(&worker, "x", ranks, 2, kLongMs), CADRE_INVALID_ARGUMENT);
  EXPECT_THAT(cadre_last_error(), HasSubstr("ranks 0, 5"));
  EXPECT_EQ(connect(&worker, "x", ranks, 3, kLongMs), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(connect(&worker, "x", ranks, 0, kLongMs), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(connect(&worker, "x", nullptr, 1, kLongMs), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(connect(&worker, nullptr, ranks, 1, kLongMs), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(connect(nullptr, "x", ranks, 1, kLongMs), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(connect(&worker, "x", ranks, 1, -1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_communicator_connect_group(&worker, "x", ranks, 1, kLongMs, nullptr),
            CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(group, nullptr);
}

TEST(CCommunicatorTest, ConnectErrors) {
  testing::InProcessWorkers workers(2);
  cadre_worker worker = Borrowed(workers.worker(0));
  int marker = 0;
  auto* all = reinterpret_cast<cadre_communicator*>(&marker);
  workers.EndGeneration();
  EXPECT_EQ(cadre_communicator_connect(&worker, "late", kLongMs, &all), CADRE_ABORTED);
  EXPECT_THAT(cadre_last_error(), HasSubstr("generation"));
  EXPECT_EQ(all, nullptr);
  EXPECT_EQ(cadre_communicator_connect(nullptr, "x", 10, &all), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_communicator_connect(&worker, nullptr, 10, &all), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_communicator_connect(&worker, "x", -1, &all), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_communicator_connect(&worker, "x", 10, nullptr), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_communicator_abort(nullptr), CADRE_INVALID_ARGUMENT);
  cadre_communicator_free(nullptr);
}

// Operations that are rejected before they start, or that throw.

constexpr int kBadType = 7, kBadOp = 4;

// Throws std::bad_alloc from every operation.
class PoorCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::shared_ptr<Work> AllReduce(Buffer, Reduction) override { throw std::bad_alloc(); }
  std::shared_ptr<Work> Broadcast(Buffer, int) override { throw std::bad_alloc(); }
  std::shared_ptr<Work> AllGather(Buffer, Buffer) override { throw std::bad_alloc(); }
  std::shared_ptr<Work> Barrier() override { throw std::bad_alloc(); }
  void Abort() override { throw std::bad_alloc(); }
};

// The invalid arguments that every operation can be given.
struct Given {
  cadre_communicator* communicator;
  void* data;
  size_t count;
  int type;
  int op;
  cadre_work** work;
};

struct Operation {
  const char* name;
  bool has_op;
  std::function<cadre_status(const Given&)> call;
};

const std::vector<Operation>& Operations() {
  static const auto& operations = *new std::vector<Operation>{
      {"all_reduce", true,
       [](const Given& given) {
         return cadre_all_reduce(given.communicator, given.data, given.count, given.type, given.op,
                                 given.work);
       }},
      {"reduce", true,
       [](const Given& given) {
         return cadre_reduce(given.communicator, given.data, given.count, given.type, given.op, 0,
                             given.work);
       }},
      {"broadcast", false,
       [](const Given& given) {
         return cadre_broadcast(given.communicator, given.data, given.count, given.type, 0,
                                given.work);
       }},
      {"all_gather", false,
       [](const Given& given) {
         return cadre_all_gather(given.communicator, given.data, given.data, given.count,
                                 given.type, given.work);
       }},
      {"reduce_scatter", true,
       [](const Given& given) {
         return cadre_reduce_scatter(given.communicator, given.data, given.data, given.count,
                                     given.type, given.op, given.work);
       }},
      {"send", false,
       [](const Given& given) {
         return cadre_send(given.communicator, given.data, given.count, given.type, 1, 0,
                           given.work);
       }},
      {"receive", false,
       [](const Given& given) {
         return cadre_receive(given.communicator, given.data, given.count, given.type, 1, 0,
                              given.work);
       }},
  };
  return operations;
}

class CCommunicatorErrorsTest : public ::testing::Test {
 protected:
  // Expects every operation to reject the arguments without creating a work.
  void ExpectRefused(const Operation& operation, const Given& given) {
    EXPECT_EQ(operation.call(given), CADRE_INVALID_ARGUMENT) << operation.name;
    EXPECT_STRNE(cadre_last_error(), "") << operation.name;
    EXPECT_EQ(work_, nullptr) << operation.name;
  }

  cadre_communicator poor_{std::make_unique<PoorCommunicator>()};
  double data_[4] = {};
  cadre_work* work_ = nullptr;
};

TEST_F(CCommunicatorErrorsTest, ArgumentsThatAreRefused) {
  for (const Operation& operation : Operations()) {
    const Given right = {&poor_, data_, 2, CADRE_FLOAT64, CADRE_SUM, &work_};
    Given given = right;
    given.communicator = nullptr;
    ExpectRefused(operation, given);
    given = right;
    given.work = nullptr;
    ExpectRefused(operation, given);
    given = right;
    given.data = nullptr;
    ExpectRefused(operation, given);
    for (const int type : {-1, kBadType}) {
      given = right;
      given.type = type;
      ExpectRefused(operation, given);
    }
    given = right;
    given.count = static_cast<size_t>(-1);
    ExpectRefused(operation, given);
    for (const int op : {-1, kBadOp}) {
      given = right;
      given.op = op;
      if (operation.has_op) ExpectRefused(operation, given);
    }
  }
  EXPECT_EQ(cadre_barrier(nullptr, &work_), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_barrier(&poor_, nullptr), CADRE_INVALID_ARGUMENT);
}

TEST_F(CCommunicatorErrorsTest, NoMemoryIsAStatus) {
  int marker = 0;
  work_ = reinterpret_cast<cadre_work*>(&marker);
  EXPECT_EQ(cadre_all_reduce(&poor_, data_, 2, CADRE_FLOAT64, CADRE_SUM, &work_),
            CADRE_RESOURCE_EXHAUSTED);
  EXPECT_EQ(work_, nullptr);
  EXPECT_EQ(cadre_broadcast(&poor_, data_, 2, CADRE_FLOAT64, 0, &work_), CADRE_RESOURCE_EXHAUSTED);
  EXPECT_EQ(cadre_all_gather(&poor_, data_, data_, 2, CADRE_FLOAT64, &work_),
            CADRE_RESOURCE_EXHAUSTED);
  EXPECT_EQ(cadre_barrier(&poor_, &work_), CADRE_RESOURCE_EXHAUSTED);
  EXPECT_EQ(cadre_communicator_abort(&poor_), CADRE_RESOURCE_EXHAUSTED);
}

// A communicator with one work, which an abort fails.
class OneWorkCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::shared_ptr<Work> AllReduce(Buffer, Reduction) override { return Barrier(); }
  std::shared_ptr<Work> Broadcast(Buffer, int) override { return Barrier(); }
  std::shared_ptr<Work> AllGather(Buffer, Buffer) override { return Barrier(); }
  std::shared_ptr<Work> Barrier() override { return work_; }
  void Abort() override { work_->Complete(AbortedError("as it was told"), {}); }

 private:
  const std::shared_ptr<Work> work_ = std::make_shared<Work>();
};

class CWorkTest : public ::testing::Test {
 protected:
  CWorkTest() { EXPECT_EQ(cadre_barrier(&communicator_, &work_), CADRE_OK); }
  ~CWorkTest() override { cadre_work_free(work_); }

  cadre_communicator communicator_{std::make_unique<OneWorkCommunicator>()};
  cadre_work* work_ = nullptr;
};

TEST_F(CWorkTest, NotYet_ThenDone_AsOftenAsAsked) {
  EXPECT_EQ(cadre_work_done(work_), 0);
  EXPECT_EQ(cadre_work_wait(work_, 0), CADRE_DEADLINE_EXCEEDED);
  work_->work->Complete(UnavailableError("rank 1 is gone"), {});
  EXPECT_EQ(cadre_work_done(work_), 1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(cadre_work_wait(work_, kLongMs), CADRE_UNAVAILABLE);
    EXPECT_STREQ(cadre_last_error(), "rank 1 is gone");
  }
}

TEST_F(CWorkTest, WaitOrAbort_SaysWhatWentWrongFirst_AndLeavesNothingRunning) {
  EXPECT_EQ(cadre_work_wait_or_abort(work_, &communicator_, 1), CADRE_DEADLINE_EXCEEDED);
  EXPECT_THAT(cadre_last_error(), HasSubstr("not done"));
  EXPECT_EQ(cadre_work_done(work_), 1);
  EXPECT_EQ(cadre_work_wait(work_, 0), CADRE_ABORTED);
}

TEST_F(CWorkTest, Errors) {
  EXPECT_EQ(cadre_work_wait(work_, -1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_work_wait(nullptr, 0), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_work_wait_or_abort(nullptr, &communicator_, 0), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_work_wait_or_abort(work_, nullptr, 0), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_work_wait_or_abort(work_, &communicator_, -1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_work_done(work_), 0) << "what was refused aborts nothing";
  EXPECT_EQ(cadre_work_done(nullptr), -1);
  cadre_work_free(nullptr);
}

}  // namespace

}  // namespace cadre::c
