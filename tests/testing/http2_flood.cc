#include "tests/testing/http2_flood.h"

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/scoped_fd.h"
#include "tests/testing/flooding_connection.h"
#include "tests/testing/http2_frames.h"

namespace cadre {
namespace {

constexpr int kEventsPerTurn = 256;
constexpr int kOpenedPerTurn = 256;
constexpr int kLookMs = 10;
constexpr absl::Duration kAwaitLook = absl::Milliseconds(5);

struct KindText {
  FloodKind kind;
  const char* text;
};
constexpr KindText kKinds[] = {
    {FloodKind::kConnectionsHeld, "connections held"},
    {FloodKind::kConnectionsClosed, "connections closed"},
    {FloodKind::kHandshakes, "TLS handshakes"},
    {FloodKind::kHellos, "TLS client hellos"},
    {FloodKind::kStreamsOpened, "streams opened"},
    {FloodKind::kStreamsReset, "rapid reset"},
    {FloodKind::kContinuations, "CONTINUATION frames"},
    {FloodKind::kEmptyContinuations, "empty CONTINUATION frames"},
    {FloodKind::kEndlessHeader, "a header without end"},
    {FloodKind::kEndlessInteger, "an HPACK integer without end"},
    {FloodKind::kIndexedHeaders, "indexed headers"},
    {FloodKind::kPings, "PING frames"},
    {FloodKind::kSettings, "SETTINGS frames"},
    {FloodKind::kEmptyData, "empty DATA frames"},
    {FloodKind::kWindowUpdates, "WINDOW_UPDATE frames"},
    {FloodKind::kCompressedMessages, "compressed messages"},
    {FloodKind::kUnconsumedData, "messages without end"},
    {FloodKind::kCalls, "calls"},
    {FloodKind::kUnreadAnswers, "unread answers"},
    {FloodKind::kUnreadSocket, "unread socket"},
    {FloodKind::kBytes, "bytes, held"},
    {FloodKind::kBytesAndClosed, "bytes, closed"},
};

// The connections of a flood, used by its thread.
class Connections {
 public:
  explicit Connections(const FloodOptions& options)
      : plan_(options), epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

  const FloodCounts& counts() const { return plan_.counts; }

  // Opens the missing connections. Returns false if one could not be opened, so that the next try
  // can be delayed.
  bool Fill() {
    if (std::exchange(failed_, plan_.counts.not_connected) < plan_.counts.not_connected) {
      return false;
    }
    const auto wanted = static_cast<size_t>(plan_.options.connections);
    for (int i = 0; i < kOpenedPerTurn && all_.size() < wanted; ++i) {
      if (!Open()) return false;
    }
    return true;
  }

  void Turn(int wait_ms) {
    epoll_event events[kEventsPerTurn];
    const int ready = epoll_wait(epoll_.get(), events, kEventsPerTurn, wait_ms);
    for (int i = 0; i < ready; ++i) OnEvent(events[i].data.fd, events[i].events);
  }

  bool is_full() const { return all_.size() >= static_cast<size_t>(plan_.options.connections); }

 private:
  struct Watched {
    std::unique_ptr<FloodingConnection> connection;
    uint32_t events = 0;
  };

  bool Open() {
    const std::vector<std::string>& sources = plan_.options.sources;
    const std::string source = sources.empty() ? "" : sources[next_source_++ % sources.size()];
    auto socket =
        FloodSocket::Connect(plan_.options.host, plan_.options.port, source, plan_.context.get());
    if (!socket.ok()) {
      ++plan_.counts.not_connected;
      return false;
    }
    auto connection = std::make_unique<FloodingConnection>(&plan_, *std::move(socket));
    const int fd = connection->fd();
    Watched& watched = all_[fd];
    watched = {std::move(connection), EPOLLOUT | EPOLLRDHUP};
    Control(EPOLL_CTL_ADD, fd, watched.events);
    return true;
  }

