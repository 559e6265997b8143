#include "rendezvous/web/http/http_server.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/steady_wait.h"
#include "rendezvous/service/listening.h"
#include "rendezvous/web/http/http_request.h"
#include "rendezvous/web/http/mailbox.h"

namespace cadre::web {
namespace {

template <typename T, void (*Free)(T*)>
struct Freer {
  void operator()(T* value) const { Free(value); }
};
using Base = std::unique_ptr<event_base, Freer<event_base, event_base_free>>;
using Listener = std::unique_ptr<evconnlistener, Freer<evconnlistener, evconnlistener_free>>;
using Buffered = std::unique_ptr<bufferevent, Freer<bufferevent, bufferevent_free>>;
using OwnedEvent = std::unique_ptr<event, Freer<event, event_free>>;

constexpr char kTooMuchWaits[] =
    "too many bytes wait for other readers; try again in half a minute\n";

class Connection;

// State that connections share. Used by the loop's thread, except `busy`.
struct Loop {
  Base base;
  Listener listener;
  HttpServer::Handler handler;
  std::function<void()> tick;
  absl::Duration stall_timeout;
  // In the order of their arrival.
  std::map<uint64_t, std::shared_ptr<Connection>> connections;
  uint64_t last_connection = 0;
  size_t streams = 0;

  std::mutex mutex;
  std::condition_variable changed;
  // Requests that have been read and are not finished.
  size_t busy ABSL_GUARDED_BY(mutex) = 0;

  void AddBusy(int more) {
    const std::lock_guard<std::mutex> lock(mutex);
    busy += more;
    changed.notify_all();
  }
  // Whether `bytes` more may be buffered besides the unread bytes of all readers.
  bool HasRoomFor(size_t bytes) const;
  // Closes the readers that are furthest behind until there is room.
  void MakeRoomFor(size_t bytes);
};

class Connection final : public HttpExchange, public std::enable_shared_from_this<Connection> {
 public:
  Connection(Loop& loop, uint64_t number, evutil_socket_t fd)
      : loop_(&loop),
        number_(number),
        buffered_(bufferevent_socket_new(loop.base.get(), fd, BEV_OPT_CLOSE_ON_FREE)),
        deadline_(evtimer_new(loop.base.get(), &Connection::OnDeadline, this)) {
    bufferevent_setcb(buffered_.get(), &Connection::OnRead, &Connection::OnWritten,
                      &Connection::OnEvent, this);
    // Stops reading from a client that sends too much.
    bufferevent_setwatermark(buffered_.get(), EV_READ, 0, kHttpHeadBytesMax + 4);
    SetDeadline(kHttpRequestTimeout);
    bufferevent_enable(buffered_.get(), EV_READ | EV_WRITE);
  }

  void Reply(int status, absl::string_view type, absl::string_view text) override {
    if (closed() || state_ != State::kAnswering) return;
    if (!head_only_ && status == 200 && !loop_->HasRoomFor(text.size())) {
      return Reply(503, "text/plain", kTooMuchWaits);
    }
    std::string head =
        absl::StrCat(ReplyHead(status, type), "Content-Length: ", text.size(), "\r\n\r\n");
    bufferevent_write(buffered_.get(), head.data(), head.size());
    if (!head_only_) bufferevent_write(buffered_.get(), text.data(), text.size());
    Finish();
  }

  bool Begin(absl::string_view type) override {
    if (closed() || state_ != State::kAnswering) return false;
    if (loop_->streams >= kHttpStreamsMax) {
      Reply(503, "text/plain", "too many readers follow this server; try again later\n");
      return false;
    }
    if (!loop_->HasRoomFor(kHttpStreamBytesMax)) {
      Reply(503, "text/plain", kTooMuchWaits);
      return false;
    }
    const std::string head = absl::StrCat(ReplyHead(200, type), "\r\n");
    bufferevent_write(buffered_.get(), head.data(), head.size());
    if (head_only_) {
      Finish();
      return false;
    }
    state_ = State::kStreaming;
    ++loop_->streams;
    evtimer_del(deadline_.get());
    const timeval stalled = absl::ToTimeval(loop_->stall_timeout);
    bufferevent_set_timeouts(buffered_.get(), nullptr, &stalled);
    return true;
  }

  void Write(absl::string_view bytes) override {
    if (closed() || state_ != State::kStreaming) return;
    // The piece itself may have any size, because a large one could never be sent otherwise.
    if (waiting() > kHttpStreamBytesMax) return Close();
    loop_->MakeRoomFor(bytes.size());
    if (closed()) return;
    bufferevent_write(buffered_.get(), bytes.data(), bytes.size());
  }

  void End() override {
    if (!closed() && state_ == State::kStreaming) Finish();
  }

