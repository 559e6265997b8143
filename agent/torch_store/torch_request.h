// The requests of a client of PyTorch's TCPStore, as sent by PyTorch 2.1 and newer, and their
// parser. Pure; one thread.
//
// Numbers are little endian. A request is an opcode and the opcode's fields, without a total
// length; a text is a length of 8 bytes and as many bytes.
#ifndef CADRE_AGENT_TORCH_STORE_TORCH_REQUEST_H_
#define CADRE_AGENT_TORCH_STORE_TORCH_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rpc/torch_protocol.h"

namespace cadre::agent {

using rpc::kTorchMagic;
using rpc::TorchOp;

// The limits of PyTorch's own server.
inline constexpr size_t kMaxTorchKeyBytes = 8 << 10;
inline constexpr size_t kMaxTorchValueBytes = 8 << 20;
inline constexpr uint64_t kMaxTorchKeysPerCall = 131072;

// The limit of one request, with all its keys and values.
inline constexpr size_t kMaxTorchRequestBytes = size_t{64} << 20;

struct TorchRequest {
  TorchOp op = TorchOp::kPing;
  std::vector<std::string> keys;
  // For COMPARE_SET expected and desired; else one for each key if the operation has values.
  std::vector<std::string> values;
  // The addend of ADD, the count of BARRIER, the number in VALIDATE and PING.
  int64_t number = 0;
};

// Parses the requests of one client from a stream of bytes.
class TorchRequestReader {
 public:
  // Consumes bytes from the front, up to the end of a request at most. Returns true if `request` is
  // complete; false if all bytes are consumed and the request continues in the next ones.
  // INVALID_ARGUMENT: an invalid or too large request, after which the stream cannot be parsed.
  absl::StatusOr<bool> Read(absl::string_view* bytes, TorchRequest* request);

  // The bytes held for an incomplete request.
  size_t held_bytes() const { return held_bytes_; }

 private:
  absl::Status Begin(uint8_t opcode);
  // Whether the current field is complete.
  absl::StatusOr<bool> ReadField(absl::string_view* bytes);
  absl::StatusOr<bool> ReadText(absl::string_view* bytes, bool is_key);
  // Whether that many bytes have come; they are in number_ then.
  bool ReadNumber(absl::string_view* bytes, size_t size);
  absl::Status Hold(size_t bytes);
  void NextField();

  TorchRequest request_;
  // The remaining fields, as in kLayouts; null: an opcode is next.
  const char* field_ = nullptr;
  // Where the repeated fields begin, and how often they are still to come.
  const char* repeated_ = nullptr;
  uint64_t repeats_ = 0;
  // The number being read.
  uint64_t number_ = 0;
  size_t number_bytes_ = 0;
  // The text being read.
  bool in_text_ = false;
  uint64_t text_left_ = 0;
  size_t held_bytes_ = 0;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_TORCH_STORE_TORCH_REQUEST_H_