  void OnEvent(int fd, uint32_t happened) {
    const auto found = all_.find(fd);
    if (found == all_.end()) return;
    FloodingConnection& connection = *found->second.connection;
    bool goes_on = connection.Advance();
    // A connection that does not read learns of its end in no other way.
    const bool ended = (happened & (EPOLLERR | EPOLLHUP)) != 0 ||
                       ((happened & EPOLLRDHUP) != 0 && !connection.wants_to_read());
    if (goes_on && ended) {
      ++plan_.counts.closed_by_server;
      connection.Abort();
      goes_on = false;
    }
    if (!goes_on) {
      all_.erase(found);
      return;
    }
    const uint32_t events = EPOLLRDHUP | (connection.wants_to_read() ? EPOLLIN : 0u) |
                            (connection.wants_to_write() ? EPOLLOUT : 0u);
    if (events == found->second.events) return;
    found->second.events = events;
    Control(EPOLL_CTL_MOD, fd, events);
  }

  void Control(int operation, int fd, uint32_t events) {
    epoll_event event = {};
    event.events = events;
    event.data.fd = fd;
    epoll_ctl(epoll_.get(), operation, fd, &event);
  }

  FloodPlan plan_;
  const ScopedFd epoll_;
  std::unordered_map<int, Watched> all_;
  size_t next_source_ = 0;
  // The failed connections that Fill has seen.
  uint64_t failed_ = 0;
};

void BlockSigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace

const std::vector<FloodKind>& AllFloodKinds() {
  static const auto& kinds = *[] {
    auto* all = new std::vector<FloodKind>();
    for (const KindText& kind : kKinds) all->push_back(kind.kind);
    return all;
  }();
  return kinds;
}

std::string FloodKindText(FloodKind kind) {
  for (const KindText& known : kKinds) {
    if (known.kind == kind) return known.text;
  }
  return "";
}

std::vector<std::string> SourceAddresses(int count) {
  constexpr int kFirst = 2;
  constexpr int kOfByte = 250;
  std::vector<std::string> all;
  for (int i = 0; i < count; ++i) {
    all.push_back(absl::StrCat("127.0.", i / kOfByte, ".", kFirst + i % kOfByte));
  }
  return all;
}

FloodCounts& FloodCounts::operator+=(const FloodCounts& other) {
  connected += other.connected;
  not_connected += other.not_connected;
  closed_by_server += other.closed_by_server;
  handshakes += other.handshakes;
  failed_handshakes += other.failed_handshakes;
  frames += other.frames;
  bytes_sent += other.bytes_sent;
  bytes_received += other.bytes_received;
  streams += other.streams;
  streams_reset_by_server += other.streams_reset_by_server;
  answered_ok += other.answered_ok;
  answered_otherwise += other.answered_otherwise;
  go_aways += other.go_aways;
  return *this;
}

Http2Flood::Http2Flood(const FloodOptions& options) : thread_([this, options] { Run(options); }) {}

Http2Flood::~Http2Flood() { Stop(); }

FloodCounts Http2Flood::counts() const {
  const absl::MutexLock lock(&mutex_);
  return counts_;
}

bool Http2Flood::Await(const std::function<bool(const FloodCounts&)>& enough,
                       absl::Duration timeout) const {
  const MonoTime deadline = MonoNow() + timeout;
  for (;;) {
    if (enough(counts())) return true;
    if (MonoNow() >= deadline) return false;
    poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(kAwaitLook)));
  }
}

FloodCounts Http2Flood::Wait() {
  {
    const absl::MutexLock lock(&join_);
    if (thread_.joinable()) thread_.join();
  }
  return counts();
}

FloodCounts Http2Flood::Stop() {
  stop_ = true;
  return Wait();
}

void Http2Flood::Run(const FloodOptions& options) {
  BlockSigpipe();
  const MonoTime deadline = MonoNow() + options.duration;
  Connections connections(options);
  MonoTime next_try;
  while (!stop_ && MonoNow() < deadline) {
    if (MonoNow() >= next_try && !connections.Fill()) {
      next_try = MonoNow() + absl::Milliseconds(kLookMs);
    }
    // If connections are missing, they are opened at once where that is possible.
    connections.Turn(connections.is_full() || MonoNow() < next_try ? kLookMs : 0);
    const absl::MutexLock lock(&mutex_);
    counts_ = connections.counts();
  }
}

FloodCounts RunFlood(const FloodOptions& options) { return Http2Flood(options).Wait(); }

}  // namespace cadre
