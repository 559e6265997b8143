#include "tests/testing/http2_frames.h"

#include <zlib.h>

#include <algorithm>

#include "absl/strings/numbers.h"

namespace cadre::http2 {
namespace {

constexpr char kMagic[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kMebibyte = size_t{1} << 20;

void AppendNumber(uint64_t value, int bytes, std::string* out) {
  for (int i = bytes - 1; i >= 0; --i) out->push_back(static_cast<char>(value >> (8 * i)));
}

void AppendText(absl::string_view text, std::string* block) {
  AppendInteger(0, 7, text.size(), block);
  block->append(text.data(), text.size());
}

// Compresses with deflate as gzip contains it: a raw stream, whose parts can be concatenated.
std::string Deflated(absl::string_view bytes, int flush) {
  z_stream stream = {};
  deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(compressBound(bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(&out[0]);
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, flush);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

void AppendLittleEndian(uint32_t value, std::string* out) {
  for (int i = 0; i < 4; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace

void AppendFrame(Frame type, uint8_t flags, uint32_t stream, absl::string_view payload,
                 std::string* out) {
  AppendNumber(payload.size(), 3, out);
  out->push_back(static_cast<char>(type));
  out->push_back(static_cast<char>(flags));
  AppendNumber(stream, 4, out);
  out->append(payload.data(), payload.size());
}

void AppendPreface(const Settings& settings, std::string* out) {
  out->append(kMagic);
  AppendSettings(settings, out);
}

void AppendSettings(const Settings& settings, std::string* out) {
  std::string payload;
  for (const auto& [id, value] : settings) {
    AppendNumber(id, 2, &payload);
    AppendNumber(value, 4, &payload);
  }
  AppendFrame(Frame::kSettings, 0, 0, payload, out);
}

void AppendPing(uint64_t opaque, std::string* out) {
  std::string payload;
  AppendNumber(opaque, 8, &payload);
  AppendFrame(Frame::kPing, 0, 0, payload, out);
}

void AppendResetStream(uint32_t stream, uint32_t error, std::string* out) {
  std::string payload;
  AppendNumber(error, 4, &payload);
  AppendFrame(Frame::kResetStream, 0, stream, payload, out);
}

void AppendWindowUpdate(uint32_t stream, uint32_t bytes, std::string* out) {
  std::string payload;
  AppendNumber(bytes, 4, &payload);
  AppendFrame(Frame::kWindowUpdate, 0, stream, payload, out);
}

uint32_t NumberAt(absl::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = at; i < at + 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

std::optional<FrameHeader> ParseFrameHeader(absl::string_view bytes) {
  if (bytes.size() < kFrameHeaderBytes) return std::nullopt;
  FrameHeader header;
  header.length = NumberAt(bytes, 0) >> 8;
  header.type = static_cast<Frame>(bytes[3]);
  header.flags = static_cast<uint8_t>(bytes[4]);
  header.stream = NumberAt(bytes, 5) & kLargestWindow;
  return header;
}

void AppendInteger(uint8_t first, int prefix_bits, uint64_t value, std::string* block) {
  const uint64_t most = (uint64_t{1} << prefix_bits) - 1;
  if (value < most) {
    block->push_back(static_cast<char>(first | value));
    return;
  }
  block->push_back(static_cast<char>(first | most));
  for (value -= most; value >= 0x80; value >>= 7) {
    block->push_back(static_cast<char>(0x80 | (value & 0x7f)));
  }
  block->push_back(static_cast<char>(value));
}

void AppendLiteral(absl::string_view name, absl::string_view value, std::string* block) {
  block->push_back('\0');
  AppendText(name, block);
  AppendText(value, block);
}

void AppendIndexedLiteral(absl::string_view name, absl::string_view value, std::string* block) {
  block->push_back('\x40');
  AppendText(name, block);
  AppendText(value, block);
}

void AppendIndex(uint32_t index, std::string* block) { AppendInteger(0x80, 7, index, block); }

std::string RequestBlock(const Request& request) {
  std::string block;
  AppendLiteral(":method", "POST", &block);
  AppendLiteral(":scheme", request.tls ? "https" : "http", &block);
  AppendLiteral(":path", request.path, &block);
  AppendLiteral(":authority", request.authority, &block);
  AppendLiteral("te", "trailers", &block);
  AppendLiteral("content-type", "application/grpc", &block);
  for (const auto& [name, value] : request.headers) AppendLiteral(name, value, &block);
  return block;
}

std::string GrpcMessage(absl::string_view bytes, bool compressed) {
  std::string message(1, compressed ? '\1' : '\0');
  AppendNumber(bytes.size(), 4, &message);
  message.append(bytes.data(), bytes.size());
  return message;
}

std::string GrpcMessageHead(uint32_t length) {
  std::string head(1, '\0');
  AppendNumber(length, 4, &head);
  return head;
}

std::string GzipOfZeroes(int mebibytes) {
  const std::string zeroes(kMebibyte, '\0');
  // The part ends at a byte boundary and refers to nothing before it, so that it can be repeated.
  const std::string part = Deflated(zeroes, Z_FULL_FLUSH);
  const auto part_sum =
      crc32(0, reinterpret_cast<const Bytef*>(zeroes.data()), static_cast<uInt>(zeroes.size()));
  std::string out("\x1f\x8b\x08\0\0\0\0\0\0\xff", 10);
  uLong sum = 0;
  for (int i = 0; i < mebibytes; ++i) {
    out += part;
    sum = crc32_combine(sum, part_sum, static_cast<z_off_t>(kMebibyte));
  }
  out += Deflated("", Z_FINISH);
  AppendLittleEndian(static_cast<uint32_t>(sum), &out);
  AppendLittleEndian(static_cast<uint32_t>(kMebibyte * static_cast<size_t>(mebibytes)), &out);
  return out;
}

std::optional<int> GrpcStatusIn(absl::string_view block) {
  static constexpr absl::string_view kNames[] = {"grpc-status", "\x9a\xca\xc8\xb2\x12\x34\xda\x8f"};
  for (const absl::string_view name : kNames) {
    const size_t found = block.find(name);
    if (found == block.npos || found + name.size() >= block.size()) continue;
    const size_t at = found + name.size();
    int code = 0;
    const auto length = static_cast<uint8_t>(block[at]);
    if (length <= 2 && absl::SimpleAtoi(block.substr(at + 1, length), &code)) return code;
  }
  return std::nullopt;
}

}  // namespace cadre::http2
