#include "worker_runtime/wire/records.h"

#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace cadre::wire {
namespace {

const std::string kKey(32, 'k');

std::string RecordOf(RecordWriter& writer, std::string content) {
  const iovec part = {&content[0], content.size()};
  writer.Seal(Parts(&part, 1));
  const std::string record(writer.output());
  writer.RemovePrefix(record.size());
  return record;
}

void Add(RecordReader& reader, const std::string& bytes) {
  const iovec room = reader.room();
  ASSERT_LE(bytes.size(), room.iov_len);
  memcpy(room.iov_base, bytes.data(), bytes.size());
  reader.Add(bytes.size());
}

// "broken" where what came is not what was sent.
std::string Read(RecordReader& reader, size_t limit) {
  std::string content(limit, ' ');
  const iovec part = {&content[0], limit};
  const ssize_t read = reader.Read(Parts(&part, 1));
  return read < 0 ? "broken" : content.substr(0, static_cast<size_t>(read));
}

TEST(RecordsTest, AreTheirContentSealed) {
  RecordWriter writer(kKey);
  RecordReader reader(kKey);
  const std::string record = RecordOf(writer, "gradients");
  EXPECT_EQ(record.size(), kRecordHeadBytes + 9 + kRecordTagBytes);
  EXPECT_EQ(record.find("grad"), std::string::npos);
  Add(reader, record);
  EXPECT_EQ(Read(reader, 100), "gradients");
  EXPECT_EQ(Read(reader, 100), "");
}

TEST(RecordsTest, AreReadInPiecesOfAnySize) {
  RecordWriter writer(kKey);
  RecordReader reader(kKey);
  std::string records = RecordOf(writer, "one");
  records += RecordOf(writer, "and two");
  for (const char byte : records) Add(reader, std::string(1, byte));
  EXPECT_EQ(Read(reader, 2), "on");
  EXPECT_EQ(Read(reader, 4), "eand");
  EXPECT_EQ(Read(reader, 9), " two");
}

TEST(RecordsTest, TakeUpPartsAndFillThem) {
  RecordWriter writer(kKey);
  RecordReader reader(kKey);
  std::string a = "ab", none, b = "cdef";
  const std::vector<iovec> from = {{&a[0], 2}, {&none[0], 0}, {&b[0], 4}};
  writer.Seal(Parts(from.data(), from.size()));
  EXPECT_EQ(writer.content_bytes(), 6);
  Add(reader, std::string(writer.output()));
  writer.RemovePrefix(writer.output().size());
  EXPECT_EQ(writer.content_bytes(), 0);
  std::string c(3, ' '), d(3, ' ');
  const std::vector<iovec> to = {{&c[0], 3}, {&none[0], 0}, {&d[0], 3}};
  EXPECT_EQ(reader.Read(Parts(to.data(), to.size())), 6);
  EXPECT_EQ(c + d, "abcdef");
}

TEST(RecordsTest, HaveASizeThatIsBounded) {
  RecordWriter writer(kKey);
  std::string content(kMaxRecordBytes + 1, 'x');
  const iovec part = {&content[0], content.size()};
  writer.Seal(Parts(&part, 1));
  EXPECT_EQ(writer.content_bytes(), kMaxRecordBytes);
}

TEST(RecordsTest, AChangeOfAnyByteIsFound) {
  RecordWriter first(kKey);
  const size_t bytes = RecordOf(first, "gradients").size();
  for (size_t at = 0; at < bytes; ++at) {
    RecordWriter writer(kKey);
    RecordReader reader(kKey);
    std::string record = RecordOf(writer, "gradients");
    record[at] ^= 1;
    // With what follows, where the length was changed.
    Add(reader, record + RecordOf(writer, std::string(1000, 'x')));
    EXPECT_EQ(Read(reader, 100), "broken") << at;
    EXPECT_EQ(Read(reader, 100), "broken") << at;
  }
}

TEST(RecordsTest, ALengthBeyondTheBoundIsNotAwaited) {
  for (const uint32_t length : {uint32_t{0}, static_cast<uint32_t>(kMaxRecordBytes) + 1}) {
    RecordReader reader(kKey);
    Add(reader, std::string(reinterpret_cast<const char*>(&length), sizeof(length)));
    EXPECT_EQ(Read(reader, 100), "broken") << length;
  }
}

TEST(RecordsTest, ARecordIsTakenOnceAndInItsPlaceOnly) {
  RecordWriter writer(kKey);
  const std::string first = RecordOf(writer, "1"), second = RecordOf(writer, "2");
  RecordReader repeated(kKey), swapped(kKey), of_another(std::string(32, 'o'));
  Add(repeated, first + first);
  EXPECT_EQ(Read(repeated, 1), "1");
  EXPECT_EQ(Read(repeated, 1), "broken");
  Add(swapped, second);
  EXPECT_EQ(Read(swapped, 1), "broken");
  Add(of_another, first);
  EXPECT_EQ(Read(of_another, 1), "broken");
}

}  // namespace
}  // namespace cadre::wire
