#include "cadre/torch/archive_file.h"

#include <cstdio>
#include <fstream>

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

TEST(ArchiveFileTest, WhatCannotBeReadIsNamed) {
  const std::string path = ::testing::TempDir() + "/of_others";
  const auto load = [&path] {
    return LoadArchive(path, torch::kCPU, [](torch::serialize::InputArchive& archive) {
      torch::Tensor tensor;
      archive.read("other", tensor);
    });
  };
  std::remove(path.c_str());
  EXPECT_THAT(load(), StatusIs(StatusCode::kNotFound, HasSubstr("cannot read " + path)));
  // A zip file, as torch.save() writes them, and a pickle, as it did before 1.6.
  for (const std::string bytes : {"PK\3\4 and so on", "\x80\2\x8a\nl"}) {
    std::ofstream(path) << bytes;
    EXPECT_THAT(load(),
                StatusIs(StatusCode::kInvalidArgument,
                         HasSubstr("Python's torch.save() has written is to be converted")));
  }
  torch::serialize::OutputArchive saved;
  saved.write("tensor", Large());
  ASSERT_OK(SaveArchive(saved, path));
  EXPECT_THAT(load(),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr(path + " holds something else: No such serialized tensor")));
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
