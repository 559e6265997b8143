#include "tests/testing/flooding_connection.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

using http2::Frame;

constexpr size_t kBufferBytes = size_t{64} << 10;
// The work of one connection before the other connections get a turn.
constexpr int kReadsPerTurn = 16;
constexpr int kWritesPerTurn = 4;
constexpr int kFramesAtOnce = 64;
constexpr uint32_t kCancel = 8;
constexpr uint32_t kEndlessBytes = uint32_t{1} << 30;
constexpr size_t kIndexedBytes = 4000;
constexpr uint32_t kFirstOwnIndex = 62;
constexpr int kIndexedTimes = 12000;

}  // namespace

FloodingConnection::FloodingConnection(FloodPlan* plan, FloodSocket socket)
    : plan_(plan), socket_(std::move(socket)) {
  if (plan_->options.finishes_at_once) socket_.Gather();
}

bool FloodingConnection::wants_to_read() const {
  if (!is_open()) return socket_.state() == FloodSocket::State::kHandshaking;
  const FloodKind kind = plan_->options.kind;
  if (kind == FloodKind::kUnreadSocket && !settings_came_) return true;
  return !ReadsNothing(kind) || honest_call_under_way_;
}

bool FloodingConnection::Advance() {
  FloodCounts& counts = plan_->counts;
  if (!is_open()) {
    const bool was_connecting = socket_.state() == FloodSocket::State::kConnecting;
    const FloodSocket::State state = socket_.Advance();
    if (was_connecting && state != FloodSocket::State::kConnecting) {
      ++(socket_.was_connected() ? counts.connected : counts.not_connected);
    }
    if (state == FloodSocket::State::kClosed && socket_.was_connected()) {
      ++counts.failed_handshakes;
    }
    if (state == FloodSocket::State::kOpen && plan_->context != nullptr) ++counts.handshakes;
    wants_to_write_ = socket_.wants_to_write();
    if (state != FloodSocket::State::kOpen) return state != FloodSocket::State::kClosed;
  }
  if (!begun_ && !Begin()) {
    Abort();
    return false;
  }
  if (wants_to_read()) ReadSome();
  if (is_open() && !over_ && !finished_) wants_to_write_ = WriteSome();
  if (is_open() && !over_) return true;
  if (!is_open()) ++counts.closed_by_server;
  Abort();
  return false;
}

// Returns false if this connection has done all that it is for.
bool FloodingConnection::Begin() {
  begun_ = true;
  switch (plan_->options.kind) {
    case FloodKind::kConnectionsClosed:
    case FloodKind::kHandshakes:
      return false;
    case FloodKind::kConnectionsHeld:
      break;
    case FloodKind::kHellos:
      out_ = plan_->hello;
      break;
    case FloodKind::kBytes:
    case FloodKind::kBytesAndClosed:
      if (plan_->options.message != nullptr) out_ = plan_->options.message(plan_->next_call++);
      break;
    default:
      BeginHttp2();
  }
  return true;
}

void FloodingConnection::BeginHttp2() {
  const FloodKind kind = plan_->options.kind;
  const bool closed_windows = kind == FloodKind::kUnreadAnswers;
  http2::AppendPreface({{http2::kHeaderTableSize, 0},
                        {http2::kInitialWindowSize, closed_windows ? 0 : http2::kLargestWindow}},
                       &out_);
  http2::AppendWindowUpdate(0, http2::kLargestWindow - static_cast<uint32_t>(http2::kFirstWindow),
                            &out_);
  plan_->counts.frames += 2;
  if (!plan_->options.honest_call_first) return;
  honest_call_under_way_ = true;
  const auto& message = plan_->options.message;
  SendCall(plan_->request_block,
           std::make_shared<std::string>(
               http2::GrpcMessage(message != nullptr ? message(plan_->next_call++) : "")),
           true);
  if (closed_windows) http2::AppendWindowUpdate(1, http2::kLargestWindow, &out_);
}

void FloodingConnection::ReadSome() {
  char bytes[kBufferBytes];
  for (int i = 0; i < kReadsPerTurn && !over_; ++i) {
    const size_t got = socket_.Read(bytes, sizeof(bytes));
    if (got == 0) return;
    plan_->counts.bytes_received += got;
    if (plan_->options.kind == FloodKind::kHellos) over_ = true;
    if (!IsHttp2(plan_->options.kind)) continue;
    in_.append(bytes, got);
    TakeFrames();
  }
}

