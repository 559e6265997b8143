#include "rendezvous/web/http/mailbox.h"

#include <poll.h>

#include <functional>

#include "gtest/gtest.h"

namespace cadre::web {
namespace {

bool Readable(const Mailbox& mailbox) {
  pollfd wait = {mailbox.fd(), POLLIN, 0};
  return poll(&wait, 1, 0) == 1;
}

TEST(Mailbox, HoldsTasksUpToItsLimitUntilTheyAreTaken) {
  Mailbox mailbox(2);
  int ran = 0;
  EXPECT_FALSE(Readable(mailbox));
  for (int i = 0; i < 3; ++i) mailbox.Post([&] { ++ran; });
  EXPECT_TRUE(Readable(mailbox));
  for (const std::function<void()>& task : mailbox.Take()) task();
  EXPECT_EQ(ran, 2);
  EXPECT_FALSE(Readable(mailbox));
}

TEST(Mailbox, WhenClosedItTakesNothing) {
  Mailbox mailbox(2);
  mailbox.Post([] {});
  mailbox.Close();
  mailbox.Post([] {});
  EXPECT_TRUE(mailbox.Take().empty());
}

TEST(Mailbox, StopWakesTheLoop) {
  Mailbox mailbox(2);
  EXPECT_FALSE(mailbox.stopping());
  mailbox.Stop();
  EXPECT_TRUE(mailbox.stopping());
  EXPECT_TRUE(Readable(mailbox));
}

}  // namespace
}  // namespace cadre::web
