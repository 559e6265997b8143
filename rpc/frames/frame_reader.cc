#include "rpc/frames/frame_reader.h"

#include <errno.h>
#include <sys/socket.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace cadre::frames {
namespace {

// One read takes this much at most, so that one connection does not hold up the others.
constexpr size_t kReadBytes = 64 << 10;

}  // namespace

void AppendFrame(absl::string_view content, std::string* bytes) {
  const size_t start = bytes->size();
  bytes->append(kLengthBytes, '\0');
  bytes->append(content.data(), content.size());
  CloseFrame(start, bytes);
}

void CloseFrame(size_t start, std::string* bytes) {
  const size_t length = bytes->size() - start - kLengthBytes;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    (*bytes)[start + i] = static_cast<char>((length >> (8 * i)) & 0xff);
  }
}

void FrameReader::Append(absl::string_view bytes) {
  // The bytes left are moved to the front only if they are the smaller part: this keeps reading
  // linear.
  if (taken_ > 0 && taken_ >= bytes_.size() / 2) {
    bytes_.erase(0, taken_);
    taken_ = 0;
  }
  bytes_.append(bytes.data(), bytes.size());
}

absl::StatusOr<bool> FrameReader::ReadFrom(int socket) {
  char buffer[kReadBytes];
  const ssize_t got = recv(socket, buffer, sizeof(buffer), MSG_DONTWAIT);
  if (got > 0) {
    Append(absl::string_view(buffer, static_cast<size_t>(got)));
    return true;
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  return absl::UnavailableError(got == 0 ? "the other side closed the connection"
                                         : std::string(absl::ErrnoToStatus(errno, "").message()));
}

absl::StatusOr<bool> FrameReader::Next(absl::string_view* content) {
  const size_t left = bytes_.size() - taken_;
  if (left < kLengthBytes) return false;
  size_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= size_t{static_cast<unsigned char>(bytes_[taken_ + i])} << (8 * i);
  }
  if (length > limit_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of ", length, " bytes; at most ", limit_, " are allowed"));
  }
  if (left < kLengthBytes + length) return false;
  *content = absl::string_view(bytes_).substr(taken_ + kLengthBytes, length);
  taken_ += kLengthBytes + length;
  return true;
}

}  // namespace cadre::frames
