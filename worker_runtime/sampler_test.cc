#include "cadre/sampler.h"

#include <stdio.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int64_t> Take(SamplerOptions options, int rank, int64_t epoch = 0) {
  options.rank = rank;
  const auto sampler = DistributedSampler::Create(options);
  EXPECT_OK(sampler);
  std::vector<int64_t> samples = sampler->Epoch(epoch);
  EXPECT_EQ(static_cast<int64_t>(samples.size()), sampler->size());
  return samples;
}

SamplerOptions Options(int64_t samples, int world_size) {
  SamplerOptions options;
  options.samples = samples;
  options.world_size = world_size;
  return options;
}

// The test vectors are from PyTorch 1.13.
TEST(SamplerTest, InOrder) {
  SamplerOptions options = Options(10, 4);
  options.shuffle = false;
  EXPECT_THAT(Take(options, 0), ElementsAre(0, 4, 8));
  EXPECT_THAT(Take(options, 1), ElementsAre(1, 5, 9));
  EXPECT_THAT(Take(options, 2), ElementsAre(2, 6, 0));
  EXPECT_THAT(Take(options, 3), ElementsAre(3, 7, 1));
  options.drop_last = true;
  EXPECT_THAT(Take(options, 0), ElementsAre(0, 4));
  EXPECT_THAT(Take(options, 1), ElementsAre(1, 5));
  EXPECT_THAT(Take(options, 2), ElementsAre(2, 6));
  EXPECT_THAT(Take(options, 3), ElementsAre(3, 7));
}

TEST(SamplerTest, FewerSamplesThanRanks) {
  SamplerOptions options = Options(3, 8);
  options.shuffle = false;
  std::vector<int64_t> all;
  for (int rank = 0; rank < 8; ++rank) {
    ASSERT_EQ(Take(options, rank).size(), 1u);
    all.push_back(Take(options, rank)[0]);
  }
  EXPECT_THAT(all, ElementsAre(0, 1, 2, 0, 1, 2, 0, 1));
  options.drop_last = true;
  EXPECT_THAT(Take(options, 0), IsEmpty());
}

TEST(SamplerTest, Shuffled) {
  const SamplerOptions options = Options(10, 3);
  EXPECT_THAT(Take(options, 0), ElementsAre(4, 5, 0, 2));
  EXPECT_THAT(Take(options, 1), ElementsAre(1, 3, 8, 4));
  EXPECT_THAT(Take(options, 2), ElementsAre(7, 9, 6, 1));
  EXPECT_THAT(Take(options, 0, 1), ElementsAre(5, 2, 9, 4));
  EXPECT_THAT(Take(options, 1, 1), ElementsAre(6, 0, 3, 5));
  EXPECT_THAT(Take(options, 2, 1), ElementsAre(1, 8, 7, 6));
}

TEST(SamplerTest, SeedAndEpochAddUp) {
  SamplerOptions options = Options(100, 3);
  options.seed = 1;
  const std::vector<int64_t> one = Take(options, 1, 0);
  options.seed = 0;
  EXPECT_EQ(Take(options, 1, 1), one);
  EXPECT_NE(Take(options, 1, 0), one);
}

TEST(SamplerTest, OnlyTheLow32BitsOfTheSeedCount) {
  EXPECT_EQ(RandomPermutation(50, (uint64_t{3} << 32) + 5), RandomPermutation(50, 5));
}

TEST(SamplerTest, AnEmptyDataSetIsEmptyForAll) {
  EXPECT_THAT(Take(Options(0, 3), 2), IsEmpty());
  EXPECT_THAT(RandomPermutation(0, 0), IsEmpty());
  EXPECT_THAT(RandomPermutation(1, 0), ElementsAre(0));
}

