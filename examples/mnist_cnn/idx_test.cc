#include "idx.h"

#include <zlib.h>

#include <fstream>
#include <iterator>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::mnist {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ImageSet ThreeImages() {
  ImageSet set;
  set.rows = 1;
  set.columns = 2;
  set.pixels = {1, 2, 3, 4, 5, 255};
  set.labels = {7, 0, 9};
  return set;
}

// Each test has its own directory.
class IdxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/idx_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
    ASSERT_OK(WriteImageSet(ThreeImages(), directory_, "train"));
  }
  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  void Compress(const std::string& name) const {
    std::ifstream in(Path(name), std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(in)), {});
    gzFile out = gzopen(Path(name + ".gz").c_str(), "wb");
    ASSERT_EQ(gzwrite(out, content.data(), content.size()), static_cast<int>(content.size()));
    gzclose(out);
    ASSERT_EQ(std::remove(Path(name).c_str()), 0);
  }
  void Overwrite(const std::string& name, long at, char byte) const {
    std::fstream file(Path(name), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(at);
    file.put(byte);
  }

  std::string directory_;
};

TEST_F(IdxTest, ReadsWhatWasWritten) {
  const auto set = ReadImageSet(directory_, "train", 0);
  ASSERT_OK(set);
  EXPECT_EQ(set->size(), 3u);
  EXPECT_EQ(set->rows, 1u);
  EXPECT_EQ(set->columns, 2u);
  EXPECT_EQ(set->pixels, ThreeImages().pixels);
  EXPECT_EQ(set->labels, ThreeImages().labels);
}

TEST_F(IdxTest, ReadsCompressedFiles) {
  Compress("train-images-idx3-ubyte");
  Compress("train-labels-idx1-ubyte");
  const auto set = ReadImageSet(directory_, "train", 0);
  ASSERT_OK(set);
  EXPECT_EQ(set->pixels, ThreeImages().pixels);
}

TEST_F(IdxTest, KeepsTheFirstImages) {
  const auto set = ReadImageSet(directory_, "train", 2);
  ASSERT_OK(set);
  EXPECT_THAT(set->pixels, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(set->labels, ElementsAre(7, 0));
}

TEST_F(IdxTest, SaysWhichFileIsMissing) {
  EXPECT_THAT(ReadImageSet(directory_, "t10k", 0),
              StatusIs(StatusCode::kNotFound, HasSubstr("t10k-images-idx3-ubyte")));
}

TEST_F(IdxTest, RefusesAnotherKindOfFile) {
  Overwrite("train-images-idx3-ubyte", 3, 1);
  EXPECT_THAT(
      ReadImageSet(directory_, "train", 0),
      StatusIs(StatusCode::kDataLoss, HasSubstr("begins with 00000801 instead of 00000803")));
}

TEST_F(IdxTest, RefusesAFileThatEndsTooEarly) {
  // The headers announce a fourth image and label, which are missing.
  Overwrite("train-images-idx3-ubyte", 7, 4);
  Overwrite("train-labels-idx1-ubyte", 7, 4);
  EXPECT_THAT(ReadImageSet(directory_, "train", 0),
              StatusIs(StatusCode::kDataLoss, HasSubstr("ends too early")));
}

TEST_F(IdxTest, RefusesFilesThatDoNotBelongTogether) {
  Overwrite("train-labels-idx1-ubyte", 7, 2);
  EXPECT_THAT(ReadImageSet(directory_, "train", 0),
              StatusIs(StatusCode::kDataLoss, HasSubstr("2 labels for 3 images")));
}

TEST_F(IdxTest, RefusesALabelThatIsNoDigit) {
  Overwrite("train-labels-idx1-ubyte", 9, 10);
  EXPECT_THAT(ReadImageSet(directory_, "train", 0),
              StatusIs(StatusCode::kDataLoss, HasSubstr("label 10 at position 1")));
}

}  // namespace
}  // namespace cadre::mnist
