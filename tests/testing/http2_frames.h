// Writes and reads the bytes of HTTP/2 and gRPC by hand: gRPC's own client does not break the
// protocol, and a flood has to. Headers are literals without an index, so that no block depends on
// another. Pure.
#ifndef CADRE_TESTS_TESTING_HTTP2_FRAMES_H_
#define CADRE_TESTS_TESTING_HTTP2_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre::http2 {

enum class Frame : uint8_t {
  kData = 0,
  kHeaders = 1,
  kResetStream = 3,
  kSettings = 4,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};

inline constexpr uint8_t kEndStream = 1;
inline constexpr uint8_t kAck = 1;
inline constexpr uint8_t kEndHeaders = 4;

// These are identifiers of settings.
inline constexpr uint16_t kHeaderTableSize = 1;
inline constexpr uint16_t kMaxConcurrentStreams = 3;
inline constexpr uint16_t kInitialWindowSize = 4;

// The other side may refuse larger frames.
inline constexpr size_t kLargestFrame = 16384;
inline constexpr size_t kFrameHeaderBytes = 9;
inline constexpr int64_t kFirstWindow = 65535;
inline constexpr uint32_t kLargestWindow = (uint32_t{1} << 31) - 1;

struct FrameHeader {
  size_t length = 0;
  Frame type = Frame::kData;
  uint8_t flags = 0;
  uint32_t stream = 0;
};

using Settings = std::vector<std::pair<uint16_t, uint32_t>>;

void AppendFrame(Frame type, uint8_t flags, uint32_t stream, absl::string_view payload,
                 std::string* out);
// Appends what a client sends first: the connection preface and its settings.
void AppendPreface(const Settings& settings, std::string* out);
void AppendSettings(const Settings& settings, std::string* out);
void AppendPing(uint64_t opaque, std::string* out);
void AppendResetStream(uint32_t stream, uint32_t error, std::string* out);
// Stream 0 means the window of the connection.
void AppendWindowUpdate(uint32_t stream, uint32_t bytes, std::string* out);

uint32_t NumberAt(absl::string_view bytes, size_t at);
// Returns nullopt if there are fewer than kFrameHeaderBytes.
std::optional<FrameHeader> ParseFrameHeader(absl::string_view bytes);

// Appends an HPACK integer with a prefix of `prefix_bits` bits; `first` holds the bits above them.
void AppendInteger(uint8_t first, int prefix_bits, uint64_t value, std::string* block);
void AppendLiteral(absl::string_view name, absl::string_view value, std::string* block);
// Appends a literal that the receiver also puts into its table, at index 62 until the next one.
void AppendIndexedLiteral(absl::string_view name, absl::string_view value, std::string* block);
void AppendIndex(uint32_t index, std::string* block);

struct Request {
  // For example, "/cadre.v1.Control/ListJobs".
  std::string path;
  // The server's host:port.
  std::string authority;
  bool tls = false;
  // Further headers, such as {"cadre-token", "..."}.
  std::vector<std::pair<std::string, std::string>> headers;
};
// Returns the header block of a gRPC call.
std::string RequestBlock(const Request& request);

// Returns a message as DATA frames carry it: a flag, its length and its bytes.
std::string GrpcMessage(absl::string_view bytes, bool compressed = false);
// Returns the beginning of a message of `length` bytes; the bytes themselves are not sent.
std::string GrpcMessageHead(uint32_t length);
// Returns `mebibytes` MiB of zeroes, compressed by gzip to about a thousandth. It is fast, because
// only one MiB is compressed and its output repeated.
std::string GzipOfZeroes(int mebibytes);

// Returns the status code in a block of trailers if it was written without the table, with or
// without Huffman coding: for clients that set the header table's size to 0.
std::optional<int> GrpcStatusIn(absl::string_view block);

}  // namespace cadre::http2

#endif  // CADRE_TESTS_TESTING_HTTP2_FRAMES_H_
