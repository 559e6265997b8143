#include "agent/supervisor/warm/template_messages.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Text(std::initializer_list<const char*> fields) {
  std::string text;
  for (const char* field : fields) {
    if (field != *fields.begin()) text.push_back('\0');
    text += field;
  }
  return text;
}

TEST(TemplateMessagesTest, OrdersAreFieldsWithANulBetween) {
  ImportOrder imports;
  imports.module = "m";
  imports.learned = "/l";
  imports.preload = {"a", "b.c"};
  imports.rank_variables = {"RANK"};
  imports.environment = {"A=1"};
  EXPECT_EQ(*Encode(imports), Text({"imports", "m", "", "/l", "a,b.c", "", "RANK", "A=1"}));
  EXPECT_EQ(*Encode(ForkOrder{7, "id.7", "/w", "", {"A=1", "B="}}),
            Text({"fork", "7", "id.7", "/w", "", "A=1", "B="}));
}

TEST(TemplateMessagesTest, AnOrderThatDoesNotFitOrCannotBeToldApartIsRefused) {
  ForkOrder fork;
  fork.environment = {"A=" + std::string(kMaxOrderBytes, 'x')};
  EXPECT_THAT(Encode(fork), StatusIs(absl::StatusCode::kResourceExhausted));
  fork.environment = {std::string("A=\0", 3)};
  EXPECT_THAT(Encode(fork), StatusIs(absl::StatusCode::kInvalidArgument));
  ImportOrder imports;
  imports.preload = {"a,b"};
  EXPECT_THAT(Encode(imports),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the name a,b, of a module")));
}

TEST(TemplateMessagesTest, AnswersAreUnderstood) {
  const auto ready =
      std::get<TemplateReady>(*ParseAnswer(Text({"ready", "12", "340", "a: why", "b: so"})));
  EXPECT_EQ(ready.modules, 12u);
  EXPECT_EQ(ready.milliseconds, 340u);
  EXPECT_THAT(ready.notes, ElementsAre("a: why", "b: so"));
  EXPECT_TRUE(std::get<TemplateImports>(*ParseAnswer("looks")).examines);
  EXPECT_FALSE(std::get<TemplateImports>(*ParseAnswer("imports")).examines);
  const auto refused =
      std::get<TemplateRefused>(*ParseAnswer(Text({"refused", "a.b: why: so", "c: too"})));
  EXPECT_THAT(refused.names, ElementsAre("a.b", "c"));
  EXPECT_THAT(refused.reasons, ElementsAre("a.b: why: so", "c: too"));
  const auto forked = std::get<WorkerForked>(*ParseAnswer(Text({"forked", "3", "4711"})));
  EXPECT_EQ(forked.serial, 3u);
  EXPECT_EQ(forked.pid, 4711);
  EXPECT_EQ(std::get<WorkerNotForked>(*ParseAnswer(Text({"failed", "3", "x"}))).why, "x");
  EXPECT_TRUE(std::get<WorkerNotForked>(*ParseAnswer(Text({"stale", "3", "/a"}))).ends);
  EXPECT_EQ(std::get<TemplateEnded>(*ParseAnswer(Text({"ended", "x"}))).why, "x");
}

TEST(TemplateMessagesTest, AnythingElseIsNoAnswer) {
  for (const std::string& message :
       {Text({""}), Text({"ready", "many", "1", ""}), Text({"ready", "1"}), Text({"forked", "1"}),
        Text({"forked", "1", "0"}), Text({"forked", "1", "-5"}), Text({"forked", "x", "5"}),
        Text({"refused"}), Text({"stale", "1"}), Text({"looks", "1"}), Text({"hello", "1", "2"})}) {
    EXPECT_THAT(ParseAnswer(message), StatusIs(absl::StatusCode::kInvalidArgument)) << message;
  }
}

}  // namespace
}  // namespace cadre::supervisor
