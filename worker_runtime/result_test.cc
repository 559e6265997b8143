#include "cadre/result.h"

#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/status_macros.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

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
              testing::HasSubstr("result_test.cc: INVALID_ARGUMENT: odd\n"));
}

}  // namespace
}  // namespace cadre
