#include "rpc/frames/store_frames.h"

#include <errno.h>
#include <sys/socket.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "rpc/channel_arguments.h"

namespace cadre {
namespace {

constexpr size_t kLengthBytes = 4;
// A read takes this much at most, so that one connection does not hold up the others.
constexpr size_t kReadBytes = 64 << 10;

void AppendLength(size_t length, std::string* bytes) {
  for (size_t i = 0; i < kLengthBytes; ++i) {
    bytes->push_back(static_cast<char>((length >> (8 * i)) & 0xff));
  }
}

}  // namespace

std::string StoreSocketPath(const std::string& agent_socket) { return agent_socket + "-store"; }

void AppendFrame(absl::string_view content, std::string* bytes) {
  AppendLength(content.size(), bytes);
  bytes->append(content.data(), content.size());
}

void AppendFrame(const google::protobuf::MessageLite& message, std::string* bytes) {
  AppendLength(message.ByteSizeLong(), bytes);
  message.AppendToString(bytes);
}

absl::StatusOr<bool> FrameReader::ReadFrom(int socket) {
  bytes_.erase(0, taken_);
  taken_ = 0;
  char buffer[kReadBytes];
  const ssize_t got = recv(socket, buffer, sizeof(buffer), MSG_DONTWAIT);
  if (got > 0) {
    bytes_.append(buffer, static_cast<size_t>(got));
    return true;
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  return absl::UnavailableError(got == 0 ? "the connection was ended"
                                         : std::string(absl::ErrnoToStatus(errno, "").message()));
}

absl::StatusOr<bool> FrameReader::Next(absl::string_view* frame) {
  const size_t left = bytes_.size() - taken_;
  if (left < kLengthBytes) return false;
  size_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= size_t{static_cast<unsigned char>(bytes_[taken_ + i])} << (8 * i);
  }
  if (length > static_cast<size_t>(kMessageBytesMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of ", length, " bytes; at most ", kMessageBytesMax, " are allowed"));
  }
  if (left < kLengthBytes + length) return false;
  *frame = absl::string_view(bytes_).substr(taken_ + kLengthBytes, length);
  taken_ += kLengthBytes + length;
  return true;
}

}  // namespace cadre
