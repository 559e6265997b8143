// The connections of a flood (http2_flood.h): the socket, what the connections share, and what each
// of them sends and receives. Used by the flood's thread, whose SIGPIPE is blocked.
#ifndef CADRE_TESTS_TESTING_FLOODING_CONNECTION_H_
#define CADRE_TESTS_TESTING_FLOODING_CONNECTION_H_

#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/scoped_fd.h"
#include "tests/testing/http2_flood.h"
#include "tests/testing/http2_frames.h"

namespace cadre {

struct FreeSsl {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using SslContext = std::unique_ptr<SSL_CTX, FreeSsl>;

// The context offers HTTP/2 alone, as a gRPC client does.
SslContext NewFloodContext();
// Returns the first message of a client's handshake, which any connection may send.
std::string ClientHello(SSL_CTX* context);

// A TCP connection of a flood, in clear or through TLS. It never blocks and does not verify the
// server's certificate.
class FloodSocket {
 public:
  enum class State { kConnecting, kHandshaking, kOpen, kClosed };

  FloodSocket() = default;
  FloodSocket(FloodSocket&&) = default;
  FloodSocket& operator=(FloodSocket&&) = default;

  // Begins to connect to a numeric IPv4 address. `source` is the local address; empty leaves the
  // choice to the kernel. A null `context` means a connection in clear.
  static absl::StatusOr<FloodSocket> Connect(const std::string& host, int port,
                                             const std::string& source, SSL_CTX* context);

  int fd() const { return fd_.get(); }
  State state() const { return state_; }
  // Whether it was ever established.
  bool was_connected() const { return was_connected_; }
  // Whether Advance waits until the socket is writable; if false, it waits until it is readable.
  bool wants_to_write() const { return wants_to_write_; }

  // Connects and performs the handshake, as far as is possible without blocking.
  State Advance();
  // Return the bytes that were sent or received; 0 means none now. The state is kClosed if the
  // connection has ended.
  size_t Write(absl::string_view bytes);
  size_t Read(char* bytes, size_t size);
  // Makes the kernel hold written data for 200 ms or until there is a full segment, so that it is
  // sent together with what is written next.
  void Gather();
  // Ends this side's half of the connection.
  void Finish();
  // Resets the connection: the peer learns of it at once, and the kernel keeps no state.
  void Abort();

 private:
  void OnSslError(int result);

  ScopedFd fd_;
  std::unique_ptr<SSL, FreeSsl> ssl_;
  State state_ = State::kClosed;
  bool was_connected_ = false;
  bool wants_to_write_ = true;
};

// Whether the kind speaks HTTP/2.
bool IsHttp2(FloodKind kind);
// Whether the kind makes valid calls and leaves it to the server how to answer.
bool IsOfCalls(FloodKind kind);
bool ReadsNothing(FloodKind kind);
bool IsEndlessHeaders(FloodKind kind);
bool FloodsOneStream(FloodKind kind);

// The kind of a flood, and data that is made once for all of its connections.
struct FloodPlan {
  explicit FloodPlan(const FloodOptions& options);

  const FloodOptions options;
  SslContext context;
  // Header blocks: of each call, and of calls that carry a compressed message.
  std::string request_block;
  std::string compressed_block;
  // These are made once.
  std::string hello;
  std::shared_ptr<const std::string> compressed_message;
  std::shared_ptr<const std::string> endless_message;
  std::string small_headers;
  uint64_t next_call = 0;
  FloodCounts counts;
};

// One connection: it decides what to send next and handles what the server sends.
class FloodingConnection {
 public:
  FloodingConnection(FloodPlan* plan, FloodSocket socket);
  ~FloodingConnection() { Abort(); }
  FloodingConnection(const FloodingConnection&) = delete;
  FloodingConnection& operator=(const FloodingConnection&) = delete;

  int fd() const { return socket_.fd(); }
  // Does what is possible without blocking. Returns false if the connection has ended and is to be
  // opened anew.
  bool Advance();
  // Whether there is data to send, so that Advance must be called when the socket is writable.
  bool wants_to_write() const { return wants_to_write_; }
  bool wants_to_read() const;
  void Abort() { socket_.Abort(); }

 private:
  bool is_open() const { return socket_.state() == FloodSocket::State::kOpen; }
  bool Begin();
  void BeginHttp2();
  void ReadSome();
  void TakeFrames();
  void OnFrame(const http2::FrameHeader& header, absl::string_view payload);
  void OnSettings(absl::string_view payload);
  void OnHeaders(const http2::FrameHeader& header, absl::string_view payload);
  void OnWindowUpdate(uint32_t stream, uint32_t bytes);
  void OnStreamOver(uint32_t stream);
  bool WriteSome();
  // Appends more of what the flood sends. Returns false if nothing can be sent now.
  bool Produce();
  void ProduceHeaders();
  // Sends the beginning of headers that do not end.
  void BeginEndlessHeaders();
  bool ProduceCall();
  void SendCall(const std::string& block, std::shared_ptr<const std::string> message,
                bool end_stream);
  uint32_t OpenStream(const std::string& block, uint8_t flags);
  void Send(http2::Frame type, uint8_t flags, uint32_t stream, absl::string_view payload);
  // Moves data that waits for the server's flow-control windows into frames.
  void FillWindows();

  FloodPlan* const plan_;
  FloodSocket socket_;
  bool begun_ = false;
  bool wants_to_write_ = true;
  bool over_ = false;
  // It sends no more and waits for the server to close it.
  bool finished_ = false;
  bool settings_came_ = false;
  bool honest_call_under_way_ = false;
  // The stream of a flood on one stream, once it is open.
  uint32_t stream_ = 0;
  std::string out_;
  size_t sent_ = 0;
  std::string in_;
  uint32_t next_stream_ = 1;
  int64_t window_ = http2::kFirstWindow;
  int64_t first_window_ = http2::kFirstWindow;
  uint32_t most_streams_ = http2::kLargestWindow;
  // Streams of calls that are not over, with the send window that the server grants and what
  // remains to be sent.
  struct Stream {
    int64_t window = 0;
    std::shared_ptr<const std::string> message;
    size_t sent = 0;
    bool end_stream = true;
  };
  std::map<uint32_t, Stream> streams_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_FLOODING_CONNECTION_H_
