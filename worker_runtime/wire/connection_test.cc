#include "worker_runtime/wire/connection.h"

#include <errno.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker_runtime/wire/connected_pair.h"

namespace cadre::wire {
namespace {

using ::testing::HasSubstr;

// Both ends of an encrypted connection.
class ConnectionTest : public ::testing::Test {
 protected:
  ConnectionTest() { std::tie(near_, far_) = ConnectedPair(/*is_encrypted=*/true); }
  std::string Receive(Connection& at, size_t limit = 100) {
    std::string bytes(limit, ' ');
    const ssize_t got = at.Receive(&bytes[0], limit);
    return got < 0 ? EndText(errno) : bytes.substr(0, static_cast<size_t>(got));
  }

  Connection near_, far_;
};

TEST_F(ConnectionTest, GoesBothWays) {
  EXPECT_EQ(near_.Send("there"), 5);
  EXPECT_EQ(far_.Send("back"), 4);
  EXPECT_EQ(Receive(far_), "there");
  EXPECT_EQ(Receive(near_), "back");
}

TEST_F(ConnectionTest, WhatASocketDoesNotTakeIsTakenLater) {
  std::string sent(8 << 20, 's');
  for (size_t i = 0; i < sent.size(); i += 4096) sent[i] = static_cast<char>(i >> 12);
  size_t done = 0;
  std::string got;
  while (got.size() < sent.size()) {
    const ssize_t taken = near_.Send(absl::string_view(sent).substr(done));
    if (taken < 0) {
      ASSERT_EQ(errno, EAGAIN);
    } else {
      done += static_cast<size_t>(taken);
    }
    std::string some(100000, ' ');
    const ssize_t came = far_.Receive(&some[0], some.size());
    if (came < 0) {
      ASSERT_EQ(errno, EAGAIN);
    } else {
      got.append(some, 0, static_cast<size_t>(came));
    }
  }
  EXPECT_TRUE(got == sent);
}

// Fault (collective): With `--encrypt`, a record is altered, repeated or left out on its way
// between ranks -> The connection ends as for a lost rank, with "the received data were altered on
// their way"
TEST_F(ConnectionTest, WhatIsAlteredOnItsWayIsNotTaken) {
  ASSERT_EQ(near_.Send("gradients"), 9);
  std::string record(100, ' ');
  const ssize_t bytes = recv(far_.fd(), &record[0], record.size(), 0);
  ASSERT_GT(bytes, 9);
  record.resize(static_cast<size_t>(bytes));
  record[kRecordHeadBytes] ^= 1;
  ASSERT_EQ(send(near_.fd(), record.data(), record.size(), 0), bytes);
  EXPECT_EQ(Receive(far_), "the received data were altered on their way");
}

TEST_F(ConnectionTest, AnEndIsFoundBehindWhatCameBefore) {
  ASSERT_EQ(near_.Send("last"), 4);
  near_.Close();
  EXPECT_EQ(Receive(far_), "last");
  EXPECT_EQ(Receive(far_), "");
  far_.Send("nobody there");
  EXPECT_EQ(far_.Send("x"), -1);
  EXPECT_EQ(errno, EPIPE);
}

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

// Returns "broken" if the received data is not what was sent.
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
    // Another record follows, for the case that the changed byte is in the length.
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

// Returns the encrypted content, followed by its tag.
std::string Seal(RecordCipher& cipher, const std::string& head, std::string content) {
  std::string tag(kRecordTagBytes, ' ');
  cipher.Begin(head);
  cipher.Update(&content[0], &content[0], content.size());
  cipher.MakeTag(&tag[0]);
  return content + tag;
}

// Returns "altered" if the tag does not match.
std::string Open(RecordCipher& cipher, const std::string& head, const std::string& sealed) {
  std::string content = sealed.substr(0, sealed.size() - kRecordTagBytes);
  const std::string tag = sealed.substr(content.size());
  cipher.Begin(head);
  // In pieces, as the content may be spread over several parts.
  for (size_t at = 0; at < content.size(); ++at) {
    cipher.Update(&content[at], &content[at], 1);
  }
  return cipher.HasTag(tag.data()) ? content : "altered";
}

TEST(RecordCipherTest, WhatIsSealedIsOpened) {
  RecordCipher seals(kKey, RecordCipher::Use::kSeal), opens(kKey, RecordCipher::Use::kOpen);
  const std::string first = Seal(seals, "head", "content of several blocks of AES");
  const std::string second = Seal(seals, "head", "content of several blocks of AES");
  EXPECT_NE(first, second) << "the same content twice";
  EXPECT_EQ(Open(opens, "head", first), "content of several blocks of AES");
  EXPECT_EQ(Open(opens, "head", second), "content of several blocks of AES");
  EXPECT_EQ(Open(opens, "", Seal(seals, "", "")), "");
}

TEST(RecordCipherTest, TheHeadTheNumberAndTheKeyCount) {
  RecordCipher seals(kKey, RecordCipher::Use::kSeal);
  const std::string sealed = Seal(seals, "head", "content");
  RecordCipher other_head(kKey, RecordCipher::Use::kOpen);
  EXPECT_EQ(Open(other_head, "Head", sealed), "altered");
  EXPECT_EQ(Open(other_head, "head", sealed), "altered") << "by now it is the second";
  RecordCipher other_key(std::string(32, 'o'), RecordCipher::Use::kOpen);
  EXPECT_EQ(Open(other_key, "head", sealed), "altered");
}

TEST(RecordCipherTest, BothSidesPassToTheNextKey) {
  RecordCipher seals(kKey, RecordCipher::Use::kSeal), opens(kKey, RecordCipher::Use::kOpen);
  for (uint64_t i = 0; i < kRecordsPerKey + 2; ++i) {
    ASSERT_EQ(Open(opens, "", Seal(seals, "", "x")), "x") << i;
  }
}

class EncryptionTest : public ::testing::Test {
 protected:
  EncryptionTest() { unsetenv(kEncryptVariable); }
  ~EncryptionTest() override { unsetenv(kEncryptVariable); }
};

TEST_F(EncryptionTest, OneIsYes) {
  EXPECT_FALSE(WantsEncryption().value());
  for (const char* const no : {"", "0"}) {
    setenv(kEncryptVariable, no, 1);
    EXPECT_FALSE(WantsEncryption().value());
  }
  setenv(kEncryptVariable, "1", 1);
  EXPECT_TRUE(WantsEncryption().value());
}

TEST_F(EncryptionTest, WhatIsNeitherIsNotTakenForOne) {
  setenv(kEncryptVariable, "yes", 1);
  EXPECT_THAT(WantsEncryption(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("CADRE_ENCRYPT is \"yes\"")));
}

}  // namespace

}  // namespace cadre::wire
