#include "rendezvous/web/http/mailbox.h"

#include <poll.h>

#include <functional>
#include <memory>
#include <utility>

#include "gtest/gtest.h"

namespace cadre::web {
namespace {

bool Readable(const Mailbox& mailbox) {
  pollfd wait = {mailbox.fd(), POLLIN, 0};
  return poll(&wait, 1, 0) == 1;
}

TEST(Mailbox, HoldsTasksUntilTheyAreTaken) {
  Mailbox mailbox(2);
  int ran = 0;
  EXPECT_FALSE(Readable(mailbox));
  for (int i = 0; i < 3; ++i) mailbox.Post([&] { ++ran; });
  EXPECT_TRUE(Readable(mailbox));
  for (const std::function<void()>& task : mailbox.Take()) task();
  EXPECT_EQ(ran, 3);
  EXPECT_FALSE(Readable(mailbox));
}

TEST(Mailbox, APlaceIsFreeAgainWhenItsTaskHasRun) {
  Mailbox mailbox(2);
  std::shared_ptr<const void> first = mailbox.TakePlace(), second = mailbox.TakePlace();
  EXPECT_NE(first, nullptr);
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(mailbox.TakePlace(), nullptr);
  mailbox.Post([place = std::move(first)] {});
  EXPECT_EQ(mailbox.TakePlace(), nullptr);
  for (const std::function<void()>& task : mailbox.Take()) task();
  EXPECT_NE(mailbox.TakePlace(), nullptr);
}

TEST(Mailbox, APlaceMayOutliveIt) {
  auto mailbox = std::make_unique<Mailbox>(1);
  std::shared_ptr<const void> place = mailbox->TakePlace();
  EXPECT_NE(place, nullptr);
  mailbox.reset();
  place.reset();
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