void FloodingConnection::TakeFrames() {
  size_t at = 0;
  for (;;) {
    const absl::string_view rest = absl::string_view(in_).substr(at);
    const auto header = http2::ParseFrameHeader(rest);
    if (!header.has_value() || rest.size() < http2::kFrameHeaderBytes + header->length) break;
    OnFrame(*header, rest.substr(http2::kFrameHeaderBytes, header->length));
    at += http2::kFrameHeaderBytes + header->length;
  }
  in_.erase(0, at);
}

void FloodingConnection::OnFrame(const http2::FrameHeader& header, absl::string_view payload) {
  const bool acks = IsOfCalls(plan_->options.kind);
  switch (header.type) {
    case Frame::kSettings:
      if ((header.flags & http2::kAck) == 0) OnSettings(payload);
      break;
    case Frame::kPing:
      if (acks && (header.flags & http2::kAck) == 0) Send(Frame::kPing, http2::kAck, 0, payload);
      break;
    case Frame::kData:
      if (header.length > 0) {
        http2::AppendWindowUpdate(0, static_cast<uint32_t>(header.length), &out_);
      }
      if ((header.flags & http2::kEndStream) != 0) OnStreamOver(header.stream);
      break;
    case Frame::kHeaders:
      OnHeaders(header, payload);
      break;
    case Frame::kResetStream:
      ++plan_->counts.streams_reset_by_server;
      OnStreamOver(header.stream);
      break;
    case Frame::kGoAway:
      ++plan_->counts.go_aways;
      break;
    case Frame::kWindowUpdate:
      if (payload.size() >= 4) OnWindowUpdate(header.stream, http2::NumberAt(payload, 0));
      break;
    case Frame::kContinuation:
      break;
  }
}

void FloodingConnection::OnSettings(absl::string_view payload) {
  settings_came_ = true;
  for (size_t at = 0; at + 6 <= payload.size(); at += 6) {
    const auto id = static_cast<uint16_t>(http2::NumberAt(payload.substr(at), 0) >> 16);
    const uint32_t value = http2::NumberAt(payload, at + 2);
    if (id == http2::kMaxConcurrentStreams) most_streams_ = value;
    if (id != http2::kInitialWindowSize) continue;
    for (auto& [number, stream] : streams_) stream.window += value - first_window_;
    first_window_ = value;
  }
  if (IsOfCalls(plan_->options.kind)) Send(Frame::kSettings, http2::kAck, 0, "");
  FillWindows();
}

void FloodingConnection::OnHeaders(const http2::FrameHeader& header, absl::string_view payload) {
  if ((header.flags & http2::kEndStream) == 0) return;
  ++(http2::GrpcStatusIn(payload) == 0 ? plan_->counts.answered_ok
                                       : plan_->counts.answered_otherwise);
  OnStreamOver(header.stream);
}

void FloodingConnection::OnWindowUpdate(uint32_t stream, uint32_t bytes) {
  if (stream == 0) {
    window_ += bytes;
  } else if (const auto found = streams_.find(stream); found != streams_.end()) {
    found->second.window += bytes;
  }
  FillWindows();
}

void FloodingConnection::OnStreamOver(uint32_t stream) {
  if (stream == 1 && honest_call_under_way_) honest_call_under_way_ = false;
  streams_.erase(stream);
  // The flood then opens another stream.
  if (stream == stream_ && FloodsOneStream(plan_->options.kind)) stream_ = 0;
}

// Whether there is more to send.
bool FloodingConnection::WriteSome() {
  for (int i = 0; i < kWritesPerTurn; ++i) {
    while (out_.size() - sent_ < kBufferBytes && Produce()) {
    }
    if (sent_ == out_.size()) {
      if (plan_->options.kind == FloodKind::kBytesAndClosed) over_ = true;
      out_.clear();
      sent_ = 0;
      return false;
    }
    const size_t sent = socket_.Write(absl::string_view(out_).substr(sent_));
    if (sent == 0) return true;
    plan_->counts.bytes_sent += sent;
    sent_ += sent;
    if (plan_->options.finishes_at_once && sent_ >= kBufferBytes) {
      socket_.Finish();
      finished_ = true;
      return false;
    }
    if (sent_ < kBufferBytes && sent_ < out_.size()) continue;
    out_.erase(0, sent_);
    sent_ = 0;
  }
  return true;
}

