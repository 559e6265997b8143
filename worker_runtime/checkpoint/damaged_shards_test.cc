// Sharded checkpoints of which something is missing or damaged.
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/checkpoint.h"
#include "cadre/sharded_checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/checkpoint/durable_file.h"
#include "worker_runtime/checkpoint/sharded_state_for_test.h"
#include "worker_runtime/checkpoint/state_index.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::InProcessWorkers;
using testing::RankValues;

std::string ContentOf(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

class DamagedShardsTest : public testing::ShardsTest {
 protected:
  std::unique_ptr<ShardedCheckpoint> Open(Worker& worker) const {
    ShardedCheckpointOptions options;
    options.timeout = kLong;
    auto opened = ShardedCheckpoint::Open(worker, path(), options);
    EXPECT_OK(opened);
    return *std::move(opened);
  }
  void SaveAll(const std::vector<int64_t>& steps) const {
    InProcessWorkers workers(4);
    workers.Run([&](Worker& worker) {
      const auto checkpoint = Open(worker);
      RankValues values(worker.rank(), worker.world_size());
      for (const int64_t step : steps) {
        values.Step(step);
        EXPECT_OK(checkpoint->Save(step, values.State()));
      }
      EXPECT_OK(checkpoint->Wait());
    });
  }
  std::string Folder(int64_t step) const { return path() + "/" + Name(step); }
  static std::string Name(int64_t step) { return CheckpointDirectory::Name(step, 1); }
  // Applies `change` to the file. If it is `data`, the checksum beside it becomes that of the
  // changed content.
  void Change(const std::string& file, const std::function<void(std::string*)>& change) const {
    std::string content = ContentOf(file);
    change(&content);
    ASSERT_OK(checkpoint::WriteAndSync(file, content));
    if (fs::path(file).filename() != "data") return;
    const CheckpointDirectory elsewhere(path() + "_elsewhere");
    const auto write = [&](const std::string& to) { return checkpoint::WriteAndSync(to, content); };
    ASSERT_OK(elsewhere.Save(2, 1, write, [] { return OkStatus(); }));
    fs::copy(elsewhere.directory() + "/" + Name(2) + "/manifest", Folder(2) + "/manifest",
             fs::copy_options::overwrite_existing);
    fs::remove_all(elsewhere.directory());
  }
  // Expects that step 1 is used and that all ranks, whatever their number, get the reasons.
  void ExpectFormer(const std::vector<std::string>& why) const {
    for (const int ranks : {1, 3, 4}) {
      InProcessWorkers workers(ranks);
      workers.Run([&](Worker& worker) {
        const auto latest = Open(worker)->Latest();
        ASSERT_OK(latest);
        ASSERT_TRUE(latest->has_value());
        EXPECT_EQ((*latest)->shards.step(), 1);
        RankValues(worker.rank(), ranks).ExpectSaved((*latest)->shards);
        for (const std::string& text : why) EXPECT_THAT((*latest)->warning, HasSubstr(text));
        EXPECT_THAT((*latest)->warning, HasSubstr("; step 1 is used instead"));
        EXPECT_EQ((*latest)->warning.find('\n'), std::string::npos);
      });
    }
  }
  template <typename Matcher>
  void ExpectAllFail(const Matcher& matcher) const {
    InProcessWorkers workers(3);
    workers.Run([&](Worker& worker) { EXPECT_THAT(Open(worker)->Latest().status(), matcher); });
  }
};

TEST_F(DamagedShardsTest, APartIsMissing) {
  SaveAll({1, 2});
  fs::remove(Folder(2) + "/part_3");
  ExpectFormer({Folder(2) + "/part_3 is missing: it is one of 4 parts"});
}

TEST_F(DamagedShardsTest, APartIsCutOff) {
  SaveAll({1, 2});
  const std::string part = Folder(2) + "/part_1";
  const auto bytes = fs::file_size(part);
  fs::resize_file(part, bytes - 1);
  ExpectFormer({part + " has " + std::to_string(bytes - 1) + " bytes, and should have " +
                std::to_string(bytes)});
}

// Fault (checkpoint): A rank's part of a checkpoint, or the index, is missing, cut off or changed
// -> The checkpoint before it is loaded, and the message names the file and what was expected
TEST_F(DamagedShardsTest, AByteOfAPartIsAnother) {
  SaveAll({1, 2});
  const std::string part = Folder(2) + "/part_2";
  Change(part, [](std::string* content) { content->back() ^= 1; });
  ExpectFormer({part + ": elements 500 to 749 of tensor 'model.weight' are not what was written"});
  const auto saved = SavedShards::FromFolder(Folder(2));
  ASSERT_OK(saved);
  std::vector<float> values(10);
  EXPECT_OK(saved->Read(testing::kTensor, 490, 10, values.data()));
  EXPECT_THAT(saved->Read(testing::kTensor, 495, 10, values.data()),
              StatusIs(StatusCode::kDataLoss, HasSubstr(part)));
}

TEST_F(DamagedShardsTest, AByteOfALargeRangeIsAnother) {
  std::vector<int32_t> values(1 << 20);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i);
  const auto count = static_cast<int64_t>(values.size());
  InProcessWorkers workers(1);
  workers.Run([&](Worker& worker) {
    const auto checkpoint = Open(worker);
    ShardedState state(0, 1);
    state.Add({{"large", "Int", 4, {count}}, 0, count, values.data()});
    EXPECT_OK(checkpoint->Save(1, state));
    EXPECT_OK(checkpoint->Wait());
  });
  std::vector<int32_t> read(values.size());
  const auto saved = SavedShards::FromFolder(Folder(1));
  ASSERT_OK(saved);
  ASSERT_OK(saved->Read("large", 0, count, read.data()));
  EXPECT_EQ(read, values);
  for (const int64_t begin : {int64_t{0}, int64_t{262143}, int64_t{300000}, count - 5}) {
    ASSERT_OK(saved->Read("large", begin, 5, read.data()));
    for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(read[i], begin + i);
  }
  Change(Folder(1) + "/part_0", [](std::string* content) { content->back() ^= 1; });
  const auto damaged = SavedShards::FromFolder(Folder(1));
  ASSERT_OK(damaged);
  EXPECT_THAT(damaged->Read("large", 0, 5, read.data()),
              StatusIs(StatusCode::kDataLoss, HasSubstr("elements 0 to 1048575")));
  EXPECT_THAT(damaged->Check(0), StatusIs(StatusCode::kDataLoss, HasSubstr("part_0")));
}