TEST(SamplerTest, RefusesWhatMakesNoSense) {
  SamplerOptions options = Options(10, 3);
  options.rank = 3;
  EXPECT_THAT(DistributedSampler::Create(options),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("rank 3 of 3")));
  EXPECT_THAT(DistributedSampler::Create(Options(-1, 3)),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("-1 samples")));
  EXPECT_OK(DistributedSampler::Create(Options(kMaxShuffledSamples, 3)));
  options = Options(kMaxShuffledSamples + 1, 3);
  EXPECT_THAT(DistributedSampler::Create(options),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("cannot shuffle")));
  options.shuffle = false;
  EXPECT_OK(DistributedSampler::Create(options));
}

TEST(EvaluationShardTest, EverySampleIsTakenOnce) {
  for (const int64_t samples : {0, 1, 5, 7, 100, 101}) {
    for (const int world_size : {1, 2, 3, 8}) {
      int64_t next = 0;
      for (int rank = 0; rank < world_size; ++rank) {
        const auto shard = ShardForEvaluation(samples, world_size, rank);
        ASSERT_OK(shard);
        EXPECT_EQ(shard->begin, next);
        EXPECT_LE(shard->end - shard->begin, samples / world_size + 1);
        EXPECT_GE(shard->end - shard->begin, samples / world_size);
        next = shard->end;
      }
      EXPECT_EQ(next, samples);
    }
  }
  EXPECT_THAT(ShardForEvaluation(5, 2, 2), StatusIs(StatusCode::kInvalidArgument));
}

// One line of output per case: the samples of rank 0, 1, ... one after the other.
constexpr char kTorchProgram[] = R"(
import sys
try:
    import torch
    from torch.utils.data.distributed import DistributedSampler
except ImportError:
    sys.exit(77)
for line in sys.argv[1].split(";"):
    n, world, seed, epoch, drop = map(int, line.split(","))
    out = []
    for rank in range(world):
        s = DistributedSampler(range(n), world, rank, True, seed, bool(drop))
        s.set_epoch(epoch)
        out += list(s)
    print(",".join(map(str, out)))
)";
constexpr int kTorchIsMissing = 77;

struct Case {
  int64_t samples;
  int world_size;
  uint64_t seed;
  int64_t epoch;
  bool drop_last;
};

TEST(SamplerTest, EqualsPyTorch) {
  std::vector<Case> cases;
  for (const int64_t samples : {1, 2, 623, 624, 625, 4097, 60000}) {
    for (const int world_size : {1, 3, 4}) {
      for (const bool drop_last : {false, true}) {
        cases.push_back({samples, world_size, uint64_t(samples * 31 + world_size), 2, drop_last});
      }
    }
  }
  cases.push_back({1000, 2, 0xffffffffu, 5, false});
  const std::string arguments = absl::StrJoin(cases, ";", [](std::string* out, const Case& c) {
    absl::StrAppend(out, c.samples, ",", c.world_size, ",", c.seed, ",", c.epoch, ",",
                    int{c.drop_last});
  });
  FILE* torch =
      popen(absl::StrCat("/usr/bin/python3 -c '", kTorchProgram, "' '", arguments, "' 2>/dev/null")
                .c_str(),
            "r");
  ASSERT_NE(torch, nullptr);
  std::string output;
  char buffer[65536];
  size_t bytes;
  while ((bytes = fread(buffer, 1, sizeof(buffer), torch)) > 0) output.append(buffer, bytes);
  const int status = pclose(torch);
  if (WIFEXITED(status) && (WEXITSTATUS(status) == kTorchIsMissing || WEXITSTATUS(status) == 127)) {
    GTEST_SKIP() << "python3-torch is not installed";
  }
  ASSERT_EQ(status, 0);

  std::string expected;
  for (const Case& c : cases) {
    SamplerOptions options = Options(c.samples, c.world_size);
    options.seed = c.seed;
    options.drop_last = c.drop_last;
    std::vector<int64_t> all;
    for (int rank = 0; rank < c.world_size; ++rank) {
      const std::vector<int64_t> mine = Take(options, rank, c.epoch);
      all.insert(all.end(), mine.begin(), mine.end());
    }
    absl::StrAppend(&expected, absl::StrJoin(all, ","), "\n");
  }
  EXPECT_TRUE(output == expected) << "PyTorch prints " << output.substr(0, 2000);
}

