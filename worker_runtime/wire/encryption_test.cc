#include "worker_runtime/wire/encryption.h"

#include <cstdlib>

#include "base/status_matchers.h"

namespace cadre::wire {
namespace {

using ::testing::HasSubstr;

TEST(EncryptionTest, OneIsYes) {
  unsetenv(kEncryptVariable);
  EXPECT_FALSE(WantsEncryption().value());
  for (const char* const no : {"", "0"}) {
    setenv(kEncryptVariable, no, 1);
    EXPECT_FALSE(WantsEncryption().value());
  }
  setenv(kEncryptVariable, "1", 1);
  EXPECT_TRUE(WantsEncryption().value());
}

TEST(EncryptionTest, WhatIsNeitherIsNotTakenForOne) {
  setenv(kEncryptVariable, "yes", 1);
  EXPECT_THAT(WantsEncryption(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("CADRE_ENCRYPT is \"yes\"")));
}

}  // namespace
}  // namespace cadre::wire