TEST_F(DamagedShardsTest, TheIndexIsAnother) {
  SaveAll({1, 2});
  Change(Folder(2) + "/data", [](std::string* content) { (*content)[60] ^= 1; });
  ExpectFormer({Folder(2) + "/data: it is not what was written"});
}

TEST_F(DamagedShardsTest, TheIndexIsCutOff) {
  SaveAll({1, 2});
  fs::resize_file(Folder(2) + "/data", 40);
  ExpectFormer({Name(2), "40 bytes and should have"});
}

TEST_F(DamagedShardsTest, TheIndexLeavesSomethingOut) {
  SaveAll({1, 2});
  Change(Folder(2) + "/data", [](std::string* content) {
    auto index = checkpoint::DecodeIndex(*content);
    ASSERT_OK(index);
    index->parts[1].ranges.clear();
    *content = checkpoint::EncodeIndex(*index);
  });
  ExpectFormer({Folder(2) + "/data: element 250 of tensor 'model.weight' is in no rank's part"});
}

TEST_F(DamagedShardsTest, AllAreDamaged) {
  SaveAll({1, 2});
  for (const int64_t step : {1, 2}) fs::remove(Folder(step) + "/part_0");
  ExpectAllFail(StatusIs(StatusCode::kDataLoss,
                         AllOf(HasSubstr(Name(1)), HasSubstr(Name(2)),
                               HasSubstr("remove what is damaged to start from the beginning"))));
}

// Fault (checkpoint): The newest checkpoint is of a newer format -> Loading is an error; no older
// checkpoint is taken instead
TEST_F(DamagedShardsTest, ANewerFormatIsNotPassedOver) {
  SaveAll({1, 2});
  Change(Folder(2) + "/data",
         [](std::string* content) { content->replace(content->find("state 1"), 7, "state 2"); });
  ExpectAllFail(StatusIs(StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(Folder(2)), HasSubstr("format 2"))));
}

TEST_F(DamagedShardsTest, OneThatRankZeroSavedAlone) {
  SaveAll({1});
  const CheckpointDirectory directory(path());
  const auto write = [](const std::string& to) {
    return checkpoint::WriteAndSync(to, "PK weights");
  };
  ASSERT_OK(directory.Save(3, 1, write, [] { return OkStatus(); }));
  ExpectAllFail(StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(Folder(3)), HasSubstr("begins with 'PK weights'"))));
}

TEST_F(DamagedShardsTest, ANodeThatDoesNotSeeTheDirectory) {
  SaveAll({1});
  InProcessWorkers workers(2);
  workers.Run([&](Worker& worker) {
    const std::string seen = worker.rank() == 0 ? path() : path() + "/not_mounted";
    ShardedCheckpointOptions options;
    options.timeout = kLong;
    auto checkpoint = ShardedCheckpoint::Open(worker, seen, options);
    ASSERT_OK(checkpoint);
    EXPECT_THAT((*checkpoint)->Latest().status(),
                StatusIs(StatusCode::kNotFound,
                         AllOf(HasSubstr("rank 1: "), HasSubstr("all nodes must share"),
                               HasSubstr("not_mounted"))));
    RankValues values(worker.rank(), 2);
    EXPECT_OK((*checkpoint)->Save(2, values.State()));
    EXPECT_THAT((*checkpoint)->Wait(), StatusIs(StatusCode::kNotFound, HasSubstr("not_mounted")));
  });
}

}  // namespace
}  // namespace cadre
