#include "worker_runtime/c/boundary.h"

#include <cstdint>
#include <limits>
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

constexpr auto kInvalid = StatusCode::kInvalidArgument;

TEST(ArgumentsTest, TimeoutsAreMillisecondsAndEnd) {
  EXPECT_EQ(*TimeoutOf(0), std::chrono::nanoseconds(0));
  EXPECT_EQ(*TimeoutOf(1500), std::chrono::nanoseconds(1500000000));
  EXPECT_EQ(*TimeoutOf(std::numeric_limits<int64_t>::max()), std::chrono::hours(24 * 365));
  EXPECT_THAT(TimeoutOf(-1), StatusIs(kInvalid, HasSubstr("-1 ms")));
  EXPECT_THAT(TimeoutOf(std::numeric_limits<int64_t>::min()), StatusIs(kInvalid));
}

TEST(ArgumentsTest, NullIsNamed) {
  EXPECT_THAT(NotNull(nullptr, "worker"), StatusIs(kInvalid, HasSubstr("worker is NULL")));
  EXPECT_THAT(TextOf(nullptr, "key"), StatusIs(kInvalid, HasSubstr("key is NULL")));
  EXPECT_EQ(*TextOf("model", "key"), "model");
}

TEST(ArgumentsTest, BytesMayHoldAnythingAndBeNone) {
  EXPECT_EQ(*BytesOf("a\0b", 3, "value"), std::string_view("a\0b", 3));
  EXPECT_EQ(*BytesOf(nullptr, 0, "value"), "");
  EXPECT_THAT(BytesOf(nullptr, 1, "value"), StatusIs(kInvalid, HasSubstr("value is NULL")));
}

TEST(ArgumentsTest, ReductionsByNumber) {
  EXPECT_EQ(*ReduceOpOf(CADRE_SUM), ReduceOp::kSum);
  EXPECT_EQ(*ReduceOpOf(CADRE_AVERAGE), ReduceOp::kAverage);
  EXPECT_THAT(ReduceOpOf(-1), StatusIs(kInvalid, HasSubstr("-1")));
  EXPECT_THAT(ReduceOpOf(4), StatusIs(kInvalid, HasSubstr("number 4")));
}

TEST(ArgumentsTest, Buffers) {
  double elements[6] = {};
  const Result<Buffer> buffer = BufferOf(elements, 3, CADRE_FLOAT64, 2);
  ASSERT_OK(buffer);
  EXPECT_EQ(buffer->data, elements);
  EXPECT_EQ(buffer->count, 6u);
  EXPECT_EQ(buffer->type, DataType::kFloat64);
  EXPECT_OK(BufferOf(nullptr, 0, CADRE_UINT8));
  EXPECT_OK(BufferOf(elements, 1, CADRE_BFLOAT16));
}

TEST(ArgumentsTest, BuffersThatAreNone) {
  char byte = 0;
  EXPECT_THAT(BufferOf(nullptr, 1, CADRE_UINT8), StatusIs(kInvalid, HasSubstr("NULL")));
  EXPECT_THAT(BufferOf(&byte, 1, -1), StatusIs(kInvalid, HasSubstr("number -1")));
  EXPECT_THAT(BufferOf(&byte, 1, 7), StatusIs(kInvalid, HasSubstr("number 7")));
  // A size of -1 becomes SIZE_MAX, and the other sizes overflow when multiplied.
  EXPECT_THAT(BufferOf(&byte, SIZE_MAX, CADRE_UINT8), StatusIs(kInvalid, HasSubstr("negative")));
  EXPECT_THAT(BufferOf(&byte, SIZE_MAX / 8 + 2, CADRE_FLOAT64), StatusIs(kInvalid));
  EXPECT_THAT(BufferOf(&byte, SIZE_MAX / 8 + 2, CADRE_UINT8, 8), StatusIs(kInvalid));
}

}  // namespace

}  // namespace cadre::c
