#include "launcher/display/json_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/failure.pb.h"

namespace cadre::launcher {
namespace {

TEST(JsonTextTest, Zeros_AreWrittenOut) {
  v1::Failure failure;
  failure.set_node("node1");
  failure.mutable_exit();
  const std::string json = JsonText(failure);
  EXPECT_THAT(json, ::testing::HasSubstr("\"rank\":0"));
  EXPECT_THAT(json, ::testing::HasSubstr("\"exit_code\":0"));
  EXPECT_THAT(json, ::testing::HasSubstr("\"node\":\"node1\""));
}

}  // namespace
}  // namespace cadre::launcher
