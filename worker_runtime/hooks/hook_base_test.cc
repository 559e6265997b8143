#include "worker_runtime/hooks/hook_base.h"

#include <string>
#include <string_view>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::hooks {
namespace {

using ::testing::HasSubstr;

std::string Example() {
  HookStateWriter writer("example");
  writer.Put(42);
  writer.Put(FloatsByParameter{{3, {1.5f, -2}}, {7, {}}});
  return writer.Take();
}

Status Read(std::string_view state) {
  HookStateReader reader(state);
  Status status = reader.Expect("example");
  if (!status.ok()) return status;
  const auto number = reader.Number();
  if (!number.ok()) return number.status();
  EXPECT_EQ(*number, 42u);
  const auto floats = reader.Floats();
  if (!floats.ok()) return floats.status();
  EXPECT_EQ(*floats, (FloatsByParameter{{3, {1.5f, -2}}, {7, {}}}));
  return reader.End();
}

TEST(HookState, ReadsWhatWasWritten) { EXPECT_OK(Read(Example())); }

TEST(HookState, RefusesWhatIsCutOrTooLong) {
  const std::string state = Example();
  for (size_t length = 0; length < state.size(); ++length) {
    EXPECT_THAT(Read(state.substr(0, length)), StatusIs(StatusCode::kInvalidArgument)) << length;
  }
  EXPECT_THAT(Read(state + "x"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("1 bytes too many")));
}

TEST(HookState, NamesTheHookAndQuotesWhatIsThere) {
  HookStateReader reader("PK\x03\x04");
  EXPECT_THAT(reader.Expect("sparse"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("\"sparse\"")));
  const std::string state = Example();
  HookStateReader other(state);
  EXPECT_THAT(other.Expect("sparse"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("hook state 1: example")));
}

TEST(HookState, ComparesSizes) {
  const GradientView gradient{3, 0, 2, {}};
  const BucketView bucket{0, 1, {nullptr, 2, DataType::kFloat32}, {&gradient, 1}};
  EXPECT_OK(CheckSizes({{3, {1, 2}}, {4, {1}}}, {bucket}));
  EXPECT_THAT(CheckSizes({{3, {1}}}, {bucket}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("parameter 3 has 2")));
}

}  // namespace
}  // namespace cadre::hooks
