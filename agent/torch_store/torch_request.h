// What a client of PyTorch's TCPStore asks, as PyTorch 2.1 and newer send it. Plain values.
#ifndef CADRE_AGENT_TORCH_STORE_TORCH_REQUEST_H_
#define CADRE_AGENT_TORCH_STORE_TORCH_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

namespace cadre::agent {

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

// What VALIDATE carries.
inline constexpr int64_t kTorchMagic = 0x3C85F7CE;

struct TorchRequest {
  TorchOp op = TorchOp::kPing;
  std::vector<std::string> keys;
  // Of COMPARE_SET expected and desired; else one for each key where the operation has any.
  std::vector<std::string> values;
  // What ADD adds, how many BARRIER waits for, what VALIDATE and PING carry.
  int64_t number = 0;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_TORCH_STORE_TORCH_REQUEST_H_
