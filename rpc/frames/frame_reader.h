// Frames on a stream socket: the length in 4 little-endian bytes, and that many bytes of content.
#ifndef CADRE_RPC_FRAMES_FRAME_READER_H_
#define CADRE_RPC_FRAMES_FRAME_READER_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre::frames {

// Bytes of the length in front of each frame.
inline constexpr size_t kLengthBytes = 4;

// Content must not be longer than the limit of its reader.
void AppendFrame(absl::string_view content, std::string* bytes);
// Makes a frame of the bytes from `start` on, of which the caller left the first kLengthBytes free
// for the length.
void CloseFrame(size_t start, std::string* bytes);

// Splits the bytes of one connection into frames. One thread.
class FrameReader {
 public:
  // Frames with more content than this are refused.
  explicit FrameReader(size_t limit) : limit_(limit) {}

  void Append(absl::string_view bytes);
  // Reads once, without blocking. False: nothing can be read now. UNAVAILABLE: the other side has
  // closed the connection, or it is broken.
  absl::StatusOr<bool> ReadFrom(int socket);
  // Returns false if the next frame is not complete. `content` is valid until the next call of any
  // method. INVALID_ARGUMENT: the frame is over the limit.
  absl::StatusOr<bool> Next(absl::string_view* content);

 private:
  size_t limit_;
  std::string bytes_;
  // How many of them were returned as frames.
  size_t taken_ = 0;
};

}  // namespace cadre::frames

#endif  // CADRE_RPC_FRAMES_FRAME_READER_H_
