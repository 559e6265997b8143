// The average of gradients that lie where autograd put them on a device, made by the device's
// communicator. What a DistributedOptimizer does in place of a hook that is no more than that.
#ifndef CADRE_TORCH_DEVICE_AVERAGE_H_
#define CADRE_TORCH_DEVICE_AVERAGE_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "cadre/communication_hook.h"
#include "cadre/communicator.h"
#include "cadre/status.h"
#include "cadre/torch/device_stream.h"
#include "cadre/work.h"
#include "torch/types.h"

namespace cadre::nn {

// Start() and Finish() by turns, by one thread; all ranks start theirs in the same order. Throws
// what libtorch throws.
class DeviceAverage {
 public:
  // Of parameters of one type, on the device of `stream`, on which `communicator` runs. Null: there
  // is one rank.
  DeviceAverage(DeviceStream& stream, Communicator* communicator,
                std::vector<torch::Tensor> parameters, const PlainAverage& average);
  ~DeviceAverage();
  DeviceAverage(DeviceAverage&&) = default;

  // Sets out behind what the calling thread's current stream has been given. A gradient that is not
  // there counts as zeros.
  void Start();
  // Until the device is done; the parameters' gradients are the average then. An error of the
  // communicator's, which is aborted.
  Status Finish(std::chrono::nanoseconds timeout);
  // Given to collectives in a step.
  size_t bytes() const;

 private:
  torch::ScalarType SentType() const;

  DeviceStream* stream_;
  Communicator* communicator_;
  std::vector<torch::Tensor> parameters_;
  PlainAverage average_;
  // One behind the other; between Start() and Finish().
  torch::Tensor flat_;
  std::shared_ptr<Work> work_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_DEVICE_AVERAGE_H_
