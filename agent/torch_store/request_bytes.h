// Requests as a client of PyTorch's TCPStore sends them, for tests.
#ifndef CADRE_AGENT_TORCH_STORE_REQUEST_BYTES_H_
#define CADRE_AGENT_TORCH_STORE_REQUEST_BYTES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/torch_store/little_endian.h"
#include "agent/torch_store/torch_request.h"

namespace cadre::agent {

inline std::string TextBytes(absl::string_view text) {
  return absl::StrCat(LittleEndian64(text.size()), text);
}

inline std::string OpByte(TorchOp op) { return std::string(1, static_cast<char>(op)); }

inline std::string ValidateBytes() {
  return OpByte(TorchOp::kValidate) + LittleEndian32(static_cast<uint32_t>(kTorchMagic));
}
inline std::string PingBytes(uint32_t number) {
  return OpByte(TorchOp::kPing) + LittleEndian32(number);
}
// An operation whose fields are texts.
inline std::string TextsRequest(TorchOp op, const std::vector<std::string>& texts) {
  std::string bytes = OpByte(op);
  for (const std::string& text : texts) bytes += TextBytes(text);
  return bytes;
}
// One that begins with how many keys it names.
inline std::string KeysRequest(TorchOp op, const std::vector<std::string>& keys) {
  std::string bytes = OpByte(op) + LittleEndian64(keys.size());
  for (const std::string& key : keys) bytes += TextBytes(key);
  return bytes;
}
// ADD and BARRIER.
inline std::string NumberRequest(TorchOp op, absl::string_view key, int64_t number) {
  return absl::StrCat(OpByte(op), TextBytes(key), LittleEndian64(static_cast<uint64_t>(number)));
}

}  // namespace cadre::agent

#endif  // CADRE_AGENT_TORCH_STORE_REQUEST_BYTES_H_
