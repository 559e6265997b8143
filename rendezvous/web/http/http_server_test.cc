#include "rendezvous/web/http/http_server.h"

#include <poll.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "rendezvous/web/http/mailbox.h"
#include "rendezvous/web/http/reader_for_test.h"

namespace cadre::web {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kTimeout = absl::Seconds(20);

using Reader = ReaderForTest;

class HttpServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = HttpServer::Listen("127.0.0.1", 0);
    ASSERT_OK(server);
    server_ = *std::move(server);
    server_->Serve([this](const HttpRequest& request,
                          std::shared_ptr<HttpExchange> exchange) { Answer(request, exchange); },
                   absl::Milliseconds(5), [this] { Tick(); });
  }
  void TearDown() override { server_.reset(); }

  void Answer(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) {
    if (request.path == "/stream") {
      if (exchange->Begin("text/plain")) streams_.push_back(exchange);
    } else if (request.path == "/large") {
      exchange->Reply(200, "text/plain", std::string(kHttpWaitingBytesMax, 'x'));
    } else if (request.path == "/silent") {
      ASSERT_TRUE(exchange->Begin("text/plain"));
      later_ = exchange;
      came_.Notify();
    } else if (request.path == "/later") {
      later_ = exchange;
      came_.Notify();
    } else {
      exchange->Reply(200, "text/plain", absl::StrCat("you asked for ", request.path));
    }
  }
  void Tick() {
    for (const auto& stream : streams_)
      stream->Write(filler_ ? std::string(1 << 20, 'x') : "beat ");
  }

  std::unique_ptr<HttpServer> server_;
  // Used by the server's thread.
  std::vector<std::shared_ptr<HttpExchange>> streams_;
  std::shared_ptr<HttpExchange> later_;
  absl::Notification came_;
  std::atomic<bool> filler_{false};
};

TEST_F(HttpServerTest, AnswersAndCloses) {
  Reader reader(server_->port());
  reader.Get("/x");
  EXPECT_THAT(reader.All(), AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("you asked for /x"),
                                  HasSubstr("Content-Security-Policy: default-src 'none'"),
                                  HasSubstr("Connection: close\r\n")));
  Reader head(server_->port());
  head.Send("HEAD /x HTTP/1.1\r\n\r\n");
  EXPECT_THAT(head.All(),
              AllOf(HasSubstr("Content-Length: 16\r\n"), testing::Not(HasSubstr("you asked"))));
}

TEST_F(HttpServerTest, APieceAtATimeIsARequestToo) {
  Reader reader(server_->port());
  for (const char* piece : {"GE", "T /y HTTP/1.1\r\n", "Host: a\r", "\n\r", "\n"}) {
    reader.Send(piece);
  }
  EXPECT_THAT(reader.All(), HasSubstr("you asked for /y"));
}

