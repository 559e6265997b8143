#include "bench/floods/target.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

constexpr int kMany = 64;
// Twice what a server of Cadre holds of those without a token.
constexpr int kHeld = 16384;

bool IsOfConnections(FloodKind kind) {
  return kind == FloodKind::kConnectionsHeld || kind == FloodKind::kConnectionsClosed ||
         kind == FloodKind::kHandshakes || kind == FloodKind::kHellos;
}

// Those of which each needs something of its own, as a path, are not among them.
bool IsOfAnyServer(FloodKind kind, const FloodOptions& to, bool has_token) {
  switch (kind) {
    case FloodKind::kCalls:
    case FloodKind::kUnreadAnswers:
    case FloodKind::kUnreadSocket:
    case FloodKind::kBytes:
    case FloodKind::kBytesAndClosed:
      return false;
    case FloodKind::kHandshakes:
    case FloodKind::kHellos:
      return to.tls && !has_token;
    case FloodKind::kConnectionsHeld:
    case FloodKind::kConnectionsClosed:
      return !has_token;
    default:
      return true;
  }
}

}  // namespace

std::string FloodCase::Text() const {
  std::string text = name;
  for (const std::string& more : {token, transport, from}) {
    if (!more.empty()) absl::StrAppend(&text, ", ", more);
  }
  return text;
}

void AppendFromFewAndMany(FloodCase one, std::vector<FloodCase>* cases) {
  const bool of_connections = IsOfConnections(one.options.kind);
  const bool held = one.options.kind == FloodKind::kConnectionsHeld;
  one.options.connections = held ? kHeld : of_connections ? kMany : 1;
  one.options.sources = SourceAddresses(1);
  one.from = of_connections ? "1 source" : "1 connection";
  cases->push_back(one);
  one.options.connections = held ? kHeld : kMany;
  one.options.sources = SourceAddresses(kMany);
  one.from = of_connections ? absl::StrCat(kMany, " sources") : absl::StrCat(kMany, " connections");
  cases->push_back(one);
}

std::vector<FloodCase> Http2Cases(const FloodOptions& to, const std::string& token_text) {
  std::vector<FloodCase> cases;
  const bool has_token = token_text != "no token" && !token_text.empty();
  for (const FloodKind kind : AllFloodKinds()) {
    if (!IsOfAnyServer(kind, to, has_token)) continue;
    FloodCase one;
    one.name = FloodKindText(kind);
    one.token = token_text;
    one.transport = to.tls ? "TLS" : "clear";
    one.options = to;
    one.options.kind = kind;
    one.options.honest_call_first = has_token;
    AppendFromFewAndMany(one, &cases);
  }
  return cases;
}

namespace {

using http2::Frame;

constexpr char kHost[] = "127.0.0.1";
constexpr size_t kReadBytes = size_t{64} << 10;
// Of a message in DATA frames, before its bytes.
constexpr size_t kMessageHead = 5;

}  // namespace

HonestCaller::HonestCaller(CalledServer server)
    : server_(std::move(server)), context_(server_.tls ? NewFloodContext() : nullptr) {}

void HonestCaller::Disconnect() {
  socket_.Abort();
  in_.clear();
  out_.clear();
}

absl::Status HonestCaller::Wait(bool to_write) {
  const absl::Duration left = deadline_ - MonoNow();
  if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("no answer in time");
  pollfd ready = {socket_.fd(), static_cast<short>(to_write ? POLLOUT | POLLIN : POLLIN), 0};
  if (socket_.state() == FloodSocket::State::kConnecting) ready.events = POLLOUT;
  poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  return absl::OkStatus();
}