  bool closed() const override { return loop_ == nullptr; }
  size_t waiting() const override {
    return closed() ? 0 : evbuffer_get_length(bufferevent_get_output(buffered_.get()));
  }
  // No request has arrived yet.
  bool idle() const { return state_ == State::kReading; }

  // Releases everything that belongs to the loop; the object lives on while a handler refers to it.
  void Close() {
    if (closed()) return;
    Loop& loop = *std::exchange(loop_, nullptr);
    const std::shared_ptr<Connection> self = shared_from_this();
    if (state_ != State::kReading) loop.AddBusy(-1);
    if (streams_counted()) --loop.streams;
    deadline_.reset();
    buffered_.reset();
    loop.connections.erase(number_);
    evconnlistener_enable(loop.listener.get());
  }

 private:
  enum class State { kReading, kAnswering, kStreaming, kFinishing };

  static Connection& Of(void* self) { return *static_cast<Connection*>(self); }
  static void OnDeadline(evutil_socket_t, short, void* self) { Of(self).Close(); }
  static void OnEvent(bufferevent*, short, void* self) { Of(self).Close(); }
  static void OnRead(bufferevent*, void* self) { Of(self).Read(); }
  static void OnWritten(bufferevent*, void* self) {
    if (Of(self).state_ == State::kFinishing) Of(self).Close();
  }

  bool streams_counted() const { return was_stream_ || state_ == State::kStreaming; }

  void SetDeadline(absl::Duration after) {
    const timeval time = absl::ToTimeval(after);
    evtimer_add(deadline_.get(), &time);
  }

  void Read() {
    evbuffer* input = bufferevent_get_input(buffered_.get());
    const size_t size = evbuffer_get_length(input);
    if (state_ != State::kReading) {
      evbuffer_drain(input, size);
      return;
    }
    const evbuffer_ptr end = evbuffer_search(input, "\r\n\r\n", 4, nullptr);
    if (end.pos < 0 && size < kHttpHeadBytesMax) return;
    const std::shared_ptr<Connection> self = shared_from_this();
    state_ = State::kAnswering;
    loop_->AddBusy(1);
    SetDeadline(kHttpReplyTimeout);
    if (end.pos < 0) return Reply(431, "text/plain", "the request's head is over 8 KiB\n");
    std::string head(end.pos, '\0');
    evbuffer_remove(input, &head[0], head.size());
    evbuffer_drain(input, evbuffer_get_length(input));
    const absl::StatusOr<HttpRequest> request = ParseHttpRequest(head);
    if (!request.ok()) {
      return Reply(absl::IsUnimplemented(request.status()) ? 405 : 400, "text/plain",
                   absl::StrCat(request.status().message(), "\n"));
    }
    head_only_ = request->method == "HEAD";
    loop_->handler(*request, self);
  }

  // Closes the connection once everything written has been sent.
  void Finish() {
    was_stream_ = state_ == State::kStreaming;
    state_ = State::kFinishing;
    // Without unsent bytes there would be no callback.
    if (waiting() == 0) return Close();
    SetDeadline(kHttpReplyTimeout);
  }

  Loop* loop_;
  const uint64_t number_;
  Buffered buffered_;
  OwnedEvent deadline_;
  State state_ = State::kReading;
  bool was_stream_ = false;
  bool head_only_ = false;
};

bool Loop::HasRoomFor(size_t bytes) const {
  size_t waiting = 0;
  for (const auto& [number, connection] : connections) waiting += connection->waiting();
  // The first piece of all may have any size.
  return waiting == 0 || waiting + bytes <= kHttpWaitingBytesMax;
}

void Loop::MakeRoomFor(size_t bytes) {
  while (!HasRoomFor(bytes)) {
    const auto last = std::max_element(
        connections.begin(), connections.end(),
        [](const auto& a, const auto& b) { return a.second->waiting() < b.second->waiting(); });
    const std::shared_ptr<Connection> furthest_behind = last->second;
    furthest_behind->Close();
  }
}

}  // namespace

struct HttpServer::Impl {
  static void OnAccept(evconnlistener*, evutil_socket_t fd, sockaddr*, int, void* self) {
    Loop& loop = static_cast<Impl*>(self)->loop;
    const uint64_t number = ++loop.last_connection;
    loop.connections[number] = std::make_shared<Connection>(loop, number, fd);
    if (loop.connections.size() < kHttpConnectionsMax) return;
    // Connections without a request must not keep others out.
    for (const auto& [older, connection] : loop.connections) {
      if (older == number || !connection->idle()) continue;
      const std::shared_ptr<Connection> oldest = connection;
      return oldest->Close();
    }
    evconnlistener_disable(loop.listener.get());
  }
  static void OnPosted(evutil_socket_t, short, void* self) {
    Impl& impl = *static_cast<Impl*>(self);
    for (const auto& task : impl.mailbox->Take()) task();
    if (impl.mailbox->stopping()) event_base_loopbreak(impl.loop.base.get());
  }
  // Accepting fails, for lack of descriptors for example. Without a pause the loop would retry for
  // ever.
  static void OnAcceptFailed(evconnlistener* listener, void*) { evconnlistener_disable(listener); }
  static void OnTick(evutil_socket_t, short, void* self) {
    Loop& loop = static_cast<Impl*>(self)->loop;
    loop.tick();
    if (loop.connections.size() < kHttpConnectionsMax) evconnlistener_enable(loop.listener.get());
  }

