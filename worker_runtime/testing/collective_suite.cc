#include "worker_runtime/testing/collective_suite.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "worker_runtime/collective_check.h"
#include "worker_runtime/element_scaling.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Minutes(2);
constexpr DataType kTypes[] = {DataType::kFloat32,  DataType::kFloat64, DataType::kFloat16,
                               DataType::kBfloat16, DataType::kInt32,   DataType::kInt64,
                               DataType::kUint8};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax, ReduceOp::kMin};

void Write(DataType type, double value, char* to) {
  const float narrow = static_cast<float>(value);
  switch (type) {
    case DataType::kFloat32:
      memcpy(to, &narrow, 4);
      return;
    case DataType::kFloat64:
      memcpy(to, &value, 8);
      return;
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return NarrowFromFloat(type, &narrow, 1, to);
    case DataType::kInt32: {
      const int32_t integer = static_cast<int32_t>(value);
      memcpy(to, &integer, 4);
      return;
    }
    case DataType::kInt64: {
      const int64_t integer = static_cast<int64_t>(value);
      memcpy(to, &integer, 8);
      return;
    }
    case DataType::kUint8:
      *reinterpret_cast<uint8_t*>(to) = static_cast<uint8_t>(value);
      return;
  }
}

double Read(DataType type, const char* from) {
  switch (type) {
    case DataType::kFloat32: {
      float value;
      memcpy(&value, from, 4);
      return value;
    }
    case DataType::kFloat64: {
      double value;
      memcpy(&value, from, 8);
      return value;
    }
    case DataType::kFloat16:
    case DataType::kBfloat16: {
      float value;
      WidenToFloat(type, from, 1, &value);
      return value;
    }
    case DataType::kInt32: {
      int32_t value;
      memcpy(&value, from, 4);
      return value;
    }
    case DataType::kInt64: {
      int64_t value;
      memcpy(&value, from, 8);
      return static_cast<double>(value);
    }
    case DataType::kUint8:
      return *reinterpret_cast<const uint8_t*>(from);
  }
  return 0;
}

// How far a result may be from the float64 one, relative to the sum of the magnitudes.
double Tolerance(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return 1e-6;
    case DataType::kFloat64:
      return 1e-14;
    case DataType::kFloat16:
      return 2e-3;
    case DataType::kBfloat16:
      return 1.6e-2;
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kUint8:
      return 0;
  }
  return 0;
}

// Elements of one rank: the same for everyone who asks.
std::vector<char> Elements(DataType type, size_t count, int rank, uint32_t seed) {
  std::mt19937 random(seed * 131 + static_cast<uint32_t>(rank));
  std::vector<char> data(count * SizeOf(type));
  // Small enough that the sum of eight fits every type.
  std::uniform_int_distribution<int> integers(0, 31);
  std::uniform_real_distribution<double> reals(-4, 4);
  for (size_t i = 0; i < count; ++i) {
    Write(type, IsFloatingPoint(type) ? reals(random) : integers(random),
          data.data() + i * SizeOf(type));
  }
  return data;
}

double FactorOf(int rank) { return 0.25 * (rank + 1); }

// Element `i` of what a reduction of everybody's elements must be.
struct Expected {
  double value = 0;
  double magnitude = 0;  // what errors are relative to
};

Expected Reference(const std::vector<std::vector<char>>& inputs, DataType type, ReduceOp op,
                   bool multiplies, size_t i) {
  Expected expected;
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    double value = Read(type, inputs[rank].data() + i * SizeOf(type));
    if (multiplies) value *= FactorOf(static_cast<int>(rank));
    expected.magnitude += std::abs(value);
    if (rank == 0) {
      expected.value = value;
    } else if (op == ReduceOp::kMax) {
      expected.value = std::max(expected.value, value);
    } else if (op == ReduceOp::kMin) {
      expected.value = std::min(expected.value, value);
    } else {
      expected.value += value;
    }
  }
  if (op == ReduceOp::kAverage) expected.value /= static_cast<double>(inputs.size());
  return expected;
}

