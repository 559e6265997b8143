#include "cadre/torch/archive_file.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// More than libtorch gathers before it writes.
torch::Tensor Large() { return torch::arange(100000); }

TEST(ArchiveFileTest, WhatWasSavedIsLoaded) {
  const std::string path = ::testing::TempDir() + "/archive";
  torch::serialize::OutputArchive saved;
  saved.write("tensor", Large());
  ASSERT_THAT(SaveArchive(saved, path), IsOk());
  torch::serialize::InputArchive loaded;
  loaded.load_from(path);
  torch::Tensor tensor;
  loaded.read("tensor", tensor);
  EXPECT_TRUE(torch::equal(tensor, Large()));
}

TEST(ArchiveFileTest, AFullDiskIsAnErrorThatNamesTheFile) {
  torch::serialize::OutputArchive archive;
  archive.write("tensor", Large());
  const Status status = SaveArchive(archive, "/dev/full");
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/dev/full: No space left on device"));
}

TEST(ArchiveFileTest, AFileThatCannotBeMadeIsNamed) {
  torch::serialize::OutputArchive archive;
  const Status status = SaveArchive(archive, ::testing::TempDir() + "/no/such/file");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/file"));
}

}  // namespace
}  // namespace cadre
