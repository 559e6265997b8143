// The protocol of PyTorch's TCPStore, of 2.1 and newer: a byte selects the operation, numbers are
// little endian, and a string has its length in 8 bytes in front. The agent serves it
// (agent/torch_store), and the worker runtime uses it to talk to torchrun's store.
#ifndef CADRE_RPC_TORCH_PROTOCOL_H_
#define CADRE_RPC_TORCH_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace cadre::rpc {

// The opcodes of torch/csrc/distributed/c10d/TCPStoreBackend.hpp.
enum class TorchOp : uint8_t {
  kValidate = 0,
  kSet = 1,
  kCompareSet = 2,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kGetNumKeys = 7,
  kDeleteKey = 8,
  kAppend = 9,
  kMultiGet = 10,
  kMultiSet = 11,
  kCancelWait = 12,
  kPing = 13,
  kQueuePush = 14,
  kQueuePop = 15,
  kQueueLen = 16,
  kListKeys = 17,
  kBarrier = 18,
};

// The number that a VALIDATE request carries.
inline constexpr uint32_t kTorchMagic = 0x3C85F7CE;

inline std::string LittleEndian(uint64_t value, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}
inline std::string LittleEndian32(uint32_t value) { return LittleEndian(value, 4); }
inline std::string LittleEndian64(uint64_t value) { return LittleEndian(value, 8); }

inline std::string TorchOpByte(TorchOp op) { return std::string(1, static_cast<char>(op)); }
inline std::string TorchText(absl::string_view text) {
  return absl::StrCat(LittleEndian64(text.size()), text);
}

}  // namespace cadre::rpc

#endif  // CADRE_RPC_TORCH_PROTOCOL_H_