absl::Status HonestCaller::Connect() {
  Disconnect();
  ASSIGN_OR_RETURN(socket_, FloodSocket::Connect(kHost, server_.port, "", context_.get()));
  while (socket_.Advance() != FloodSocket::State::kOpen) {
    if (socket_.state() == FloodSocket::State::kClosed) {
      return absl::UnavailableError("the server closed the connection as it began");
    }
    RETURN_IF_ERROR(Wait(socket_.wants_to_write()));
  }
  next_stream_ = 1;
  http2::AppendPreface(
      {{http2::kHeaderTableSize, 0}, {http2::kInitialWindowSize, http2::kLargestWindow}}, &out_);
  http2::AppendWindowUpdate(0, http2::kLargestWindow - static_cast<uint32_t>(http2::kFirstWindow),
                            &out_);
  return absl::OkStatus();
}

absl::Status HonestCaller::Flush() {
  while (!out_.empty()) {
    const size_t sent = socket_.Write(out_);
    out_.erase(0, sent);
    if (socket_.state() != FloodSocket::State::kOpen) {
      return absl::UnavailableError("the server closed the connection");
    }
    if (sent == 0) RETURN_IF_ERROR(Wait(true));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> HonestCaller::Call(const std::string& path, absl::string_view request,
                                               absl::Duration timeout, bool one_reply) {
  deadline_ = MonoNow() + timeout;
  if (socket_.state() != FloodSocket::State::kOpen) {
    if (const absl::Status connected = Connect(); !connected.ok()) {
      Disconnect();
      return connected;
    }
  }
  http2::Request head;
  head.path = path;
  head.authority = absl::StrCat(kHost, ":", server_.port);
  head.tls = server_.tls;
  if (!server_.token.empty()) head.headers.push_back({"cadre-token", server_.token});
  const uint32_t stream = std::exchange(next_stream_, next_stream_ + 2);
  http2::AppendFrame(Frame::kHeaders, http2::kEndHeaders, stream, http2::RequestBlock(head), &out_);
  // Requests are smaller than the window that there is at first.
  const std::string message = http2::GrpcMessage(request);
  for (size_t at = 0; at < message.size(); at += http2::kLargestFrame) {
    const absl::string_view part = absl::string_view(message).substr(at, http2::kLargestFrame);
    const bool last = at + part.size() == message.size();
    http2::AppendFrame(Frame::kData, last ? http2::kEndStream : 0, stream, part, &out_);
  }
  Answer answer;
  const absl::Status read = ReadUntil(stream, one_reply, &answer);
  if (!read.ok()) {
    Disconnect();
    return read;
  }
  if (one_reply && !answer.over) http2::AppendResetStream(stream, 8, &out_);
  if (answer.over && answer.status != 0) {
    return absl::Status(static_cast<absl::StatusCode>(std::max(answer.status, 2)),
                        absl::StrCat("answered with status ", answer.status));
  }
  if (answer.data.size() < kMessageHead) return absl::InternalError("an answer without a message");
  return answer.data.substr(kMessageHead);
}

absl::Status HonestCaller::ReadUntil(uint32_t stream, bool one_reply, Answer* answer) {
  while (!answer->over && !(one_reply && answer->data.size() >= kMessageHead)) {
    RETURN_IF_ERROR(Flush());
    char bytes[kReadBytes];
    const size_t got = socket_.Read(bytes, sizeof(bytes));
    if (socket_.state() != FloodSocket::State::kOpen) {
      return absl::UnavailableError("the server closed the connection");
    }
    if (got == 0) {
      RETURN_IF_ERROR(Wait(false));
      continue;
    }
    in_.append(bytes, got);
    size_t at = 0;
    for (;;) {
      const absl::string_view rest = absl::string_view(in_).substr(at);
      const auto header = http2::ParseFrameHeader(rest);
      if (!header.has_value()) break;
      const size_t size = http2::kFrameHeaderBytes + header->length;
      if (rest.size() < size) break;
      OnFrame(*header, rest.substr(http2::kFrameHeaderBytes, header->length), stream, answer);
      at += size;
    }
    in_.erase(0, at);
  }
  return absl::OkStatus();
}

void HonestCaller::OnFrame(const http2::FrameHeader& header, absl::string_view payload,
                           uint32_t stream, Answer* answer) {
  const bool is_ack = (header.flags & http2::kAck) != 0;
  if (header.type == Frame::kSettings && !is_ack) {
    http2::AppendFrame(Frame::kSettings, http2::kAck, 0, "", &out_);
  }
  if (header.type == Frame::kPing && !is_ack) {
    http2::AppendFrame(Frame::kPing, http2::kAck, 0, payload, &out_);
  }
  if (header.type == Frame::kData && header.length > 0) {
    http2::AppendWindowUpdate(0, static_cast<uint32_t>(header.length), &out_);
  }
  if (header.stream != stream) return;
  if (header.type == Frame::kData) answer->data.append(payload.data(), payload.size());
  if (header.type == Frame::kHeaders && (header.flags & http2::kEndStream) != 0) {
    answer->status = http2::GrpcStatusIn(payload).value_or(2);
    answer->over = true;
  }
  if (header.type == Frame::kResetStream) {
    answer->status = 14;
    answer->over = true;
  }
}

namespace {

constexpr int kLookMs = 10;
constexpr absl::Duration kEndTimeout = absl::Seconds(10);

}  // namespace

absl::StatusOr<std::unique_ptr<Process>> StartDaemon(const std::vector<std::string>& argv,
                                                     const std::string& log) {
  ProcessOptions options;
  options.argv = {"sh", "-c", absl::StrCat("exec \"$@\" >> ", log, " 2>&1"), "sh"};
  options.argv.insert(options.argv.end(), argv.begin(), argv.end());
  return Process::Start(options);
}

absl::StatusOr<std::string> AwaitInLog(Process& program, const std::string& log,
                                       const std::string& text, absl::Duration timeout) {
  const MonoTime deadline = MonoNow() + timeout;
  for (;;) {
    // In this order: what it wrote before its end is in the log.
    const bool ended = program.Wait(absl::ZeroDuration()).has_value();
    const std::string all = ReadFileOrEmpty(log);
    const size_t found = all.find(text);
    const size_t end = found == all.npos ? all.npos : all.find('\n', found);
    if (end != all.npos) return all.substr(found + text.size(), end - found - text.size());
    if (ended || MonoNow() >= deadline) {
      return absl::UnavailableError(absl::StrCat("no '", text, "' in ", log, ": ", all));
    }
    poll(nullptr, 0, kLookMs);
  }
}

absl::Status RunCommand(const std::vector<std::string>& argv, absl::Duration timeout,
                        std::string* output) {
  ASSIGN_OR_RETURN(const auto process, Process::Start({argv, {}, "", false}));
  const std::optional<int> status = process->Wait(timeout);
  if (!status.has_value()) {
    process->Kill(SIGKILL);
    process->Wait(kEndTimeout);
    return absl::DeadlineExceededError(
        absl::StrCat(argv[0], " did not end within ", absl::FormatDuration(timeout)));
  }
  if (output != nullptr) *output = process->standard_output();
  if (*status == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(argv[0], " ended with ", *status, ": ",
                   absl::StripAsciiWhitespace(process->standard_error())));
}

ProgramFlood::ProgramFlood(const std::vector<std::string>& argv, int loops) {
  ProcessOptions options;
  // At SIGTERM a shell ends behind the program that it waits for.
  options.argv = {"sh", "-c",
                  "trap 'exit 0' TERM; while :; do \"$@\" > /dev/null 2>&1 < /dev/null; done",
                  "sh"};
  options.argv.insert(options.argv.end(), argv.begin(), argv.end());
  for (int i = 0; i < loops; ++i) {
    auto loop = Process::Start(options);
    if (loop.ok()) loops_.push_back(*std::move(loop));
  }
}

void ProgramFlood::Stop() {
  for (const auto& loop : loops_) loop->Kill(SIGTERM);
  for (const auto& loop : loops_) loop->Wait(kEndTimeout);
  loops_.clear();
}

}  // namespace cadre
