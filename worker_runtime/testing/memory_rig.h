// Tests of checkpoints in memory; a directory stands for the memory of each node.
#ifndef CADRE_WORKER_RUNTIME_TESTING_MEMORY_RIG_H_
#define CADRE_WORKER_RUNTIME_TESTING_MEMORY_RIG_H_

#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "cadre/memory_checkpoint.h"
#include "cadre/worker.h"
#include "gtest/gtest.h"

namespace cadre::testing {

class MemoryRig : public ::testing::Test {
 protected:
  static constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

  MemoryRig() {
    std::string pattern = ::testing::TempDir() + "/memory_XXXXXX";
    EXPECT_NE(mkdtemp(&pattern[0]), nullptr);
    path_ = pattern;
  }
  ~MemoryRig() override { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::string NodeFolder(int node) const { return absl::StrCat(path_, "/node-", node); }
  // Opens the checkpoint in the directory of the worker's node.
  std::unique_ptr<MemoryCheckpoint> OpenWith(Worker& worker,
                                             MemoryCheckpointOptions options) const {
    options.timeout = kLong;
    options.directory = NodeFolder(worker.place().node_rank);
    std::filesystem::create_directories(options.directory);
    auto opened = MemoryCheckpoint::Open(worker, options);
    EXPECT_OK(opened);
    return *std::move(opened);
  }

 private:
  std::string path_;
};

}  // namespace cadre::testing

#endif  // CADRE_WORKER_RUNTIME_TESTING_MEMORY_RIG_H_
