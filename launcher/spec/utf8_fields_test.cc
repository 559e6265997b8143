#include "launcher/spec/utf8_fields.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

TEST(CheckUtf8FieldsTest, ATextAtAnyDepthIsNamed) {
  v1::JobSpec spec;
  spec.set_name("\xc3\xa9t\xc3\xa9");
  EXPECT_OK(CheckUtf8Fields(spec));
  const auto says = [](const v1::JobSpec& wrong, const std::string& what) {
    EXPECT_THAT(CheckUtf8Fields(wrong), StatusIs(absl::StatusCode::kInvalidArgument,
                                                 HasSubstr(what + " is not UTF-8 text")));
  };
  const auto names = [&](const v1::JobSpec& wrong, const std::string& field) {
    says(wrong, field + ": 'a\\xe9'");
  };
  v1::JobSpec plain = spec;
  plain.set_role("a\xe9");
  names(plain, "role");
  v1::JobSpec listed = spec;
  listed.add_command("python3");
  listed.add_command("a\xe9");
  names(listed, "command");
  v1::JobSpec deep = spec;
  deep.mutable_logs()->set_dir("a\xe9");
  names(deep, "logs.dir");
  v1::JobSpec mapped = spec;
  (*mapped.mutable_env())["A"] = "a\xe9";
  says(mapped, "env.value");
}

}  // namespace
}  // namespace cadre::launcher
