#include "exceptions.h"

#include <stdexcept>

#include "base/status_matchers.h"
#include "cadre/result.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

TEST(WithoutExceptions, WhatTheBodyReturns) {
  EXPECT_OK(WithoutExceptions([] { return OkStatus(); }));
  EXPECT_THAT(WithoutExceptions([] { return NotFoundError("no data"); }),
              StatusIs(StatusCode::kNotFound, "no data"));
  EXPECT_EQ(*WithoutExceptions([]() -> Result<int> { return 3; }), 3);
}

TEST(WithoutExceptions, TheFirstLineOfWhatItThrows) {
  EXPECT_THAT(WithoutExceptions([]() -> Status { throw std::runtime_error("bad\nat frame 0"); }),
              StatusIs(StatusCode::kInternal, "bad"));
  EXPECT_THAT(WithoutExceptions([]() -> Result<int> { throw std::runtime_error("bad"); }),
              StatusIs(StatusCode::kInternal, "bad"));
}

}  // namespace
}  // namespace cadre
