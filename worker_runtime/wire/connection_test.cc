#include "worker_runtime/wire/connection.h"

#include <errno.h>
#include <sys/socket.h>

#include <string>
#include <tuple>

#include "gtest/gtest.h"
#include "worker_runtime/wire/connected_pair.h"

namespace cadre::wire {
namespace {

// Both ends, encrypted.
class ConnectionTest : public ::testing::Test {
 protected:
  ConnectionTest() { std::tie(near_, far_) = ConnectedPair(/*is_encrypted=*/true); }
  std::string Receive(Connection& at, size_t limit = 100) {
    std::string bytes(limit, ' ');
    const ssize_t got = at.Receive(&bytes[0], limit);
    return got < 0 ? EndText(errno) : bytes.substr(0, static_cast<size_t>(got));
  }

  Connection near_, far_;
};

TEST_F(ConnectionTest, GoesBothWays) {
  EXPECT_EQ(near_.Send("there"), 5);
  EXPECT_EQ(far_.Send("back"), 4);
  EXPECT_EQ(Receive(far_), "there");
  EXPECT_EQ(Receive(near_), "back");
}

TEST_F(ConnectionTest, WhatASocketDoesNotTakeIsTakenLater) {
  std::string sent(8 << 20, 's');
  for (size_t i = 0; i < sent.size(); i += 4096) sent[i] = static_cast<char>(i >> 12);
  size_t done = 0;
  std::string got;
  while (got.size() < sent.size()) {
    const ssize_t taken = near_.Send(absl::string_view(sent).substr(done));
    if (taken < 0) {
      ASSERT_EQ(errno, EAGAIN);
    } else {
      done += static_cast<size_t>(taken);
    }
    std::string some(100000, ' ');
    const ssize_t came = far_.Receive(&some[0], some.size());
    if (came < 0) {
      ASSERT_EQ(errno, EAGAIN);
    } else {
      got.append(some, 0, static_cast<size_t>(came));
    }
  }
  EXPECT_TRUE(got == sent);
}

TEST_F(ConnectionTest, WhatIsAlteredOnItsWayIsNotTaken) {
  ASSERT_EQ(near_.Send("gradients"), 9);
  std::string record(100, ' ');
  const ssize_t bytes = recv(far_.fd(), &record[0], record.size(), 0);
  ASSERT_GT(bytes, 9);
  record.resize(static_cast<size_t>(bytes));
  record[kRecordHeadBytes] ^= 1;
  ASSERT_EQ(send(near_.fd(), record.data(), record.size(), 0), bytes);
  EXPECT_EQ(Receive(far_), "what came was altered on its way");
}

TEST_F(ConnectionTest, AnEndIsFoundBehindWhatCameBefore) {
  ASSERT_EQ(near_.Send("last"), 4);
  near_.Close();
  EXPECT_EQ(Receive(far_), "last");
  EXPECT_EQ(Receive(far_), "");
  far_.Send("nobody there");
  EXPECT_EQ(far_.Send("x"), -1);
  EXPECT_EQ(errno, EPIPE);
}

}  // namespace
}  // namespace cadre::wire