TEST_F(HttpServerTest, WhatIsNoRequestIsToldSo) {
  Reader nonsense(server_->port()), post(server_->port()), large(server_->port());
  nonsense.Send("nonsense\r\n\r\n");
  EXPECT_THAT(nonsense.All(), StartsWith("HTTP/1.1 400 "));
  post.Send("POST / HTTP/1.1\r\n\r\n");
  EXPECT_THAT(post.All(), AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: GET, HEAD\r\n")));
  large.Send("GET / HTTP/1.1\r\nX: " + std::string(kHttpHeadBytesMax, 'x'));
  EXPECT_THAT(large.All(), StartsWith("HTTP/1.1 431 "));
}

TEST_F(HttpServerTest, AReaderThatSaysNothingIsClosed) {
  Reader silent(server_->port());
  EXPECT_EQ(silent.All(), "");
}

TEST_F(HttpServerTest, AnswersFromOtherThreads) {
  Reader reader(server_->port());
  reader.Get("/later");
  ASSERT_TRUE(came_.WaitForNotificationWithTimeout(kTimeout));
  server_->poster()([this] { later_->Reply(200, "text/plain", "at last"); });
  EXPECT_THAT(reader.All(), HasSubstr("at last"));
  server_->Drain(kTimeout);
}

TEST_F(HttpServerTest, AStreamWithNothingLeftToSayEndsAtOnce) {
  Reader reader(server_->port());
  reader.Get("/silent");
  ASSERT_TRUE(came_.WaitForNotificationWithTimeout(kTimeout));
  ASSERT_TRUE(reader.Await("\r\n\r\n"));
  server_->poster()([this] { later_->End(); });
  EXPECT_THAT(reader.All(), testing::EndsWith("\r\n\r\n"));
}

TEST_F(HttpServerTest, AnAnswerToOneThatHasGoneIsNothing) {
  {
    Reader reader(server_->port());
    reader.Get("/later");
    ASSERT_TRUE(came_.WaitForNotificationWithTimeout(kTimeout));
  }
  server_->Drain(kTimeout);  // until the server has noticed its end
  absl::Notification answered;
  server_->poster()([&] {
    EXPECT_TRUE(later_->closed());
    later_->Reply(200, "text/plain", "too late");
    answered.Notify();
  });
  EXPECT_TRUE(answered.WaitForNotificationWithTimeout(kTimeout));
}

TEST_F(HttpServerTest, StreamsGoOn_OneThatIsNotReadIsClosed) {
  Reader reader(server_->port());
  reader.Get("/stream");
  EXPECT_TRUE(reader.Await("beat beat beat"));
  filler_ = true;
  // Reading nothing for a while means that only what fits into the buffers arrives.
  absl::Notification closed;
  while (!closed.HasBeenNotified()) {
    absl::Notification looked;
    server_->poster()([&] {
      if (streams_[0]->closed()) closed.Notify();
      looked.Notify();
    });
    ASSERT_TRUE(looked.WaitForNotificationWithTimeout(kTimeout));
  }
  Reader other(server_->port());
  other.Get("/x");
  EXPECT_THAT(other.All(), HasSubstr("you asked for /x"));
}

TEST(HttpServerLargePieceTest, APieceOfAnySizeReachesWhoReads) {
  auto server = HttpServer::Listen("127.0.0.1", 0);
  ASSERT_OK(server);
  (*server)->Serve(
      [](const HttpRequest&, std::shared_ptr<HttpExchange> exchange) {
        ASSERT_TRUE(exchange->Begin("text/plain"));
        // Written after the reply's head, which is still unread.
        exchange->Write(absl::StrCat(std::string(2 * kHttpStreamBytesMax, 'x'), "end"));
        exchange->End();
      },
      absl::Seconds(1), [] {});
  Reader reader((*server)->port());
  reader.Get("/");
  EXPECT_TRUE(absl::EndsWith(reader.All(), "xend"));
}

// Fault (display): Readers of the dashboard or its logs stop reading -> At most 64 MiB wait for all
// of them together, and new readers may get 503
TEST_F(HttpServerTest, WhatWaitsForAllReadersTogetherIsBounded) {
  // Nine of them fit, also if each has one more piece.
  constexpr size_t kEach = 13 << 19, kFit = kHttpWaitingBytesMax / kEach;
  const std::string piece(1 << 19, 'x');
  std::vector<std::unique_ptr<Reader>> readers;
  while (readers.size() < kFit + 3) {
    readers.push_back(std::make_unique<Reader>(server_->port()));
    readers.back()->Get("/stream");
    EXPECT_TRUE(readers.back()->Await("beat"));
  }
  Reader next(server_->port());
  next.Get("/later");
  ASSERT_TRUE(came_.WaitForNotificationWithTimeout(kTimeout));
  // No reader reads any more. Each gets as much as it may have, as long as it is connected.
  for (bool all_full = false; !all_full;) {
    absl::Notification written;
    server_->poster()([&] {
      size_t all = 0, full = 0, open = 0;
      for (const auto& stream : streams_) {
        if (stream->waiting() < kEach) stream->Write(piece);
      }
      for (const auto& stream : streams_) {
        all += stream->waiting();
        open += !stream->closed();
        full += stream->waiting() >= kEach;
      }
      EXPECT_LE(all, kHttpWaitingBytesMax);
      EXPECT_GE(open, kFit);
      all_full = full == open;
      if (all_full) {
        EXPECT_FALSE(later_->Begin("text/plain"));
      }
      written.Notify();
    });
    ASSERT_TRUE(written.WaitForNotificationWithTimeout(kTimeout));
  }
  Reader large(server_->port()), small(server_->port());
  large.Get("/large");
  for (Reader* refused : {&next, &large}) {
    EXPECT_THAT(refused->All(),
                AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("too many bytes wait")));
  }
  small.Get("/x");
  EXPECT_THAT(small.All(), HasSubstr("you asked for /x"));
}

// Fault (display): A reader of the dashboard takes nothing for 30 s (50 ms in the test) -> Its
// stream is closed
TEST(HttpServerStallTest, AStreamOfWhichNothingIsTakenIsClosed) {
  auto server = HttpServer::Listen("127.0.0.1", 0, absl::Milliseconds(50));
  ASSERT_OK(server);
  std::shared_ptr<HttpExchange> stream;
  absl::Notification closed;
  (*server)->Serve(
      [&](const HttpRequest&, std::shared_ptr<HttpExchange> exchange) {
        if (exchange->Begin("text/plain")) stream = std::move(exchange);
      },
      absl::Milliseconds(5),
      [&] {
        if (stream == nullptr || closed.HasBeenNotified()) return;
        // Less than the limit at which it is closed at once.
        if (stream->waiting() < 1 << 20) stream->Write(std::string(1 << 20, 'x'));
        if (stream->closed()) closed.Notify();
      });
  Reader reader((*server)->port());
  reader.Get("/");
  EXPECT_TRUE(closed.WaitForNotificationWithTimeout(kTimeout));
}

// Fault (access): Silent connections take all places of the HTTP port -> The oldest of them is
// closed for each new connection
TEST_F(HttpServerTest, TooManyStreamsAreRefused_AConnectionThatSaysNothingGivesWay) {
  std::vector<std::unique_ptr<Reader>> readers;
  for (size_t i = 0; i < kHttpStreamsMax; ++i) {
    readers.push_back(std::make_unique<Reader>(server_->port()));
    readers.back()->Get("/stream");
    EXPECT_TRUE(readers.back()->Await("beat"));
  }
  Reader refused(server_->port());
  refused.Get("/stream");
  EXPECT_THAT(refused.All(), StartsWith("HTTP/1.1 503 "));
  while (readers.size() < kHttpConnectionsMax) {
    readers.push_back(std::make_unique<Reader>(server_->port()));
  }
  // A connection without a request is replaced, and no other.
  Reader next(server_->port());
  next.Get("/x");
  EXPECT_THAT(next.All(), HasSubstr("you asked for /x"));
  readers.back()->Get("/y");
  EXPECT_THAT(readers.back()->All(), HasSubstr("you asked for /y"));
}

TEST(HttpServerListenTest, APortInUseIsNamed) {
  auto first = HttpServer::Listen("127.0.0.1", 0);
  ASSERT_OK(first);
  EXPECT_THAT(HttpServer::Listen("127.0.0.1", (*first)->port()),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr(absl::StrCat("port ", (*first)->port()))));
}

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
