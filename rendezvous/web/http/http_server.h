// A small HTTP/1.1 server for a few readers: one thread, one request for each connection, and a
// limit on everything. Nothing in it waits, so one reader never holds up another.
//
// libevent's loop and buffers, with the requests read here: what Debian has as HTTP servers bounds
// neither the connections nor the time of a whole request, or comes as a shared library only.
#ifndef CADRE_RENDEZVOUS_WEB_HTTP_HTTP_SERVER_H_
#define CADRE_RENDEZVOUS_WEB_HTTP_HTTP_SERVER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "rendezvous/web/http/http_request.h"

namespace cadre::web {

// Connections at once. One more takes the place of the oldest that has not asked for anything yet;
// where all have, it waits in the kernel's queue. Half of them at most are streams.
inline constexpr size_t kHttpConnectionsMax = 64;
inline constexpr size_t kHttpStreamsMax = 32;
inline constexpr size_t kHttpHeadBytesMax = 8 << 10;
// Answers from other threads that are under way, see HttpServer::TakePlace. More than there are
// connections: a reader may leave before its answer has come.
inline constexpr size_t kHttpAnswersMax = 4 * kHttpConnectionsMax;
// From the connection to the end of the request's head, and for a reader to take a whole reply.
inline constexpr absl::Duration kHttpRequestTimeout = absl::Seconds(5);
inline constexpr absl::Duration kHttpReplyTimeout = absl::Seconds(30);
// Bytes that may wait for the reader of a stream when there is more for it; one that is further
// behind is closed, and one that takes nothing of it for so long.
inline constexpr size_t kHttpStreamBytesMax = 8 << 20;
inline constexpr absl::Duration kHttpStallTimeout = absl::Seconds(30);
// And for all readers together; then the one that is furthest behind is closed.
inline constexpr size_t kHttpWaitingBytesMax = 64 << 20;

// A request's answer. Only for the server's thread. When the reader has gone nothing happens.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  // Once, unless Begin was called. `text` may be anything but for 204. Where too much waits for
  // others already, the reader is told so in its place, with 503.
  virtual void Reply(int status, absl::string_view type, absl::string_view text) = 0;
  // A reply that goes on until the reader leaves. False: there are too many, or too much waits for
  // them, and it was told so with 503.
  virtual bool Begin(absl::string_view type) = 0;
  virtual void Write(absl::string_view bytes) = 0;
  // After what was written.
  virtual void End() = 0;
  // The reader has gone, or was closed because it does not read.
  virtual bool closed() const = 0;
  // Bytes that were written and not taken. Who has much to say says it as this falls.
  virtual size_t waiting() const = 0;
};

class HttpServer {
 public:
  // Called on the server's thread; must not block.
  using Handler = std::function<void(const HttpRequest&, std::shared_ptr<HttpExchange>)>;

  // Listens when it returns. Errors as CheckListen.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(
      const std::string& host, int port, absl::Duration stall_timeout = kHttpStallTimeout);
  // Closes every connection. What was posted and has not run never does.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

  // Begins to answer; once. `tick` is called every `interval`.
  void Serve(Handler handler, absl::Duration interval, std::function<void()> tick);

  // Runs it on the server's thread. Thread safe, also after the server has gone.
  using Poster = std::function<void(std::function<void()>)>;
  Poster poster() const;

  // For an answer that another thread is asked for, taken before it is asked: it will be posted
  // with what is returned, once. Null: as many as there may be are under way. The place is free
  // once the answer has run and what was returned is gone, with its copies. Any thread.
  Poster TakePlace() const;
  // The same, for those who do not know the server.
  using Places = std::function<Poster()>;

  // Waits until no reply is under way, `limit` at most. Streams have to be ended before.
  void Drain(absl::Duration limit);

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_HTTP_HTTP_SERVER_H_
