// What a client of PyTorch's TCPStore asks, as PyTorch 2.1 and newer send it. Plain values.
#ifndef CADRE_AGENT_TORCH_STORE_TORCH_REQUEST_H_
#define CADRE_AGENT_TORCH_STORE_TORCH_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "rpc/torch_protocol.h"

namespace cadre::agent {

using rpc::kTorchMagic;
using rpc::TorchOp;

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
