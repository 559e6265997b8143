// Frames on a stream socket: 4 bytes, the length in little endian, and so many bytes.
#ifndef CADRE_RPC_FRAMES_FRAME_READER_H_
#define CADRE_RPC_FRAMES_FRAME_READER_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre::frames {

// The length in front of each frame.
inline constexpr size_t kLengthBytes = 4;

// Content must not be longer than the limit of the one who reads it.
void AppendFrame(absl::string_view content, std::string* bytes);
// Makes a frame of what was appended to `bytes` since it had `start` bytes, of which the first
// kLengthBytes were left for the length.
void CloseFrame(size_t start, std::string* bytes);

// Finds frames in the bytes of one connection. One thread.
class FrameReader {
 public:
  // Frames with more content than this are refused.
  explicit FrameReader(size_t limit) : limit_(limit) {}

  void Append(absl::string_view bytes);
  // Reads once, without waiting. False: there is nothing to read now. UNAVAILABLE: the other side
  // has ended the connection, or it is broken.
  absl::StatusOr<bool> ReadFrom(int socket);
  // False: the next frame is not complete. `content` is good until the next call of any method.
  // INVALID_ARGUMENT: it would be over the limit.
  absl::StatusOr<bool> Next(absl::string_view* content);

 private:
  size_t limit_;
  std::string bytes_;
  // Of them, those that were given out.
  size_t taken_ = 0;
};

}  // namespace cadre::frames

#endif  // CADRE_RPC_FRAMES_FRAME_READER_H_
