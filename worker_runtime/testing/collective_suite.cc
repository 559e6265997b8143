#include "worker_runtime/testing/collective_suite.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "worker_runtime/testing/in_process_workers.h"
#include "worker_runtime/testing/reference_reduction.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(2);
constexpr DataType kTypes[] = {DataType::kFloat32,  DataType::kFloat64, DataType::kFloat16,
                               DataType::kBfloat16, DataType::kInt32,   DataType::kInt64,
                               DataType::kUint8};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax, ReduceOp::kMin};

// Checks that every rank's bytes equal those of rank 0.
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
    // No rank may leave before all have finished.
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

// One size of one type and operation, as one rank sees it.
struct ReductionCase {
  ReductionCase(DataType type, ReduceOp op, size_t count, uint32_t seed, int rank, int ranks)
      : multiplies(IsFloatingPoint(type) && seed % 2 == 0),
        reduction(op, multiplies ? FactorOf(rank) : 1),
        root(static_cast<int>(seed) % ranks),
        count(count),
        inputs(ElementsOfAll(type, count, ranks, seed)),
        all(inputs[rank]),
        one(inputs[rank]) {}

  bool multiplies;
  Reduction reduction;
  int root;
  size_t count;
  std::vector<std::vector<char>> inputs;
  std::vector<char> all, one;
};

TEST_P(CollectiveSuite, AllReduceAndReduce) {
  WithRanks([](Communicator& communicator) {
    const int rank = communicator.rank(), ranks = communicator.size();
    uint32_t seed = 1;
    std::vector<char> results;
    for (const DataType type : kTypes) {
      for (const ReduceOp op : kOps) {
        if (!IsAllowed(type, op)) continue;
        std::vector<ReductionCase> cases;
        for (const size_t count : SomeSizes(seed)) {
          cases.emplace_back(type, op, count, ++seed, rank, ranks);
        }
        std::vector<std::shared_ptr<Work>> works;
        for (ReductionCase& one : cases) {
          works.push_back(communicator.AllReduce({one.all.data(), one.count, type}, one.reduction));
          works.push_back(
              communicator.Reduce({one.one.data(), one.count, type}, one.reduction, one.root));
        }
        for (const auto& work : works) ASSERT_OK(work->Wait(kLong));
        for (const ReductionCase& one : cases) {
          ExpectReduced(one.all.data(), one.count, one.inputs, type, one.reduction, one.multiplies,
                        0);
          results.insert(results.end(), one.all.begin(), one.all.end());
          if (rank == one.root) {
            ExpectReduced(one.one.data(), one.count, one.inputs, type, one.reduction,
                          one.multiplies, 0);
          } else {
            EXPECT_TRUE(one.one == one.inputs[rank]) << "changed on a rank that is not the root";
          }
        }
      }
    }
    ExpectSameEverywhere(communicator, results);
  });
}

TEST_P(CollectiveSuite, ReduceScatter) {
  WithRanks([](Communicator& communicator) {
    const int rank = communicator.rank(), ranks = communicator.size();
    uint32_t seed = 100;
    for (const DataType type : kTypes) {
      for (const ReduceOp op : kOps) {
        if (!IsAllowed(type, op)) continue;
        const std::vector<size_t> sizes = SomeSizes(++seed);
        std::vector<std::vector<std::vector<char>>> inputs;
        std::vector<std::vector<char>> outputs;
        std::vector<std::shared_ptr<Work>> works;
        for (const size_t count : sizes) {
          inputs.push_back(ElementsOfAll(type, count * ranks, ranks, seed));
          outputs.emplace_back(count * SizeOf(type));
          works.push_back(
              communicator.ReduceScatter({inputs.back()[rank].data(), count * ranks, type},
                                         {outputs.back().data(), count, type}, op));
        }
        for (size_t i = 0; i < sizes.size(); ++i) {
          ASSERT_OK(works[i]->Wait(kLong));
          ExpectReduced(outputs[i].data(), sizes[i], inputs[i], type, op, false, rank * sizes[i]);
        }
      }
    }
  });
}

TEST_P(CollectiveSuite, ReduceScatterVarying) {
  WithRanks([](Communicator& communicator) {
    const int rank = communicator.rank(), ranks = communicator.size();
    uint32_t seed = 200;
    for (const DataType type : kTypes) {
      for (const bool multiplies : {false, true}) {
        if (multiplies && !IsFloatingPoint(type)) continue;
        // Rank 0 sends nothing, and the last rank more than one piece.
        std::vector<size_t> counts, begins = {0};
        for (int peer = 0; peer < ranks; ++peer) {
          counts.push_back(peer == 0 && ranks > 1 ? 0 : size_t{1} << (4 * peer % 20));
          begins.push_back(begins.back() + counts.back());
        }
        const auto inputs = ElementsOfAll(type, begins.back(), ranks, ++seed);
        std::vector<char> input = inputs[rank], output(counts[rank] * SizeOf(type));
        const Reduction reduction(ReduceOp::kSum, multiplies ? FactorOf(rank) : 1);
        ASSERT_OK(communicator
                      .ReduceScatterVarying({input.data(), begins.back(), type},
                                            {output.data(), counts[rank], type}, counts, reduction)
                      ->Wait(kLong));
        EXPECT_TRUE(input == inputs[rank]) << "the input has changed";
        ExpectReduced(output.data(), counts[rank], inputs, type, reduction, multiplies,
                      begins[rank]);
      }
    }
  });
}

// The values are whole numbers, whose sums are exact in float32.
float HugeElement(size_t i, int rank) { return static_cast<float>((i * 7 + rank * 13) % 101); }

