#include "cadre/status.h"

#include <array>
#include <cerrno>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "base/exit_codes.h"
#include "base/status_matchers.h"
#include "cadre/exit_codes.h"
#include "cadre/result.h"
#include "cadre/span.h"
#include "cadre/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/absl_types.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(StatusTest, IsOkUntilItIsNot) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status(StatusCode::kOk, "dropped"), OkStatus());
  const Status status = AbortedError("moved on");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.message(), "moved on");
  EXPECT_EQ(status.ToString(), "ABORTED: moved on");
  EXPECT_NE(status, AbortedError("stayed"));
  std::ostringstream out;
  out << status << ", " << OkStatus();
  EXPECT_EQ(out.str(), "ABORTED: moved on, OK");
}

TEST(StatusTest, UpdateKeepsTheFirstError) {
  Status status;
  status.Update(OkStatus());
  status.Update(InternalError("first"));
  status.Update(InternalError("second"));
  EXPECT_THAT(status, StatusIs(StatusCode::kInternal, "first"));
}

TEST(StatusTest, ErrnoBecomesTheCodeThatFits) {
  EXPECT_THAT(ErrnoToStatus(ENOENT, "x"), StatusIs(StatusCode::kNotFound, HasSubstr("x: No such")));
  EXPECT_THAT(ErrnoToStatus(EACCES, "x"), StatusIs(StatusCode::kPermissionDenied));
  EXPECT_THAT(ErrnoToStatus(ENOSPC, "x"), StatusIs(StatusCode::kResourceExhausted));
}

TEST(StatusTest, EveryCodeIsAbseils) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status theirs(static_cast<absl::StatusCode>(code), "why");
    const Status ours = theirs;
    EXPECT_EQ(StatusCodeName(ours.code()), absl::StatusCodeToString(theirs.code()));
    EXPECT_EQ(absl::Status(ours), theirs);
  }
}

struct Base {
  virtual ~Base() = default;
};
struct Derived : Base {};

Result<std::string> Half(int number) {
  if (number % 2 != 0) return InvalidArgumentError("odd");
  return std::to_string(number / 2);
}

Result<size_t> Digits(int number) {
  CADRE_ASSIGN_OR_RETURN(const std::string half, Half(number));
  CADRE_RETURN_IF_ERROR(Half(number).status());
  return half.size();
}

TEST(ResultTest, HoldsAValueOrTheReasonWhyNot) {
  EXPECT_OK(Half(24));
  EXPECT_EQ(*Half(24), "12");
  EXPECT_EQ(Half(24)->size(), 2u);
  EXPECT_THAT(Half(7), StatusIs(StatusCode::kInvalidArgument, "odd"));
  EXPECT_EQ(Half(7).value_or("none"), "none");
  EXPECT_THAT(Result<int>(), StatusIs(StatusCode::kUnknown));
}

TEST(ResultTest, MacrosReturnEarly) {
  EXPECT_EQ(*Digits(24), 2u);
  EXPECT_THAT(Digits(7), StatusIs(StatusCode::kInvalidArgument, "odd"));
}

TEST(ResultTest, TakesWhatBecomesItsValue) {
  Result<std::unique_ptr<Base>> base = std::make_unique<Derived>();
  EXPECT_NE(*base, nullptr);
  Result<std::unique_ptr<Derived>> derived = std::make_unique<Derived>();
  base = std::move(derived);
  EXPECT_NE(*base, nullptr);
  base = nullptr;
  EXPECT_OK(base);
  EXPECT_EQ(*base, nullptr);
}

TEST(ResultTest, AnErrorThatIsOkIsAMistake) {
  EXPECT_THAT(Result<int>(OkStatus()), StatusIs(StatusCode::kInternal));
}

TEST(ResultDeathTest, TheValueOfAnErrorEndsTheProcess) {
  EXPECT_DEATH(Half(7).value(), "INVALID_ARGUMENT: odd");
  EXPECT_DEATH((void)Half(7)->size(), "INVALID_ARGUMENT: odd");
  EXPECT_DEATH((void)std::string(*Half(7)), "INVALID_ARGUMENT: odd");
}

int MainWith(int number) {
  CADRE_ASSIGN_OR_EXIT(const std::string half, Half(number));
  CADRE_EXIT_IF_ERROR(Half(number).status());
  return half == "12" ? 0 : 2;
}

TEST(ResultTest, MacrosOfMainSayTheErrorAndReturnOne) {
  EXPECT_EQ(MainWith(24), 0);
  testing::internal::CaptureStderr();
  EXPECT_EQ(MainWith(7), 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("status_test.cc: INVALID_ARGUMENT: odd\n"));
}

int Sum(Span<const int> numbers) {
  int sum = 0;
  for (const int number : numbers) sum += number;
  return sum;
}

TEST(SpanTest, IsMadeFromWhateverLiesInOneRow) {
  const std::vector<int> vector = {1, 2, 3};
  const std::array<int, 2> array = {4, 5};
  int plain[] = {6, 7};
  EXPECT_EQ(Sum(vector), 6);
  EXPECT_EQ(Sum(array), 9);
  EXPECT_EQ(Sum(plain), 13);
  EXPECT_EQ(Sum({8, 9}), 17);
  EXPECT_EQ(Sum(Span<int>(plain)), 13);
  EXPECT_EQ(Sum({}), 0);
}

TEST(SpanTest, WritesOnlyWhereThatIsAllowed) {
  std::vector<int> vector = {1, 2, 3};
  for (int& number : MakeSpan(vector)) number *= 2;
  EXPECT_THAT(vector, ElementsAre(2, 4, 6));
  static_assert(!std::is_constructible_v<Span<int>, const std::vector<int>&>);
  static_assert(!std::is_constructible_v<Span<int>, Span<const int>>);
  static_assert(!std::is_constructible_v<Span<const int>, const std::vector<long>&>);
}

TEST(SpanTest, SubspanEndsWithTheSpan) {
  const std::vector<int> vector = {1, 2, 3, 4};
  const Span<const int> all = vector;
  EXPECT_THAT(all.subspan(1, 2), ElementsAre(2, 3));
  EXPECT_THAT(all.subspan(3, 9), ElementsAre(4));
  EXPECT_THAT(all.subspan(2), ElementsAre(3, 4));
  EXPECT_THAT(all.subspan(4), IsEmpty());
  EXPECT_EQ(all.front() + all.back(), 5);
}

TEST(ExitCodesTest, AreThoseThatTheLauncherKnows) {
  EXPECT_EQ(kWorkerExitNeverRestart, kExitNeverRestart);
  EXPECT_EQ(kWorkerExitForNextGeneration, kExitForNextGeneration);
}

}  // namespace

}  // namespace cadre
