#include "agent/torch_store/torch_request_reader.h"

#include <random>

#include "absl/strings/str_join.h"
#include "agent/torch_store/limits.h"
#include "agent/torch_store/request_bytes.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string Say(const TorchRequest& request) {
  return absl::StrCat(static_cast<int>(request.op), "|", absl::StrJoin(request.keys, ","), "|",
                      absl::StrJoin(request.values, ","), "|", request.number);
}

// What a reader makes of the pieces, one after the other, and why it stopped.
absl::StatusOr<std::vector<std::string>> ReadAll(const std::vector<std::string>& pieces) {
  TorchRequestReader reader;
  std::vector<std::string> requests;
  for (const std::string& piece : pieces) {
    absl::string_view bytes = piece;
    while (!bytes.empty()) {
      TorchRequest request;
      const absl::StatusOr<bool> complete = reader.Read(&bytes, &request);
      if (!complete.ok()) return complete.status();
      EXPECT_TRUE(*complete || bytes.empty());
      if (*complete) requests.push_back(Say(request));
    }
  }
  EXPECT_EQ(reader.held_bytes(), 0u);
  return requests;
}

// One of each opcode, and those of no keys.
std::string EveryRequest() {
  return ValidateBytes() + PingBytes(0xFFFFFFFF) + TextsRequest(TorchOp::kSet, {"/a", "v"}) +
         TextsRequest(TorchOp::kSet, {"", ""}) +
         TextsRequest(TorchOp::kCompareSet, {"/a", "v", "w"}) +
         TextsRequest(TorchOp::kGet, {"/a"}) + NumberRequest(TorchOp::kAdd, "init/", -3) +
         KeysRequest(TorchOp::kCheck, {"/a", "/b"}) + KeysRequest(TorchOp::kWait, {}) +
         KeysRequest(TorchOp::kWait, {"/c"}) + rpc::TorchOpByte(TorchOp::kGetNumKeys) +
         TextsRequest(TorchOp::kDeleteKey, {"/a"}) +
         TextsRequest(TorchOp::kAppend, {"/a", std::string("\0x", 2)}) +
         KeysRequest(TorchOp::kMultiGet, {"/a", "", "/b"}) + rpc::TorchOpByte(TorchOp::kMultiSet) +
         rpc::LittleEndian64(2) + rpc::TorchText("/a") + rpc::TorchText("1") +
         rpc::TorchText("/b") + rpc::TorchText("") + rpc::TorchOpByte(TorchOp::kMultiSet) +
         rpc::LittleEndian64(0) + rpc::TorchOpByte(TorchOp::kCancelWait) +
         TextsRequest(TorchOp::kQueuePush, {"/q", "v"}) + TextsRequest(TorchOp::kQueuePop, {"/q"}) +
         TextsRequest(TorchOp::kQueueLen, {"/q"}) + rpc::TorchOpByte(TorchOp::kListKeys) +
         NumberRequest(TorchOp::kBarrier, "/b", 1000);
}

std::vector<std::string> EveryRequestInWords() {
  return {"0|||1015412686",
          "13|||4294967295",
          "1|/a|v|0",
          "1|||0",
          "2|/a|v,w|0",
          "3|/a||0",
          "4|init/||-3",
          "5|/a,/b||0",
          "6|||0",
          "6|/c||0",
          "7|||0",
          "8|/a||0",
          std::string("9|/a|\0x|0", 9),
          "10|/a,,/b||0",
          "11|/a,/b|1,|0",
          "11|||0",
          "12|||0",
          "14|/q|v|0",
          "15|/q||0",
          "16|/q||0",
          "17|||0",
          "18|/b||1000"};
}

TEST(TorchRequestReaderTest, EveryOpcode) {
  const auto requests = ReadAll({EveryRequest()});
  ASSERT_OK(requests);
  EXPECT_EQ(*requests, EveryRequestInWords());
}

TEST(TorchRequestReaderTest, ByteByByte) {
  std::vector<std::string> pieces;
  for (const char byte : EveryRequest()) pieces.push_back(std::string(1, byte));
  const auto requests = ReadAll(pieces);
  ASSERT_OK(requests);
  EXPECT_EQ(*requests, EveryRequestInWords());
}

