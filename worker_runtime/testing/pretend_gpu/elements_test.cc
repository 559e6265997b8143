#include "worker_runtime/testing/pretend_gpu/elements.h"

#include "base/status_matchers.h"

#ifdef CADRE_HAVE_NCCL_HEADERS

namespace cadre::pretend_gpu {
namespace {

using ::testing::ElementsAre;

template <typename T>
const char* Bytes(const std::vector<T>& values) {
  return reinterpret_cast<const char*>(values.data());
}

template <typename T>
std::vector<T> Reduced(ncclDataType_t type, ncclRedOp_t op, const std::vector<T>& one,
                       const std::vector<T>& other) {
  std::vector<T> result(one.size());
  Reduce(type, op, {Bytes(one), Bytes(other)}, one.size(), reinterpret_cast<char*>(result.data()));
  return result;
}

TEST(ElementsTest, AreReducedByEachOperation) {
  const std::vector<float> one = {1, 5}, other = {3, -2};
  EXPECT_THAT(Reduced(ncclFloat32, ncclSum, one, other), ElementsAre(4, 3));
  EXPECT_THAT(Reduced(ncclFloat32, ncclProd, one, other), ElementsAre(3, -10));
  EXPECT_THAT(Reduced(ncclFloat32, ncclMax, one, other), ElementsAre(3, 5));
  EXPECT_THAT(Reduced(ncclFloat32, ncclMin, one, other), ElementsAre(1, -2));
  EXPECT_THAT(Reduced<int32_t>(ncclInt32, ncclAvg, {1, 5}, {3, -2}), ElementsAre(2, 1));
}

TEST(ElementsTest, AreOfEveryType) {
  EXPECT_THAT(Reduced<int8_t>(ncclInt8, ncclSum, {-5}, {2}), ElementsAre(-3));
  EXPECT_THAT(Reduced<uint8_t>(ncclUint8, ncclSum, {200}, {50}), ElementsAre(250));
  EXPECT_THAT(Reduced<uint32_t>(ncclUint32, ncclMax, {1}, {4000000000u}), ElementsAre(4000000000u));
  EXPECT_THAT(Reduced<int64_t>(ncclInt64, ncclSum, {int64_t{1} << 40}, {1}),
              ElementsAre((int64_t{1} << 40) + 1));
  EXPECT_THAT(Reduced<uint64_t>(ncclUint64, ncclMin, {7}, {~uint64_t{0}}), ElementsAre(7));
  EXPECT_THAT(Reduced<double>(ncclFloat64, ncclSum, {0.1}, {0.2}), ElementsAre(0.1 + 0.2));
  // 1 + 1 is 2.
  EXPECT_THAT(Reduced<uint16_t>(ncclFloat16, ncclSum, {0x3c00}, {0x3c00}), ElementsAre(0x4000));
  EXPECT_THAT(Reduced<uint16_t>(ncclBfloat16, ncclSum, {0x3f80}, {0x3f80}), ElementsAre(0x4000));
  EXPECT_EQ(SizeOf(ncclNumTypes), 0u);
}

TEST(ElementsTest, AreMultipliedInTheirType) {
  std::vector<float> values = {1, 3};
  const std::string quarter = AverageFactor(ncclFloat32, 4);
  Multiply(ncclFloat32, quarter.data(), 2, reinterpret_cast<char*>(values.data()));
  EXPECT_THAT(values, ElementsAre(0.25f, 0.75f));
  std::vector<uint16_t> halves = {0x4000};
  Multiply(ncclFloat16, AverageFactor(ncclFloat16, 2).data(), 1,
           reinterpret_cast<char*>(halves.data()));
  EXPECT_THAT(halves, ElementsAre(0x3c00));
  EXPECT_EQ(AverageFactor(ncclInt32, 2), "");
}

}  // namespace
}  // namespace cadre::pretend_gpu

#else

TEST(ElementsTest, NeedsNcclsHeader) { GTEST_SKIP() << "built without nccl.h"; }

#endif  // CADRE_HAVE_NCCL_HEADERS
