// A small HTTP/1.1 server for a few readers: one thread, one request per connection, and limits on
// everything. It never blocks, so no reader holds up another.
//
// It uses libevent's loop and buffers and parses requests itself: the HTTP servers in Debian limit
// neither the connections nor the time of a whole request, or exist as shared libraries only.
#ifndef CADRE_RENDEZVOUS_WEB_HTTP_HTTP_SERVER_H_
#define CADRE_RENDEZVOUS_WEB_HTTP_HTTP_SERVER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "rendezvous/web/http/http_request.h"

namespace cadre::web {

// Simultaneous connections. One more replaces the oldest that has not sent a request yet; if all
// have, it waits in the kernel's queue. Half of them at most may be streams.
inline constexpr size_t kHttpConnectionsMax = 64;
inline constexpr size_t kHttpStreamsMax = 32;
inline constexpr size_t kHttpHeadBytesMax = 8 << 10;
// Pending answers of other threads, see HttpServer::TakePlace. More than connections, because a
// reader may leave before its answer has come.
inline constexpr size_t kHttpAnswersMax = 4 * kHttpConnectionsMax;
// The time from the connection to the end of the request's head, and for a reader to take a whole
// reply.
inline constexpr absl::Duration kHttpRequestTimeout = absl::Seconds(5);
inline constexpr absl::Duration kHttpReplyTimeout = absl::Seconds(30);
// The limit of unread bytes of a stream: a reader with more is closed when something is written,
// and one that reads nothing for kHttpStallTimeout too.
inline constexpr size_t kHttpStreamBytesMax = 8 << 20;
inline constexpr absl::Duration kHttpStallTimeout = absl::Seconds(30);
// The limit for all readers together; beyond it the reader that is furthest behind is closed.
inline constexpr size_t kHttpWaitingBytesMax = 64 << 20;

// The answer to a request. Used on the server's thread only. Does nothing once the reader has gone.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  // Call it once, unless Begin was called. `text` may have any content except with 204. If too many
  // bytes wait for other readers, the reader gets 503 instead.
  virtual void Reply(int status, absl::string_view type, absl::string_view text) = 0;
  // Begins a reply that continues until the reader leaves. False: there are too many streams or too
  // many unread bytes, and the reader got 503.
  virtual bool Begin(absl::string_view type) = 0;
  virtual void Write(absl::string_view bytes) = 0;
  // Ends the reply after what was written.
  virtual void End() = 0;
  // The reader has gone, or was closed because it does not read.
  virtual bool closed() const = 0;
  // Unread bytes. A handler with much data writes more as this number falls.
  virtual size_t waiting() const = 0;
};

class HttpServer {
 public:
  // Called on the server's thread; must not block.
  using Handler = std::function<void(const HttpRequest&, std::shared_ptr<HttpExchange>)>;

  // Listens when it returns. Errors as CheckListen.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(
      const std::string& host, int port, absl::Duration stall_timeout = kHttpStallTimeout);
  // Closes every connection. Posted tasks that have not run are dropped.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

  // Begins to answer; call it once. `tick` is called every `interval`.
  void Serve(Handler handler, absl::Duration interval, std::function<void()> tick);

  // Runs a task on the server's thread. Thread safe, also after the server is destroyed.
  using Poster = std::function<void(std::function<void()>)>;
  Poster poster() const;

  // Reserves a place for an answer of another thread; take it before asking that thread, which
  // posts its answer with the result, once. Null: too many answers are pending. The place is free
  // once the answer has run and all copies of the result are destroyed. Any thread.
  Poster TakePlace() const;
  // TakePlace as a function, for code that does not depend on the server.
  using Places = std::function<Poster()>;

  // Waits until no reply is in progress, for `limit` at most. Streams must have been ended before.
  void Drain(absl::Duration limit);

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

inline constexpr char kTextType[] = "text/plain; charset=utf-8";

// Replies with the HTTP status that matches, and the message as a line of text. Used on the
// server's thread.
void ReplyError(HttpExchange& exchange, const absl::Status& status);

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_HTTP_HTTP_SERVER_H_