  int port = 0;
  Loop loop;
  OwnedEvent posted;
  OwnedEvent ticker;
  const std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>(kHttpAnswersMax);
  std::thread thread;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(const std::string& host, int port,
                                                               absl::Duration stall_timeout) {
  RETURN_IF_ERROR(service::CheckListen(host, port));
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(host, " does not resolve"));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  auto impl = std::make_unique<Impl>();
  impl->loop.stall_timeout = stall_timeout;
  impl->loop.base.reset(event_base_new());
  for (const addrinfo* at = found; at != nullptr && impl->loop.listener == nullptr;
       at = at->ai_next) {
    impl->loop.listener.reset(evconnlistener_new_bind(
        impl->loop.base.get(), &Impl::OnAccept, impl.get(),
        LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE | LEV_OPT_DISABLED,
        kHttpConnectionsMax, at->ai_addr, static_cast<int>(at->ai_addrlen)));
  }
  if (impl->loop.listener == nullptr) {
    // Another process may have taken the port since it was checked.
    RETURN_IF_ERROR(service::CheckListen(host, port));
    return absl::UnavailableError(absl::StrCat("cannot listen on ", service::HostPort(host, port)));
  }
  evconnlistener_set_error_cb(impl->loop.listener.get(), &Impl::OnAcceptFailed);
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  getsockname(evconnlistener_get_fd(impl->loop.listener.get()), reinterpret_cast<sockaddr*>(&bound),
              &size);
  impl->port =
      ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                        : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  if (impl_->thread.joinable()) {
    impl_->mailbox->Stop();
    impl_->thread.join();
  }
  impl_->mailbox->Close();
  while (!impl_->loop.connections.empty()) {
    const std::shared_ptr<Connection> first = impl_->loop.connections.begin()->second;
    first->Close();
  }
}

int HttpServer::port() const { return impl_->port; }

void HttpServer::Serve(Handler handler, absl::Duration interval, std::function<void()> tick) {
  Loop& loop = impl_->loop;
  loop.handler = std::move(handler);
  loop.tick = std::move(tick);
  impl_->posted.reset(event_new(loop.base.get(), impl_->mailbox->fd(), EV_READ | EV_PERSIST,
                                &Impl::OnPosted, impl_.get()));
  event_add(impl_->posted.get(), nullptr);
  impl_->ticker.reset(
      event_new(loop.base.get(), -1, EV_TIMEOUT | EV_PERSIST, &Impl::OnTick, impl_.get()));
  const timeval every = absl::ToTimeval(interval);
  event_add(impl_->ticker.get(), &every);
  evconnlistener_enable(loop.listener.get());
  // Signals are for other threads; a reader that has gone shows as a write error, not as SIGPIPE.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  impl_->thread = std::thread([&loop] { event_base_dispatch(loop.base.get()); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

HttpServer::Poster HttpServer::poster() const {
  return [mailbox = impl_->mailbox](std::function<void()> task) { mailbox->Post(std::move(task)); };
}

HttpServer::Poster HttpServer::TakePlace() const {
  std::shared_ptr<const void> place = impl_->mailbox->TakePlace();
  if (place == nullptr) return nullptr;
  return [mailbox = impl_->mailbox, place = std::move(place)](std::function<void()> task) {
    mailbox->Post([place, task = std::move(task)] { task(); });
  };
}

void HttpServer::Drain(absl::Duration limit) {
  Loop& loop = impl_->loop;
  std::unique_lock<std::mutex> lock(loop.mutex);
  WaitFor(loop.changed, lock, limit, [&loop] { return loop.busy == 0; });
}

namespace {

int HttpStatus(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
      return 404;
    case absl::StatusCode::kInvalidArgument:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    default:
      return 503;
  }
}

}  // namespace

void ReplyError(HttpExchange& exchange, const absl::Status& status) {
  exchange.Reply(HttpStatus(status), kTextType, absl::StrCat(status.message(), "\n"));
}

}  // namespace cadre::web