// Larger than every piece into which a backend cuts buffers, and not a multiple of any.
constexpr size_t kHugeCount = 5500003;  // 22 MB

TEST_P(CollectiveSuite, HugeBuffersThroughAllocatedAndOrdinaryMemory) {
  if (GetParam().ranks != 2 && GetParam().ranks != 3) return;  // the same code with more memory
  WithRanks([](Communicator& communicator) {
    const int rank = communicator.rank(), ranks = communicator.size();
    auto memory = communicator.AllocateBuffer(kHugeCount * sizeof(float));
    ASSERT_OK(memory);
    float* const allocated = static_cast<float*>(memory->get());
    std::vector<float> ordinary(kHugeCount), sum(kHugeCount);
    for (size_t i = 0; i < kHugeCount; ++i) {
      allocated[i] = ordinary[i] = HugeElement(i, rank);
      for (int peer = 0; peer < ranks; ++peer) sum[i] += HugeElement(i, peer);
    }
    const Buffer own = {ordinary.data(), kHugeCount, DataType::kFloat32};
    auto first =
        communicator.AllReduce({allocated, kHugeCount, DataType::kFloat32}, ReduceOp::kSum);
    auto second = communicator.AllReduce(own, ReduceOp::kAverage);
    ASSERT_OK(first->Wait(kLong));
    ASSERT_OK(second->Wait(kLong));
    for (size_t i = 0; i < kHugeCount; ++i) {
      ASSERT_EQ(allocated[i], sum[i]) << i;
      ASSERT_NEAR(ordinary[i], sum[i] / ranks, 1e-4) << i;
    }
    for (size_t i = 0; i < kHugeCount; ++i) ordinary[i] = HugeElement(i, rank);
    ASSERT_OK(communicator.Reduce(own, ReduceOp::kSum, ranks - 1)->Wait(kLong));
    if (rank == ranks - 1) {
      EXPECT_TRUE(ordinary == sum);
    }
    ASSERT_OK(communicator.Broadcast(own, ranks - 1)->Wait(kLong));
    EXPECT_TRUE(ordinary == sum);
    ASSERT_OK(communicator.Broadcast({allocated, kHugeCount, DataType::kFloat32}, 0)->Wait(kLong));
  });
}

// Buffers are allocated while earlier operations are still pending, on some ranks more than on
// others.
TEST_P(CollectiveSuite, BuffersAreAllocatedInTurn) {
  WithRanks([](Communicator& communicator) {
    constexpr int kRounds = 10, kBefore = 40;
    const int ranks = communicator.size();
    for (int round = 0; round < kRounds; ++round) {
      std::vector<int64_t> values(kBefore, communicator.rank() + 1);
      std::vector<std::shared_ptr<Work>> works;
      for (int64_t& value : values) {
        works.push_back(communicator.AllReduce({&value, 1, DataType::kInt64}, ReduceOp::kSum));
      }
      const auto memory = communicator.AllocateBuffer(sizeof(int64_t));
      EXPECT_OK(memory);
      for (const auto& work : works) EXPECT_OK(work->Wait(kLong));
      ASSERT_OK(memory);
      EXPECT_THAT(values, ::testing::Each(ranks * (ranks + 1) / 2)) << round;
      auto* const allocated = static_cast<int64_t*>(memory->get());
      EXPECT_EQ(*allocated, 0);
      *allocated = communicator.rank();
      ASSERT_OK(
          communicator.AllReduce({allocated, 1, DataType::kInt64}, ReduceOp::kMax)->Wait(kLong));
      EXPECT_EQ(*allocated, ranks - 1);
    }
  });
}

TEST_P(CollectiveSuite, HugeBuffersInParts) {
  if (GetParam().ranks != 3) return;
  WithRanks([](Communicator& communicator) {
    const int rank = communicator.rank(), ranks = communicator.size();
    constexpr size_t kPart = kHugeCount / 3;
    std::vector<float> input(kPart * ranks), part(kPart), all(kPart * ranks);
    for (size_t i = 0; i < input.size(); ++i) input[i] = HugeElement(i, rank);
    const Buffer own = {part.data(), kPart, DataType::kFloat32};
    ASSERT_OK(
        communicator
            .ReduceScatter({input.data(), input.size(), DataType::kFloat32}, own, ReduceOp::kSum)
            ->Wait(kLong));
    ASSERT_OK(
        communicator.AllGather(own, {all.data(), all.size(), DataType::kFloat32})->Wait(kLong));
    for (size_t i = 0; i < all.size(); ++i) {
      float sum = 0;
      for (int peer = 0; peer < ranks; ++peer) sum += HugeElement(i, peer);
      ASSERT_EQ(all[i], sum) << i;
    }
  });
}

TEST_P(CollectiveSuite, BroadcastFromEveryRoot) {
  WithRanks([](Communicator& communicator) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{1000003}}) {
      std::vector<std::vector<char>> data;
      std::vector<std::shared_ptr<Work>> works;
      for (int root = 0; root < communicator.size(); ++root) {
        data.push_back(communicator.rank() == root ? Elements(DataType::kUint8, count, root, 7)
                                                   : std::vector<char>(count, 'x'));
        works.push_back(communicator.Broadcast({data[root].data(), count, DataType::kUint8}, root));
      }
      for (int root = 0; root < communicator.size(); ++root) {
        ASSERT_OK(works[root]->Wait(kLong));
        ASSERT_TRUE(data[root] == Elements(DataType::kUint8, count, root, 7))
            << "from " << root << ", " << count;
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
        // Every third rank contributes nothing.
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
    // A barrier does not take part in the order of messages.
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
    // Odd and even ranks form groups, in reverse order; the last rank takes no part.
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
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("int32")));
  });
}

}  // namespace cadre::testing
