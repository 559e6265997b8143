// Floods of an HTTP/2 or gRPC server, as a hostile client would send them: many connections, or
// frames that cost the server more than their sender. A flood has its own thread, opens a
// connection again when the server closes it, and ends by itself after its duration.
//
//   FloodOptions options;
//   options.kind = FloodKind::kStreamsReset;
//   options.port = port;
//   options.connections = 4;
//   options.duration = absl::Seconds(5);
//   Http2Flood flood(options);
//   ... // an honest client is served
//   const FloodCounts counts = flood.Stop();
#ifndef CADRE_TESTS_TESTING_HTTP2_FLOOD_H_
#define CADRE_TESTS_TESTING_HTTP2_FLOOD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace cadre {

enum class FloodKind {
  // Connections that are opened and send nothing.
  kConnectionsHeld,
  // Connections that are opened and reset at once.
  kConnectionsClosed,
  // Full TLS handshakes, each on a connection of its own, which is then closed.
  kHandshakes,
  // The first message of a client's TLS handshake, the same each time: only the server computes.
  kHellos,
  // Streams that consist of headers alone, as many as possible, whatever limit the server sets. The
  // server's settings are never acknowledged.
  kStreamsOpened,
  // Streams that are reset as soon as they are opened ("rapid reset").
  kStreamsReset,
  // Headers that never end: small ones in CONTINUATION frames.
  kContinuations,
  // The same, with empty frames.
  kEmptyContinuations,
  // One header whose value never ends; its declared length is a GiB.
  kEndlessHeader,
  // An HPACK integer that never ends.
  kEndlessInteger,
  // Headers of 4 KiB that enter the HPACK table once and are then named by a byte each.
  kIndexedHeaders,
  // PING and SETTINGS frames; the answers are never read.
  kPings,
  kSettings,
  // Empty DATA frames on one open stream.
  kEmptyData,
  // Window updates of 1 byte, on one open stream.
  kWindowUpdates,
  // Calls whose message is compressed by gzip and inflates to `inflated_mebibytes`.
  kCompressedMessages,
  // DATA of messages that never end, on as many streams as the server's windows admit.
  kUnconsumedData,
  // Calls of `path` with `message`, `in_flight` at a time on each connection; answers are read.
  kCalls,
  // The same, but the client's windows are 0, so no answer ever leaves the server.
  kUnreadAnswers,
  // The same, but the windows have their largest size and the socket is not read.
  kUnreadSocket,
  // `message` is sent unchanged, once; the connection is then held.
  kBytes,
  // `message` is sent unchanged, once; the connection is then reset.
  kBytesAndClosed,
};

// All kinds; FloodKindText() returns their names for tables, such as "rapid reset".
const std::vector<FloodKind>& AllFloodKinds();
std::string FloodKindText(FloodKind kind);

struct FloodOptions {
  FloodKind kind = FloodKind::kConnectionsHeld;
  // The server's numeric IPv4 address.
  std::string host = "127.0.0.1";
  int port = 0;
  bool tls = false;
  // Is sent with each call as metadata `token_name`; empty means none.
  std::string token;
  std::string token_name = "cadre-token";
  // Each connection first makes an honest call of `path` with `message`, and the flood begins there
  // after its answer. With a valid token the server knows the connection's user from then on.
  bool honest_call_first = false;
  // The method that is called.
  std::string path = "/cadre.v1.Control/ListJobs";
  // Returns the request of call 0, 1, ... in its wire format; null means empty requests.
  std::function<std::string(uint64_t)> message;
  // If false, the client's half of a call's stream stays open.
  bool half_close = true;
  // Each connection sends its first 64 KiB together with the end of the TLS handshake and a FIN,
  // and sends nothing afterwards.
  bool finishes_at_once = false;
  int in_flight = 64;
  int inflated_mebibytes = 1024;
  // The number of simultaneous connections. Each of kConnectionsHeld costs only a descriptor.
  int connections = 1;
  // Source addresses that the connections use in turn, as SourceAddresses(64) returns them; empty
  // leaves the choice to the kernel.
  std::vector<std::string> sources;
  absl::Duration duration = absl::Seconds(5);
};

// Returns "127.0.0.2", "127.0.0.3", ...: the whole loopback network belongs to this machine.
std::vector<std::string> SourceAddresses(int count);

struct FloodCounts {
  // Connections that were established, that were not, and that the server ended.
  uint64_t connected = 0;
  uint64_t not_connected = 0;
  uint64_t closed_by_server = 0;
  // Handshakes that were completed, and that failed.
  uint64_t handshakes = 0;
  uint64_t failed_handshakes = 0;
  // Frames and bytes that were sent; the bytes may be other than frames.
  uint64_t frames = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  // Streams that were opened, that the server reset, and that it answered with status OK or
  // another.
  uint64_t streams = 0;
  uint64_t streams_reset_by_server = 0;
  uint64_t answered_ok = 0;
  uint64_t answered_otherwise = 0;
  uint64_t go_aways = 0;

  FloodCounts& operator+=(const FloodCounts& other);
};

// Thread safe.
class Http2Flood {
 public:
  // The flood has begun when the constructor returns.
  explicit Http2Flood(const FloodOptions& options);
  // Stops the flood.
  ~Http2Flood();
  Http2Flood(const Http2Flood&) = delete;
  Http2Flood& operator=(const Http2Flood&) = delete;

  // Returns the counts so far.
  FloodCounts counts() const;
  // Waits until `enough` returns true for the counts so far, or for the timeout; returns the last
  // result of `enough`.
  bool Await(const std::function<bool(const FloodCounts&)>& enough, absl::Duration timeout) const;
  // Waits until the flood ends by itself.
  FloodCounts Wait();
  // Ends the flood and all of its connections now.
  FloodCounts Stop();

 private:
  void Run(const FloodOptions& options);

  std::atomic<bool> stop_{false};
  mutable absl::Mutex mutex_;
  FloodCounts counts_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex join_;
  std::thread thread_ ABSL_GUARDED_BY(join_);
};

// Runs one flood from its beginning to its end.
FloodCounts RunFlood(const FloodOptions& options);

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_HTTP2_FLOOD_H_
