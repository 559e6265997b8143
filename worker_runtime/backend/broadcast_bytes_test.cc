#include "worker_runtime/backend/broadcast_bytes.h"

#include <chrono>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/testing/ranks.h"

namespace cadre::backend {
namespace {

constexpr std::chrono::nanoseconds kLong = std::chrono::seconds(30);

TEST(BroadcastBytes, TheRootsAreEverybodys) {
  testing::OnEachRank(shared_memory::ConnectSharedMemory, 3, [](Communicator& communicator) {
    const std::string own = communicator.rank() == 1 ? std::string(1000, 'x') : "other";
    const auto bytes = BroadcastBytes(communicator, own, 1, 1000, kLong);
    ASSERT_OK(bytes);
    EXPECT_EQ(*bytes, std::string(1000, 'x'));
  });
}

TEST(BroadcastBytes, NoneAreBroadcastToo) {
  testing::OnEachRank(shared_memory::ConnectSharedMemory, 2, [](Communicator& communicator) {
    const std::string own = communicator.rank() == 0 ? "" : "other";
    EXPECT_EQ(*BroadcastBytes(communicator, own, 0, 10, kLong), "");
  });
}

TEST(BroadcastBytes, TooManyAreRefusedByAll) {
  testing::OnEachRank(shared_memory::ConnectSharedMemory, 2, [](Communicator& communicator) {
    const auto bytes = BroadcastBytes(communicator, "12345", 0, 4, kLong);
    EXPECT_EQ(bytes.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(bytes.status().message(), ::testing::HasSubstr("at most 4"));
  });
}

}  // namespace
}  // namespace cadre::backend
