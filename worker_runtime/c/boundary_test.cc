#include "worker_runtime/c/boundary.h"

#include <new>
#include <stdexcept>
#include <thread>

#include "base/status_matchers.h"

namespace cadre::c {
namespace {

using ::testing::HasSubstr;

TEST(BoundaryTest, AStatusIsANumberAndAMessage) {
  EXPECT_EQ(Guarded([] { return UnavailableError("nobody answers"); }), CADRE_UNAVAILABLE);
  EXPECT_STREQ(cadre_last_error(), "nobody answers");
}

TEST(BoundaryTest, SuccessLeavesTheLastError) {
  Guarded([] { return UnavailableError("nobody answers"); });
  EXPECT_EQ(Guarded([] { return OkStatus(); }), CADRE_OK);
  EXPECT_STREQ(cadre_last_error(), "nobody answers");
}

TEST(BoundaryTest, EveryThreadHasItsOwnLastError) {
  Guarded([] { return UnavailableError("nobody answers"); });
  std::thread([] {
    EXPECT_STREQ(cadre_last_error(), "");
    Guarded([] { return AbortedError("the generation is over"); });
    EXPECT_STREQ(cadre_last_error(), "the generation is over");
  }).join();
  EXPECT_STREQ(cadre_last_error(), "nobody answers");
}

TEST(BoundaryTest, NoExceptionEscapes) {
  EXPECT_EQ(Guarded([]() -> Status { throw std::bad_alloc(); }), CADRE_RESOURCE_EXHAUSTED);
  EXPECT_THAT(cadre_last_error(), HasSubstr("no memory"));
  EXPECT_EQ(Guarded([]() -> Status { throw std::runtime_error("broken"); }), CADRE_INTERNAL);
  EXPECT_STREQ(cadre_last_error(), "broken");
  EXPECT_EQ(Guarded([]() -> Status { throw 7; }), CADRE_INTERNAL);
  EXPECT_THAT(cadre_last_error(), HasSubstr("exception"));
}

TEST(BoundaryTest, EveryCodeHasAName) {
  EXPECT_STREQ(cadre_status_name(CADRE_OK), "OK");
  EXPECT_STREQ(cadre_status_name(CADRE_DEADLINE_EXCEEDED), "DEADLINE_EXCEEDED");
  EXPECT_STREQ(cadre_status_name(CADRE_UNAUTHENTICATED), "UNAUTHENTICATED");
  EXPECT_STREQ(cadre_status_name(-1), "UNKNOWN");
  EXPECT_STREQ(cadre_status_name(17), "UNKNOWN");
}

TEST(BoundaryTest, TheVersionIsANumber) { EXPECT_THAT(cadre_version(), HasSubstr(".")); }

}  // namespace
}  // namespace cadre::c
