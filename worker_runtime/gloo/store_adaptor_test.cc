#include "worker_runtime/gloo/store_adaptor.h"

#include <thread>

#include "base/clock.h"
#include "base/status_matchers.h"
#include "gloo/common/error.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::gloo {
namespace {

using ::testing::HasSubstr;

std::vector<char> Bytes(size_t size) {
  std::vector<char> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
  return bytes;
}

class StoreAdaptorTest : public ::testing::Test {
 protected:
  testing::InProcessWorkers workers_{2};
  const MonoTime deadline_ = MonoNow() + absl::Minutes(1);
  StoreAdaptor one_{&workers_.worker(0), "gloo/world/1", deadline_};
  StoreAdaptor other_{&workers_.worker(1), "gloo/world/1", deadline_};
};

TEST_F(StoreAdaptorTest, CarriesValuesOfAnySize) {
  for (const size_t size : {size_t{0}, size_t{1}, kStorePartBytes - 1, kStorePartBytes,
                            kStorePartBytes + 1, 5 * kStorePartBytes}) {
    const std::string key = std::to_string(size);
    one_.set(key, Bytes(size));
    other_.wait({key});
    EXPECT_EQ(other_.get(key), Bytes(size)) << size;
  }
}

TEST_F(StoreAdaptorTest, WaitsForTheOther) {
  std::thread writer([this] { one_.set("1", Bytes(3 * kStorePartBytes)); });
  EXPECT_EQ(other_.get("1"), Bytes(3 * kStorePartBytes));
  writer.join();
}

TEST_F(StoreAdaptorTest, PrefixesKeepCommunicatorsApart) {
  StoreAdaptor second(&workers_.worker(1), "gloo/world/2", MonoNow());
  one_.set("1", Bytes(3));
  EXPECT_THROW(second.get("1"), ::gloo::IoException);
  EXPECT_THAT(second.status(), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(StoreAdaptorTest, ThrowsAndKeepsTheStatus) {
  workers_.EndGeneration();
  EXPECT_THROW(one_.set("1", Bytes(3)), ::gloo::IoException);
  EXPECT_THAT(one_.status(), StatusIs(absl::StatusCode::kAborted, HasSubstr("current one is 2")));
}

TEST_F(StoreAdaptorTest, RefusesAForeignValue) {
  ASSERT_OK(workers_.worker(0).Set("gloo/world/1/1#0", "hello"));
  EXPECT_THROW(other_.get("1"), ::gloo::IoException);
  EXPECT_THAT(other_.status(), StatusIs(absl::StatusCode::kInternal, HasSubstr("1#0")));
}

}  // namespace
}  // namespace cadre::gloo