std::vector<std::vector<char>> Everybodys(DataType type, size_t count, int ranks, uint32_t seed) {
  std::vector<std::vector<char>> inputs;
  for (int rank = 0; rank < ranks; ++rank) inputs.push_back(Elements(type, count, rank, seed));
  return inputs;
}

// Compares `count` elements at `data` with the reference from element `first` on.
void ExpectReduced(const char* data, size_t count, const std::vector<std::vector<char>>& inputs,
                   DataType type, Reduction reduction, bool multiplies, size_t first) {
  for (size_t i = 0; i < count; ++i) {
    const Expected expected = Reference(inputs, type, reduction.op, multiplies, first + i);
    ASSERT_NEAR(Read(type, data + i * SizeOf(type)), expected.value,
                Tolerance(type) * expected.magnitude)
        << Name(reduction.op) << " of " << Name(type) << ", element " << first + i;
  }
}

// Every rank's bytes are those of rank 0.
void ExpectSameEverywhere(Communicator& communicator, const std::vector<char>& data) {
  uint64_t hash = 1469598103934665603ull;
  for (const char byte : data) hash = (hash ^ static_cast<uint8_t>(byte)) * 1099511628211ull;
  std::vector<int64_t> own = {static_cast<int64_t>(hash)}, all(communicator.size());
  ASSERT_OK(
      communicator
          .AllGather({own.data(), 1, DataType::kInt64}, {all.data(), all.size(), DataType::kInt64})
          ->Wait(kLong));
  EXPECT_THAT(all, ::testing::Each(all[0]));
}

std::vector<size_t> SomeSizes(uint32_t seed) {
  std::mt19937 random(seed);
  return {0, 1, 7, 64 + random() % 64, 1000 + random() % 5000};
}

bool IsAllowed(DataType type, ReduceOp op) {
  return op != ReduceOp::kAverage || IsFloatingPoint(type);
}

}  // namespace

void CollectiveSuite::WithRanks(const std::function<void(Communicator&)>& body) {
  InProcessWorkers workers(GetParam().ranks, GetParam().nodes);
  workers.Run([&](Worker& worker) {
    auto communicator = GetParam().connect(worker, {"suite", kLong});
    ASSERT_OK(communicator);
    body(**communicator);
    // Nobody goes before all have what they came for.
    EXPECT_OK((*communicator)->Barrier()->Wait(kLong));
  });
}

std::vector<SuiteCase> AllRanksOf(const std::string& name, const ConnectFunction& connect,
                                  int nodes) {
  std::vector<SuiteCase> cases;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    cases.push_back({absl::StrCat(name, ranks), connect, ranks, std::min(nodes, ranks)});
  }
  return cases;
}

TEST_P(CollectiveSuite, AllReduceAndReduce) {
  WithRanks([](Communicator& communicator) {
    const int rank = communicator.rank(), ranks = communicator.size();
    uint32_t seed = 1;
    for (const DataType type : kTypes) {
      for (const ReduceOp op : kOps) {
        if (!IsAllowed(type, op)) continue;
        for (const size_t count : SomeSizes(seed)) {
          const bool multiplies = IsFloatingPoint(type) && ++seed % 2 == 0;
          const Reduction reduction(op, multiplies ? FactorOf(rank) : 1);
          const auto inputs = Everybodys(type, count, ranks, seed);
          std::vector<char> all = inputs[rank], one = inputs[rank];
          const int root = static_cast<int>(seed) % ranks;
          ASSERT_OK(communicator.AllReduce({all.data(), count, type}, reduction)->Wait(kLong));
          ASSERT_OK(communicator.Reduce({one.data(), count, type}, reduction, root)->Wait(kLong));
          ExpectReduced(all.data(), count, inputs, type, reduction, multiplies, 0);
          ExpectSameEverywhere(communicator, all);
          if (rank == root) {
            ExpectReduced(one.data(), count, inputs, type, reduction, multiplies, 0);
          } else {
            EXPECT_TRUE(one == inputs[rank]) << "changed on a rank that is not the root";
          }
        }
      }
    }
  });
}