bool FloodingConnection::Produce() {
  const FloodKind kind = plan_->options.kind;
  if (!IsHttp2(kind) || honest_call_under_way_) return false;
  if (next_stream_ > http2::kLargestWindow - 2 * kFramesAtOnce) {
    over_ = true;
    return false;
  }
  if (IsOfCalls(kind)) return ProduceCall();
  if (IsEndlessHeaders(kind) && stream_ == 0) {
    BeginEndlessHeaders();
    return true;
  }
  if (stream_ == 0 && FloodsOneStream(kind)) {
    stream_ = OpenStream(plan_->request_block, http2::kEndHeaders);
  }
  ProduceHeaders();
  for (int i = 0; i < kFramesAtOnce; ++i) {
    const size_t before = out_.size();
    if (kind == FloodKind::kPings) http2::AppendPing(0, &out_);
    if (kind == FloodKind::kSettings) {
      http2::AppendSettings({{http2::kInitialWindowSize, http2::kLargestWindow}}, &out_);
    }
    if (kind == FloodKind::kWindowUpdates) http2::AppendWindowUpdate(stream_, 1, &out_);
    if (out_.size() > before) ++plan_->counts.frames;
    if (kind == FloodKind::kEmptyData) Send(Frame::kData, 0, stream_, "");
  }
  return true;
}

void FloodingConnection::BeginEndlessHeaders() {
  std::string block = plan_->request_block;
  block.push_back('\0');
  http2::AppendInteger(0, 7, 1, &block);
  block += "x";
  if (plan_->options.kind == FloodKind::kEndlessHeader) {
    http2::AppendInteger(0, 7, kEndlessBytes, &block);
  } else if (plan_->options.kind == FloodKind::kEndlessInteger) {
    block += "\x7f";
  } else {
    http2::AppendInteger(0, 7, 1, &block);
    block += "y";
  }
  stream_ = OpenStream(block, 0);
}

void FloodingConnection::ProduceHeaders() {
  switch (plan_->options.kind) {
    case FloodKind::kStreamsOpened:
      OpenStream(plan_->request_block, http2::kEndHeaders);
      return;
    case FloodKind::kStreamsReset:
      http2::AppendResetStream(OpenStream(plan_->request_block, http2::kEndHeaders), kCancel,
                               &out_);
      ++plan_->counts.frames;
      return;
    case FloodKind::kContinuations:
      return Send(Frame::kContinuation, 0, stream_, plan_->small_headers);
    case FloodKind::kEmptyContinuations:
      return Send(Frame::kContinuation, 0, stream_, "");
    case FloodKind::kEndlessHeader:
      return Send(Frame::kContinuation, 0, stream_, std::string(http2::kLargestFrame, 'y'));
    case FloodKind::kEndlessInteger:
      return Send(Frame::kContinuation, 0, stream_, std::string(http2::kLargestFrame, '\x80'));
    case FloodKind::kIndexedHeaders: {
      std::string block = plan_->request_block;
      if (stream_ == 0) {
        http2::AppendIndexedLiteral("x", std::string(kIndexedBytes, 'y'), &block);
      }
      block.resize(block.size() + (stream_ == 0 ? 0 : kIndexedTimes),
                   static_cast<char>(0x80 | kFirstOwnIndex));
      stream_ = OpenStream(block, http2::kEndHeaders);
      return;
    }
    default:
      return;
  }
}

bool FloodingConnection::ProduceCall() {
  if (!settings_came_) return false;
  const FloodOptions& options = plan_->options;
  const auto most = std::min<size_t>(most_streams_, static_cast<size_t>(options.in_flight));
  if (streams_.size() >= most) return false;
  if (options.kind == FloodKind::kCompressedMessages) {
    SendCall(plan_->compressed_block, plan_->compressed_message, true);
  } else if (options.kind == FloodKind::kUnconsumedData) {
    SendCall(plan_->request_block, plan_->endless_message, false);
  } else {
    SendCall(plan_->request_block,
             std::make_shared<std::string>(http2::GrpcMessage(
                 options.message != nullptr ? options.message(plan_->next_call) : "")),
             options.half_close);
    ++plan_->next_call;
  }
  return true;
}

void FloodingConnection::SendCall(const std::string& block,
                                  std::shared_ptr<const std::string> message, bool end_stream) {
  const uint32_t number = OpenStream(block, http2::kEndHeaders);
  Stream& stream = streams_[number];
  stream.window = first_window_;
  stream.message = std::move(message);
  stream.end_stream = end_stream;
  FillWindows();
}

void FloodingConnection::FillWindows() {
  for (auto& [number, stream] : streams_) {
    while (stream.message != nullptr && window_ > 0 && stream.window > 0) {
      const size_t room = std::min(
          {static_cast<size_t>(window_), static_cast<size_t>(stream.window), http2::kLargestFrame});
      const absl::string_view part = absl::string_view(*stream.message).substr(stream.sent, room);
      stream.sent += part.size();
      stream.window -= static_cast<int64_t>(part.size());
      window_ -= static_cast<int64_t>(part.size());
      const bool all = stream.sent == stream.message->size();
      Send(Frame::kData, all && stream.end_stream ? http2::kEndStream : 0, number, part);
      if (all) stream.message = nullptr;
    }
  }
}

