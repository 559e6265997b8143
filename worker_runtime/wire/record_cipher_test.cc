#include "worker_runtime/wire/record_cipher.h"

#include <string>

#include "gtest/gtest.h"

namespace cadre::wire {
namespace {

const std::string kKey(32, 'k');

// The content, sealed, and its tag.
std::string Seal(RecordCipher& cipher, const std::string& head, std::string content) {
  std::string tag(kRecordTagBytes, ' ');
  cipher.Begin(head);
  cipher.Update(&content[0], &content[0], content.size());
  cipher.MakeTag(&tag[0]);
  return content + tag;
}

// "altered" where the tag does not fit.
std::string Open(RecordCipher& cipher, const std::string& head, const std::string& sealed) {
  std::string content = sealed.substr(0, sealed.size() - kRecordTagBytes);
  const std::string tag = sealed.substr(content.size());
  cipher.Begin(head);
  // In pieces, as it may lie in several parts.
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

}  // namespace
}  // namespace cadre::wire