TEST_P(CollectiveSuite, ReduceScatter) {
  WithRanks([](Communicator& communicator) {
    const int rank = communicator.rank(), ranks = communicator.size();
    uint32_t seed = 100;
    for (const DataType type : kTypes) {
      for (const ReduceOp op : kOps) {
        if (!IsAllowed(type, op)) continue;
        for (const size_t count : SomeSizes(++seed)) {
          const auto inputs = Everybodys(type, count * ranks, ranks, seed);
          std::vector<char> input = inputs[rank], output(count * SizeOf(type));
          ASSERT_OK(communicator
                        .ReduceScatter({input.data(), count * ranks, type},
                                       {output.data(), count, type}, op)
                        ->Wait(kLong));
          ExpectReduced(output.data(), count, inputs, type, op, false, rank * count);
        }
      }
    }
  });
}

TEST_P(CollectiveSuite, HugeBuffersThroughAllocatedAndOrdinaryMemory) {
  constexpr size_t kCount = 2500003;  // 10 MB
  WithRanks([](Communicator& communicator) {
    const int rank = communicator.rank(), ranks = communicator.size();
    if (ranks > 4) return;  // the same code with more memory
    auto memory = communicator.AllocateBuffer(kCount * sizeof(float));
    ASSERT_OK(memory);
    float* const allocated = static_cast<float*>(memory->get());
    std::vector<float> ordinary(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      allocated[i] = ordinary[i] = static_cast<float>((i * 7 + rank * 13) % 101);
    }
    auto first = communicator.AllReduce({allocated, kCount, DataType::kFloat32}, ReduceOp::kSum);
    auto second =
        communicator.AllReduce({ordinary.data(), kCount, DataType::kFloat32}, ReduceOp::kAverage);
    ASSERT_OK(first->Wait(kLong));
    ASSERT_OK(second->Wait(kLong));
    for (size_t i = 0; i < kCount; ++i) {
      float sum = 0;
      for (int peer = 0; peer < ranks; ++peer) sum += static_cast<float>((i * 7 + peer * 13) % 101);
      ASSERT_EQ(allocated[i], sum) << i;
      ASSERT_NEAR(ordinary[i], sum / ranks, 1e-4) << i;
    }
    ASSERT_OK(communicator.Broadcast({allocated, kCount, DataType::kFloat32}, 0)->Wait(kLong));
    ASSERT_OK(communicator.Broadcast({ordinary.data(), kCount, DataType::kFloat32}, ranks - 1)
                  ->Wait(kLong));
  });
}

TEST_P(CollectiveSuite, BroadcastFromEveryRoot) {
  WithRanks([](Communicator& communicator) {
    for (int root = 0; root < communicator.size(); ++root) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{1000003}}) {
        const auto expected = Elements(DataType::kUint8, count, root, 7);
        std::vector<char> data =
            communicator.rank() == root ? expected : std::vector<char>(count, 'x');
        ASSERT_OK(
            communicator.Broadcast({data.data(), count, DataType::kUint8}, root)->Wait(kLong));
        ASSERT_TRUE(data == expected) << "from " << root << ", " << count;
      }
    }
  });
}

