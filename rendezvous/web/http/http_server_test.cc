#include "rendezvous/web/http/http_server.h"

#include <atomic>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status_matchers.h"
#include "rendezvous/web/http/reader_for_test.h"

namespace cadre::web {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kPatience = absl::Seconds(20);

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
  // Of the server's thread.
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
  ASSERT_TRUE(came_.WaitForNotificationWithTimeout(kPatience));
  server_->poster()([this] { later_->Reply(200, "text/plain", "at last"); });
  EXPECT_THAT(reader.All(), HasSubstr("at last"));
  server_->Drain(kPatience);
}

TEST_F(HttpServerTest, AStreamWithNothingLeftToSayEndsAtOnce) {
  Reader reader(server_->port());
  reader.Get("/silent");
  ASSERT_TRUE(came_.WaitForNotificationWithTimeout(kPatience));
  ASSERT_TRUE(reader.Await("\r\n\r\n"));
  server_->poster()([this] { later_->End(); });
  EXPECT_THAT(reader.All(), testing::EndsWith("\r\n\r\n"));
}

TEST_F(HttpServerTest, AnAnswerToOneThatHasGoneIsNothing) {
  {
    Reader reader(server_->port());
    reader.Get("/later");
    ASSERT_TRUE(came_.WaitForNotificationWithTimeout(kPatience));
  }
  server_->Drain(kPatience);  // until its end was seen
  absl::Notification answered;
  server_->poster()([&] {
    EXPECT_TRUE(later_->closed());
    later_->Reply(200, "text/plain", "too late");
    answered.Notify();
  });
  EXPECT_TRUE(answered.WaitForNotificationWithTimeout(kPatience));
}

TEST_F(HttpServerTest, StreamsGoOn_OneThatIsNotReadIsClosed) {
  Reader reader(server_->port());
  reader.Get("/stream");
  EXPECT_TRUE(reader.Await("beat beat beat"));
  filler_ = true;
  // Reading nothing for a while means: nothing more than what fits into the buffers comes.
  absl::Notification closed;
  while (!closed.HasBeenNotified()) {
    absl::Notification looked;
    server_->poster()([&] {
      if (streams_[0]->closed()) closed.Notify();
      looked.Notify();
    });
    ASSERT_TRUE(looked.WaitForNotificationWithTimeout(kPatience));
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
        // Behind the reply's head, which waits still.
        exchange->Write(absl::StrCat(std::string(2 * kHttpStreamBytesMax, 'x'), "end"));
        exchange->End();
      },
      absl::Seconds(1), [] {});
  Reader reader((*server)->port());
  reader.Get("/");
  EXPECT_TRUE(absl::EndsWith(reader.All(), "xend"));
}

TEST_F(HttpServerTest, WhatWaitsForAllReadersTogetherIsBounded) {
  // Nine of them fit, also when each has a piece more.
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
  ASSERT_TRUE(came_.WaitForNotificationWithTimeout(kPatience));
  // Nobody reads on. Each is given as much as it may have, as long as it is there.
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
    ASSERT_TRUE(written.WaitForNotificationWithTimeout(kPatience));
  }
  Reader large(server_->port()), small(server_->port());
  large.Get("/large");
  for (Reader* refused : {&next, &large}) {
    EXPECT_THAT(refused->All(),
                AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("too much waits for readers")));
  }
  small.Get("/x");
  EXPECT_THAT(small.All(), HasSubstr("you asked for /x"));
}

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
        // Less than it is closed for at once.
        if (stream->waiting() < 1 << 20) stream->Write(std::string(1 << 20, 'x'));
        if (stream->closed()) closed.Notify();
      });
  Reader reader((*server)->port());
  reader.Get("/");
  EXPECT_TRUE(closed.WaitForNotificationWithTimeout(kPatience));
}

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
  // The place of one that says nothing is taken, and of no other.
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

}  // namespace
}  // namespace cadre::web