// All samples that `world` ranks take in one step; advances the cursor.
std::vector<int64_t> Step(EpochCursor& cursor, int world, int64_t batch) {
  std::vector<int64_t> taken;
  for (int rank = 0; rank < world; ++rank) {
    const std::vector<int64_t> mine = cursor.Next(rank, world, batch);
    EXPECT_LE(static_cast<int64_t>(mine.size()), batch);
    taken.insert(taken.end(), mine.begin(), mine.end());
  }
  cursor.Advance(world, batch);
  return taken;
}

TEST(EpochCursorTest, EachSampleIsTakenOnce_AlsoWhenTheWorldChanges) {
  for (const int64_t samples : {0, 1, 7, 96, 97, 1000}) {
    auto cursor = EpochCursor::Create(samples, /*shuffle=*/true, /*seed=*/3);
    ASSERT_OK(cursor);
    const int worlds[] = {4, 3, 4, 1, 7};
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      cursor->MoveTo(epoch, 0);
      std::vector<int64_t> taken;
      for (int step = 0; !cursor->AtEnd(); ++step) {
        const std::vector<int64_t> these = Step(*cursor, worlds[step % 5], 5);
        EXPECT_FALSE(these.empty());
        taken.insert(taken.end(), these.begin(), these.end());
        EXPECT_EQ(cursor->taken(), static_cast<int64_t>(taken.size()));
      }
      std::sort(taken.begin(), taken.end());
      for (int64_t i = 0; i < samples; ++i) ASSERT_EQ(taken[i], i);
      EXPECT_EQ(static_cast<int64_t>(taken.size()), samples);
    }
  }
}

TEST(EpochCursorTest, InAWorldThatStays_TheSamplesAreADistributedSamplers) {
  SamplerOptions options = Options(96, 3);
  options.seed = 5;
  auto cursor = EpochCursor::Create(96, /*shuffle=*/true, /*seed=*/5);
  ASSERT_OK(cursor);
  cursor->MoveTo(2, 0);
  std::vector<std::vector<int64_t>> taken(3);
  while (!cursor->AtEnd()) {
    for (int rank = 0; rank < 3; ++rank) {
      const std::vector<int64_t> mine = cursor->Next(rank, 3, 8);
      taken[rank].insert(taken[rank].end(), mine.begin(), mine.end());
    }
    cursor->Advance(3, 8);
  }
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(taken[rank], Take(options, rank, 2));
}

TEST(EpochCursorTest, GoesOnWhereAnotherOneStood) {
  auto one = EpochCursor::Create(100, true, 1), other = EpochCursor::Create(100, true, 1);
  ASSERT_OK(one);
  ASSERT_OK(other);
  one->MoveTo(1, 0);
  Step(*one, 4, 4);
  other->MoveTo(one->epoch(), one->taken());
  EXPECT_EQ(other->Next(1, 3, 4), one->Next(1, 3, 4));
}

TEST(EpochCursorTest, AtTheEndARankMayHaveNothing) {
  auto cursor = EpochCursor::Create(5, /*shuffle=*/false, 0);
  ASSERT_OK(cursor);
  Step(*cursor, 2, 2);
  EXPECT_THAT(cursor->Next(0, 2, 2), ElementsAre(4));
  EXPECT_THAT(cursor->Next(1, 2, 2), IsEmpty());
}

TEST(EpochCursorTest, RefusesWhatMakesNoSense) {
  EXPECT_THAT(EpochCursor::Create(-1, true, 0), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(EpochCursor::Create(kMaxShuffledSamples + 1, true, 0),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("cannot shuffle")));
}

}  // namespace
}  // namespace cadre