TEST_P(CollectiveSuite, AllGatherOfEqualAndVaryingParts) {
  WithRanks([](Communicator& communicator) {
    const int rank = communicator.rank(), ranks = communicator.size();
    for (const size_t unit : {size_t{0}, size_t{1}, size_t{333}, size_t{150001}}) {
      const DataType type = DataType::kInt64;
      std::vector<char> equal, varying;
      std::vector<size_t> counts;
      for (int peer = 0; peer < ranks; ++peer) {
        const auto part = Elements(type, unit, peer, 3);
        equal.insert(equal.end(), part.begin(), part.end());
        // Every third rank has nothing.
        counts.push_back(peer % 3 == 1 ? 0 : unit * (peer + 1) / ranks);
        varying.insert(varying.end(), part.begin(), part.begin() + counts.back() * 8);
      }
      std::vector<char> input = Elements(type, unit, rank, 3), output(equal.size());
      ASSERT_OK(
          communicator.AllGather({input.data(), unit, type}, {output.data(), unit * ranks, type})
              ->Wait(kLong));
      EXPECT_TRUE(output == equal);
      output.assign(varying.size(), 0);
      ASSERT_OK(communicator
                    .AllGatherVarying({input.data(), counts[rank], type},
                                      {output.data(), output.size() / 8, type}, counts)
                    ->Wait(kLong));
      EXPECT_TRUE(output == varying) << unit;
    }
  });
}

TEST_P(CollectiveSuite, MessagesGoAroundTheRing) {
  WithRanks([](Communicator& communicator) {
    const int rank = communicator.rank(), ranks = communicator.size();
    if (ranks == 1) return;
    const int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    std::vector<std::shared_ptr<Work>> works;
    std::vector<std::vector<char>> sent, received;
    const std::vector<size_t> counts = {0, 1, 4096, 700001};
    for (const size_t count : counts) {
      sent.push_back(Elements(DataType::kUint8, count, rank, 5));
      received.push_back(std::vector<char>(count));
    }
    for (size_t i = 0; i < counts.size(); ++i) {
      const int tag = static_cast<int>(i);
      works.push_back(communicator.Send({sent[i].data(), counts[i], DataType::kUint8}, to, tag));
      works.push_back(
          communicator.Receive({received[i].data(), counts[i], DataType::kUint8}, from, tag));
    }
    // Beside the order of messages.
    works.push_back(communicator.Barrier());
    for (auto& work : works) ASSERT_OK(work->Wait(kLong));
    for (size_t i = 0; i < counts.size(); ++i) {
      EXPECT_TRUE(received[i] == Elements(DataType::kUint8, counts[i], from, 5)) << i;
    }
  });
}

TEST_P(CollectiveSuite, GroupsByColorAndKey) {
  WithRanks([](Communicator& communicator) {
    const int rank = communicator.rank(), ranks = communicator.size();
    // Odd and even, in reverse order; the last rank takes no part.
    const bool takes_part = ranks == 1 || rank + 1 < ranks;
    auto group = communicator.Split(takes_part ? rank % 2 : -1, -rank);
    ASSERT_OK(group);
    if (!takes_part) {
      EXPECT_EQ(*group, nullptr);
      return;
    }
    const int members = ranks == 1 ? 1 : (ranks - 1 - rank % 2 + 1) / 2;
    EXPECT_EQ((*group)->size(), members);
    int64_t own = rank;
    std::vector<int64_t> all(members), expected;
    for (int peer = ranks == 1 ? 0 : ranks - 2; peer >= 0; --peer) {
      if (peer % 2 == rank % 2) expected.push_back(peer);
    }
    ASSERT_OK(
        (*group)
            ->AllGather({&own, 1, DataType::kInt64}, {all.data(), all.size(), DataType::kInt64})
            ->Wait(kLong));
    EXPECT_EQ(all, expected);
    EXPECT_OK((*group)->Barrier()->Wait(kLong));
  });
}

TEST_P(CollectiveSuite, IntegersAreNotAveraged) {
  WithRanks([](Communicator& communicator) {
    auto group = communicator.Split(0, 0);
    ASSERT_OK(group);
    int32_t value = 1;
    EXPECT_THAT((*group)->AllReduce({&value, 1, DataType::kInt32}, ReduceOp::kAverage)->Wait(kLong),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("int32")));
  });
}

}  // namespace cadre