TEST(TorchRequestReaderTest, InPiecesOfAnySize) {
  std::mt19937 random(7);
  const std::string all = EveryRequest();
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> pieces;
    for (size_t at = 0; at < all.size();) {
      const size_t size = 1 + random() % 40;
      pieces.push_back(all.substr(at, size));
      at += size;
    }
    const auto requests = ReadAll(pieces);
    ASSERT_OK(requests);
    ASSERT_EQ(*requests, EveryRequestInWords());
  }
}

// Whatever comes, the reader takes it or refuses it, and holds no more than came.
TEST(TorchRequestReaderTest, Garbage) {
  std::mt19937 random(11);
  for (int round = 0; round < 20000; ++round) {
    std::string garbage = round % 2 == 0 ? "" : EveryRequest();
    for (size_t i = 0; i < 64; ++i) garbage.push_back(static_cast<char>(random()));
    if (round % 2 != 0) garbage[random() % garbage.size()] ^= static_cast<char>(1 + random() % 255);
    TorchRequestReader reader;
    absl::string_view bytes = garbage;
    TorchRequest request;
    absl::StatusOr<bool> complete = true;
    while (complete.ok() && *complete && !bytes.empty()) {
      complete = reader.Read(&bytes, &request);
    }
    EXPECT_LE(reader.held_bytes(), 64 * garbage.size());
  }
}

TEST(TorchRequestReaderTest, UnknownOpcodeIsRefused) {
  for (const int opcode : {19, 42, 255}) {
    EXPECT_THAT(
        ReadAll({std::string(1, static_cast<char>(opcode))}),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(absl::StrCat("opcode ", opcode))));
  }
}

TEST(TorchRequestReaderTest, LengthsOverTheLimitsAreRefusedBeforeTheirBytesCome) {
  const auto begins = [](TorchOp op, uint64_t number) {
    return ReadAll({rpc::TorchOpByte(op) + rpc::LittleEndian64(number)}).status();
  };
  EXPECT_THAT(begins(TorchOp::kGet, kMaxTorchKeyBytes + 1), Not(IsOk()));
  EXPECT_THAT(begins(TorchOp::kGet, UINT64_MAX), Not(IsOk()));
  EXPECT_THAT(begins(TorchOp::kWait, kMaxTorchKeysPerCall + 1), Not(IsOk()));
  EXPECT_THAT(begins(TorchOp::kMultiSet, UINT64_MAX), Not(IsOk()));
  const std::string set = rpc::TorchOpByte(TorchOp::kSet) + rpc::TorchText("/a");
  EXPECT_THAT(ReadAll({set + rpc::LittleEndian64(kMaxTorchValueBytes + 1)}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("8388608")));
}

TEST(TorchRequestReaderTest, WhatIsAtTheLimitsIsTaken) {
  const std::string key(kMaxTorchKeyBytes, 'k'), value(kMaxTorchValueBytes, 'v');
  const auto set = ReadAll({TextsRequest(TorchOp::kSet, {key, value})});
  ASSERT_OK(set);
  EXPECT_THAT(*set, ElementsAre(absl::StrCat("1|", key, "|", value, "|0")));
  EXPECT_OK(ReadAll(
      {KeysRequest(TorchOp::kCheck, std::vector<std::string>(kMaxTorchKeysPerCall, "/k"))}));
}

TEST(TorchRequestReaderTest, ARequestHasALimitAsAWhole) {
  const std::string value(kMaxTorchValueBytes, 'v');
  std::string begun = rpc::TorchOpByte(TorchOp::kMultiSet) + rpc::LittleEndian64(100);
  for (int i = 0; i < 8; ++i) begun += rpc::TorchText("/k") + rpc::TorchText(value);
  EXPECT_THAT(ReadAll({begun}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("64 MiB")));
}

TEST(TorchRequestReaderTest, HoldsNoMoreThanCame) {
  TorchRequestReader reader;
  const std::string begun =
      rpc::TorchOpByte(TorchOp::kSet) + rpc::LittleEndian64(kMaxTorchKeyBytes) + "abc";
  absl::string_view bytes = begun;
  TorchRequest request;
  const auto complete = reader.Read(&bytes, &request);
  ASSERT_OK(complete);
  EXPECT_FALSE(*complete);
  EXPECT_THAT(bytes, IsEmpty());
  EXPECT_LE(reader.held_bytes(), 3 + sizeof(std::string));
}

}  // namespace
}  // namespace cadre::agent
