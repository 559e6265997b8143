#include "worker_runtime/sockets/handshake.h"

#include <set>

#include "base/status_matchers.h"

namespace cadre::sockets {
namespace {

using ::testing::HasSubstr;

const std::string kKey(32, 'k');
const std::string kCallersNonce(kNonceBytes, 'c');
const std::string kOwnNonce(kNonceBytes, 'o');

Handshake Caller(const std::string& key, int to = 1) {
  return Handshake::Call({key}, 3, to, Purpose::kMessages, kCallersNonce);
}
Handshake Called(const std::string& key, const std::string& nonce = kOwnNonce) {
  return Handshake::Answer({key}, 1, 4, nonce);
}

void Finish(Handshake& caller, Handshake& called) {
  ASSERT_OK(called.Receive(caller.output()));
  ASSERT_OK(caller.Receive(called.output()));
  ASSERT_OK(called.Receive(caller.output()));
  ASSERT_OK(caller.Receive(called.output()));
  EXPECT_TRUE(caller.is_done() && called.is_done());
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
  EXPECT_FALSE(caller.MakeRecordKeys().has_value() || called.MakeRecordKeys().has_value());
}

TEST(HandshakeTest, EveryRankMayCallTheStore) {
  for (const int rank : {0, 3}) {
    Handshake caller = Handshake::Call({kKey}, rank, kStoreRank, Purpose::kStore, kCallersNonce);
    Handshake called = Handshake::Answer({kKey}, kStoreRank, 4, kOwnNonce);
    Finish(caller, called);
    EXPECT_EQ(called.peer(), rank);
    EXPECT_EQ(called.purpose(), Purpose::kStore);
  }
}

TEST(HandshakeTest, ACallerWithAnotherKeyIsRefused) {
  Handshake caller = Caller("another"), called = Called(kKey);
  ASSERT_OK(called.Receive(caller.output()));
  // The connecting side cannot verify the answer; here it goes on all the same.
  EXPECT_THAT(caller.Receive(called.output()), StatusIs(StatusCode::kPermissionDenied));
  EXPECT_THAT(
      called.Receive(std::string(called.wanted(), 'x')),
      StatusIs(StatusCode::kPermissionDenied, HasSubstr("a process that says it is rank 3")));
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
  // The accepting side's answer is no proof for a connecting side either.
  Handshake reflected = Called(kKey);
  ASSERT_OK(reflected.Receive(hello));
  EXPECT_FALSE(reflected.Receive(challenge.substr(challenge.size() - reflected.wanted())).ok());
}

TEST(HandshakeTest, RefusesStrangersAndOtherRanks) {
  Handshake called = Called(kKey);
  EXPECT_THAT(
      called.Receive("GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n\r\n\r\n\r\n"),
      StatusIs(
          StatusCode::kInvalidArgument,
          HasSubstr("a process connected whose first bytes are not those of this protocol: ")));
  Handshake for_another = Called(kKey);
  EXPECT_THAT(for_another.Receive(Caller(kKey, 2).output()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("calls rank 2")));
  Handshake from_below = Called(kKey);
  EXPECT_FALSE(
      from_below.Receive(Handshake::Call({kKey}, 0, 1, Purpose::kControl, kCallersNonce).output())
          .ok());
}

TEST(HandshakeTest, BothSidesNameThoseWhoDifferInEncryption) {
  for (const bool caller_encrypts : {false, true}) {
    Handshake caller =
        Handshake::Call({kKey, caller_encrypts}, 3, 1, Purpose::kMessages, kCallersNonce);
    Handshake called = Handshake::Answer({kKey, !caller_encrypts}, 1, 4, kOwnNonce);
    Finish(caller, called);
    const char* const text = caller_encrypts ? "rank 3 encrypts what it sends and rank 1 does not"
                                             : "rank 1 encrypts what it sends and rank 3 does not";
    EXPECT_THAT(caller.CheckEncryption(),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr(text)));
    EXPECT_THAT(called.CheckEncryption(),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr(text)));
  }
}

// Fault (access): A man in the middle tells a rank that the other side does not encrypt -> The
// deceived rank reports a wrong key and does not connect
TEST(HandshakeTest, WhoSaysThatTheOtherSideDoesNotEncryptIsFound) {
  // Alters, in transit, first the connecting side's field "encrypts", then that of the accepting
  // side.
  Handshake caller = Handshake::Call({kKey, true}, 3, 1, Purpose::kMessages, kCallersNonce);
  Handshake called = Handshake::Answer({kKey, true}, 1, 4, kOwnNonce);
  std::string hello = caller.output();
  hello[hello.size() - kNonceBytes - sizeof(uint32_t)] = 0;
  ASSERT_OK(called.Receive(hello));
  EXPECT_THAT(caller.Receive(called.output()), StatusIs(StatusCode::kPermissionDenied));
  Handshake again = Handshake::Answer({kKey, true}, 1, 4, kOwnNonce);
  Handshake calling = Handshake::Call({kKey, true}, 3, 1, Purpose::kMessages, kCallersNonce);
  ASSERT_OK(again.Receive(calling.output()));
  std::string challenge = again.output();
  challenge[kNonceBytes] = 0;
  EXPECT_THAT(calling.Receive(challenge), StatusIs(StatusCode::kPermissionDenied));
}

TEST(HandshakeTest, EachConnectionAndDirectionHasAKeyOfItsOwn) {
  std::set<std::string> keys;
  for (const char* const nonce : {"0123456789abcdef", "fedcba9876543210"}) {
    Handshake caller = Handshake::Call({kKey, true}, 3, 1, Purpose::kMessages, kCallersNonce);
    Handshake called = Handshake::Answer({kKey, true}, 1, 4, nonce);
    Finish(caller, called);
    const auto callers = caller.MakeRecordKeys(), calleds = called.MakeRecordKeys();
    ASSERT_TRUE(callers.has_value() && calleds.has_value());
    EXPECT_EQ(callers->outgoing, calleds->incoming);
    EXPECT_EQ(callers->incoming, calleds->outgoing);
    keys.insert({callers->outgoing, callers->incoming});
  }
  EXPECT_EQ(keys.size(), 4);
}

}  // namespace
}  // namespace cadre::sockets
