// Operations that are refused before they begin, or that throw.
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "base/status_matchers.h"
#include "cadre.h"
#include "worker_runtime/c/handles.h"

namespace cadre::c {
namespace {

constexpr int kBadType = 7, kBadOp = 4;

// Has no memory, and says so the way C++ does.
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

// The arguments that every operation can have wrong.
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
  // What each operation says to the arguments; none of them gives a work.
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

}  // namespace
}  // namespace cadre::c
