#include "launcher/flags/config_file.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"

namespace cadre::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<Flag>& Flags() {
  static const auto& flags =
      *new std::vector<Flag>{{"host", "ADDRESS", ""}, {"token-file", "FILE", ""}};
  return flags;
}

TEST(ConfigFileTest, ASectionsSettings) {
  const auto settings = ParseConfig(
      "server:\n  host: 0.0.0.0\n  token_file: /t\nclient: {server: h}\n", "f", "server", Flags());
  ASSERT_OK(settings);
  ASSERT_EQ(settings->size(), 2u);
  EXPECT_EQ(settings->at("host").value, "0.0.0.0");
  EXPECT_EQ(settings->at("token-file").value, "/t");
  EXPECT_EQ(settings->at("token-file").origin, "f:3:3: token-file");
}

TEST(ConfigFileTest, TheCommandLineAndTheEnvironmentComeFirst) {
  const auto file = ParseConfig("server: {host: a, token-file: t}", "f", "server", Flags());
  ASSERT_OK(file);
  Parsed parsed;
  parsed.flags["host"] = {"b"};
  const Settings settings(parsed, {{"CADRE_HOST", "c"}}, Flags(), *file);
  EXPECT_EQ(settings.GetOr("host", ""), "b");
  EXPECT_EQ(Settings({}, {{"CADRE_HOST", "c"}}, Flags(), *file).GetOr("host", ""), "c");
  EXPECT_EQ(Settings({}, {}, Flags(), *file).Get("host")->origin, "f:1:10: host");
}

TEST(ConfigFileTest, NothingIsSaidForTheSection) {
  for (const char* text : {"", "# nothing\n", "agent: {slots: 8}", "server:\n  # host: x\n"}) {
    const auto settings = ParseConfig(text, "f", "server", Flags());
    ASSERT_OK(settings) << text;
    EXPECT_TRUE(settings->empty()) << text;
  }
}

TEST(ConfigFileTest, WhatIsWrongAndWhere) {
  const struct {
    const char* text;
    const char* where;
    const char* what;
  } kCases[] = {
      {"server: {hots: x}", "f:1:10", "did you mean 'host'?"},
      {"sever: {host: x}", "f:1:1", "did you mean 'server'?"},
      {"server: {host: [x]}", "f:1:16", "expected text, got a list"},
      {"server: x", "f:1:9", "expected a mapping"},
      {"- server", "f:1:1", "expected a mapping"},
      {"server: {host: x, host: y}", "f:1:19", "twice"},
      {"server: {}\nserver: {}", "f:2:1", "twice"},
      {"server: {", "f:", ""},
  };
  for (const auto& bad : kCases) {
    EXPECT_THAT(ParseConfig(bad.text, "f", "server", Flags()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(bad.where), HasSubstr(bad.what))))
        << bad.text;
  }
}

TEST(ConfigFileTest, AFileThatIsNamedMustBeThere) {
  EXPECT_THAT(ReadConfig("/nowhere", "server", Flags()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere")));
  EXPECT_OK(ReadConfig(kNoConfigFile, "server", Flags()));
  const std::string path = absl::StrCat(testing::TempDir(), "/cadre.yaml");
  std::ofstream(path) << "server: {host: x}";
  const auto settings = ReadConfig(path, "server", Flags());
  ASSERT_OK(settings);
  EXPECT_EQ(settings->at("host").value, "x");
}

}  // namespace
}  // namespace cadre::launcher
