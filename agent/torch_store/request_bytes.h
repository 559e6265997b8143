// Requests as a client of PyTorch's TCPStore sends them, for tests.
#ifndef CADRE_AGENT_TORCH_STORE_REQUEST_BYTES_H_
#define CADRE_AGENT_TORCH_STORE_REQUEST_BYTES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/torch_store/torch_request.h"

namespace cadre::agent {

using rpc::LittleEndian32;
using rpc::LittleEndian64;

inline std::string ValidateBytes() {
  return rpc::TorchOpByte(TorchOp::kValidate) + LittleEndian32(kTorchMagic);
}
inline std::string PingBytes(uint32_t number) {
  return rpc::TorchOpByte(TorchOp::kPing) + LittleEndian32(number);
}
// An operation whose fields are texts.
inline std::string TextsRequest(TorchOp op, const std::vector<std::string>& texts) {
  std::string bytes = rpc::TorchOpByte(op);
  for (const std::string& text : texts) bytes += rpc::TorchText(text);
  return bytes;
}
// One that begins with how many keys it names.
inline std::string KeysRequest(TorchOp op, const std::vector<std::string>& keys) {
  std::string bytes = rpc::TorchOpByte(op) + LittleEndian64(keys.size());
  for (const std::string& key : keys) bytes += rpc::TorchText(key);
  return bytes;
}
// ADD and BARRIER.
inline std::string NumberRequest(TorchOp op, absl::string_view key, int64_t number) {
  return absl::StrCat(rpc::TorchOpByte(op), rpc::TorchText(key),
                      LittleEndian64(static_cast<uint64_t>(number)));
}

}  // namespace cadre::agent

#endif  // CADRE_AGENT_TORCH_STORE_REQUEST_BYTES_H_
