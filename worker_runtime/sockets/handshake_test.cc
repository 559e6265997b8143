#include "worker_runtime/sockets/handshake.h"

#include "base/status_matchers.h"

namespace cadre::sockets {
namespace {

using ::testing::HasSubstr;

const std::string kKey(32, 'k');
const std::string kCallersNonce(kNonceBytes, 'c');
const std::string kOwnNonce(kNonceBytes, 'o');

Handshake Caller(const std::string& key, int to = 1) {
  return Handshake::Call(key, 3, to, Purpose::kMessages, kCallersNonce);
}
Handshake Called(const std::string& key, const std::string& nonce = kOwnNonce) {
  return Handshake::Answer(key, 1, 4, nonce);
}

TEST(HandshakeTest, WhoKnowsTheKeyIsKnown) {
  Handshake caller = Caller(kKey), called = Called(kKey);
  ASSERT_EQ(caller.output().size(), called.wanted());
  ASSERT_OK(called.Receive(caller.output()));
  ASSERT_EQ(called.output().size(), caller.wanted());
  ASSERT_OK(caller.Receive(called.output()));
  EXPECT_FALSE(caller.is_done() || called.is_done());
  ASSERT_OK(called.Receive(caller.output()));
  EXPECT_TRUE(called.is_done());
  ASSERT_OK(caller.Receive(called.output()));
  EXPECT_TRUE(caller.is_done());
  EXPECT_EQ(called.peer(), 3);
  EXPECT_EQ(called.purpose(), Purpose::kMessages);
}

TEST(HandshakeTest, EveryRankMayCallTheStore) {
  for (const int rank : {0, 3}) {
    Handshake caller = Handshake::Call(kKey, rank, kStoreRank, Purpose::kStore, kCallersNonce);
    Handshake called = Handshake::Answer(kKey, kStoreRank, 4, kOwnNonce);
    ASSERT_OK(called.Receive(caller.output()));
    ASSERT_OK(caller.Receive(called.output()));
    ASSERT_OK(called.Receive(caller.output()));
    EXPECT_EQ(called.peer(), rank);
    EXPECT_EQ(called.purpose(), Purpose::kStore);
  }
}

TEST(HandshakeTest, ACallerWithAnotherKeyIsRefused) {
  Handshake caller = Caller("another"), called = Called(kKey);
  ASSERT_OK(called.Receive(caller.output()));
  // It cannot check the answer, and goes on all the same.
  EXPECT_THAT(caller.Receive(called.output()), StatusIs(StatusCode::kPermissionDenied));
  EXPECT_THAT(called.Receive(std::string(called.wanted(), 'x')),
              StatusIs(StatusCode::kPermissionDenied, HasSubstr("who calls as rank 3")));
}

TEST(HandshakeTest, WhatWasOverheardServesNoOtherConnection) {
  Handshake caller = Caller(kKey), called = Called(kKey);
  const std::string hello = caller.output();
  ASSERT_OK(called.Receive(hello));
  const std::string challenge = called.output();
  ASSERT_OK(caller.Receive(challenge));
  const std::string proof = caller.output();
  Handshake again = Called(kKey, std::string(kNonceBytes, 'p'));
  ASSERT_OK(again.Receive(hello));
  EXPECT_FALSE(again.Receive(proof).ok());
  // Nor does the answer of the called side prove a caller.
  Handshake reflected = Called(kKey);
  ASSERT_OK(reflected.Receive(hello));
  EXPECT_FALSE(reflected.Receive(challenge.substr(kNonceBytes)).ok());
}

TEST(HandshakeTest, RefusesStrangersAndOtherRanks) {
  Handshake called = Called(kKey);
  EXPECT_THAT(called.Receive("GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n\r\n"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("a stranger connected")));
  Handshake for_another = Called(kKey);
  EXPECT_THAT(for_another.Receive(Caller(kKey, 2).output()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("calls rank 2")));
  Handshake from_below = Called(kKey);
  EXPECT_FALSE(
      from_below.Receive(Handshake::Call(kKey, 0, 1, Purpose::kControl, kCallersNonce).output())
          .ok());
}

}  // namespace
}  // namespace cadre::sockets