uint32_t FloodingConnection::OpenStream(const std::string& block, uint8_t flags) {
  const uint32_t number = next_stream_;
  next_stream_ += 2;
  ++plan_->counts.streams;
  Send(Frame::kHeaders, flags, number, block);
  return number;
}

void FloodingConnection::Send(Frame type, uint8_t flags, uint32_t stream,
                              absl::string_view payload) {
  http2::AppendFrame(type, flags, stream, payload, &out_);
  ++plan_->counts.frames;
}

namespace {

// The largest message that gRPC accepts by default.
constexpr size_t kLargestMessage = (size_t{4} << 20) - 1;

bool NeedsTls(const FloodOptions& options) {
  if (options.kind == FloodKind::kHandshakes) return true;
  return options.tls && options.kind != FloodKind::kConnectionsClosed &&
         options.kind != FloodKind::kHellos;
}

// Returns as many small headers as fit into a frame.
std::string SmallHeaders() {
  std::string block;
  for (int i = 0; block.size() < http2::kLargestFrame - 64; ++i) {
    http2::AppendLiteral(absl::StrCat("x-", i), "y", &block);
  }
  return block;
}

}  // namespace

bool IsHttp2(FloodKind kind) {
  return kind != FloodKind::kConnectionsHeld && kind != FloodKind::kConnectionsClosed &&
         kind != FloodKind::kHandshakes && kind != FloodKind::kHellos &&
         kind != FloodKind::kBytes && kind != FloodKind::kBytesAndClosed;
}

bool IsOfCalls(FloodKind kind) {
  return kind == FloodKind::kCalls || kind == FloodKind::kUnreadAnswers ||
         kind == FloodKind::kUnreadSocket || kind == FloodKind::kCompressedMessages ||
         kind == FloodKind::kUnconsumedData;
}

bool ReadsNothing(FloodKind kind) {
  return kind == FloodKind::kPings || kind == FloodKind::kSettings ||
         kind == FloodKind::kUnreadSocket;
}

bool IsEndlessHeaders(FloodKind kind) {
  return kind == FloodKind::kContinuations || kind == FloodKind::kEmptyContinuations ||
         kind == FloodKind::kEndlessHeader || kind == FloodKind::kEndlessInteger;
}

bool FloodsOneStream(FloodKind kind) {
  return kind == FloodKind::kEmptyData || kind == FloodKind::kWindowUpdates;
}

FloodPlan::FloodPlan(const FloodOptions& wanted) : options(wanted) {
  http2::Request request;
  request.path = options.path;
  request.authority = absl::StrCat(options.host, ":", options.port);
  request.tls = options.tls;
  if (!options.token.empty()) request.headers.push_back({options.token_name, options.token});
  request_block = http2::RequestBlock(request);
  if (NeedsTls(options)) context = NewFloodContext();
  if (options.kind == FloodKind::kHellos) hello = ClientHello(NewFloodContext().get());
  if (options.kind == FloodKind::kContinuations) small_headers = SmallHeaders();
  if (options.kind == FloodKind::kCompressedMessages) {
    request.headers.push_back({"grpc-encoding", "gzip"});
    compressed_block = http2::RequestBlock(request);
    compressed_message = std::make_shared<std::string>(
        http2::GrpcMessage(http2::GzipOfZeroes(options.inflated_mebibytes), true));
  }
  if (options.kind == FloodKind::kUnconsumedData) {
    endless_message = std::make_shared<std::string>(http2::GrpcMessageHead(kLargestMessage) +
                                                    std::string(kLargestMessage - 1, '\0'));
  }
}

namespace {

constexpr unsigned char kHttp2[] = {2, 'h', '2'};

absl::StatusOr<sockaddr_in> AddressOf(const std::string& host, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1) return address;
  return absl::InvalidArgumentError(absl::StrCat("not an IPv4 address: ", host));
}

bool IsForLater(int error) { return error == EAGAIN || error == EINTR; }

}  // namespace

SslContext NewFloodContext() {
  SslContext context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof(kHttp2));
  SSL_CTX_set_mode(context.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  return context;
}

std::string ClientHello(SSL_CTX* context) {
  const std::unique_ptr<SSL, FreeSsl> ssl(SSL_new(context));
  BIO* const out = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl.get(), BIO_new(BIO_s_mem()), out);
  SSL_connect(ssl.get());
  ERR_clear_error();
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(out, &bytes);
  return std::string(bytes, static_cast<size_t>(size));
}

absl::StatusOr<FloodSocket> FloodSocket::Connect(const std::string& host, int port,
                                                 const std::string& source, SSL_CTX* context) {
  absl::StatusOr<sockaddr_in> to = AddressOf(host, port);
  if (!to.ok()) return to.status();
  FloodSocket made;
  made.fd_.Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.fd_.ok()) return absl::ErrnoToStatus(errno, "a socket of a flood");
  const int one = 1;
  setsockopt(made.fd(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (!source.empty()) {
    absl::StatusOr<sockaddr_in> from = AddressOf(source, 0);
    if (!from.ok()) return from.status();
    // connect() chooses the port, so that each source address can use all ports for each server.
    setsockopt(made.fd(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
    if (bind(made.fd(), reinterpret_cast<sockaddr*>(&*from), sizeof(*from)) != 0) {
      return absl::ErrnoToStatus(errno, source);
    }
  }
  if (connect(made.fd(), reinterpret_cast<sockaddr*>(&*to), sizeof(*to)) != 0 &&
      errno != EINPROGRESS) {
    return absl::ErrnoToStatus(errno, absl::StrCat(host, ":", port));
  }
  if (context != nullptr) {
    made.ssl_.reset(SSL_new(context));
    SSL_set_fd(made.ssl_.get(), made.fd());
  }
  made.state_ = State::kConnecting;
  return made;
}

FloodSocket::State FloodSocket::Advance() {
  if (state_ == State::kConnecting) {
    sockaddr_in peer = {};
    socklen_t size = sizeof(peer);
    if (getpeername(fd(), reinterpret_cast<sockaddr*>(&peer), &size) != 0) {
      const bool still_connecting = errno == ENOTCONN;
      int error = 0;
      socklen_t error_size = sizeof(error);
      getsockopt(fd(), SOL_SOCKET, SO_ERROR, &error, &error_size);
      if (error != 0 || !still_connecting) state_ = State::kClosed;
      return state_;
    }
    was_connected_ = true;
    state_ = ssl_ == nullptr ? State::kOpen : State::kHandshaking;
  }
  if (state_ == State::kHandshaking) {
    const int result = SSL_connect(ssl_.get());
    if (result == 1) {
      state_ = State::kOpen;
    } else {
      OnSslError(result);
    }
  }
  return state_;
}

void FloodSocket::OnSslError(int result) {
  const int error = SSL_get_error(ssl_.get(), result);
  wants_to_write_ = error == SSL_ERROR_WANT_WRITE;
  if (error != SSL_ERROR_WANT_WRITE && error != SSL_ERROR_WANT_READ) state_ = State::kClosed;
  ERR_clear_error();
}

size_t FloodSocket::Write(absl::string_view bytes) {
  if (state_ != State::kOpen || bytes.empty()) return 0;
  if (ssl_ != nullptr) {
    const int sent = SSL_write(ssl_.get(), bytes.data(),
                               static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX)));
    if (sent > 0) return static_cast<size_t>(sent);
    OnSslError(sent);
    return 0;
  }
  const ssize_t sent = send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent > 0) return static_cast<size_t>(sent);
  if (sent < 0 && !IsForLater(errno)) state_ = State::kClosed;
  return 0;
}

size_t FloodSocket::Read(char* bytes, size_t size) {
  if (state_ != State::kOpen) return 0;
  if (ssl_ != nullptr) {
    const int got = SSL_read(ssl_.get(), bytes, static_cast<int>(std::min<size_t>(size, INT_MAX)));
    if (got > 0) return static_cast<size_t>(got);
    OnSslError(got);
    return 0;
  }
  const ssize_t got = recv(fd(), bytes, size, 0);
  if (got > 0) return static_cast<size_t>(got);
  if (got == 0 || !IsForLater(errno)) state_ = State::kClosed;
  return 0;
}

void FloodSocket::Gather() {
  const int on = 1;
  setsockopt(fd(), IPPROTO_TCP, TCP_CORK, &on, sizeof(on));
}

void FloodSocket::Finish() { shutdown(fd(), SHUT_WR); }

void FloodSocket::Abort() {
  if (fd_.ok()) {
    const linger now = {1, 0};
    setsockopt(fd(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  }
  ssl_.reset();
  fd_.Reset();
  state_ = State::kClosed;
}

}  // namespace cadre
