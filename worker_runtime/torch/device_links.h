// The communicators between the ranks' devices, which reduce gradients without host memory.
#ifndef CADRE_WORKER_RUNTIME_TORCH_DEVICE_LINKS_H_
#define CADRE_WORKER_RUNTIME_TORCH_DEVICE_LINKS_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/torch/device_stream.h"
#include "torch/types.h"

namespace cadre::nn {

// Collective. FAILED_PRECONDITION on all ranks alike: CADRE_ENCRYPT demands that traffic between
// machines is encrypted, the ranks are on several machines, and device traffic is not encrypted.
// `machine` is any name that is equal exactly for ranks on the same machine.
Status CheckDevicesMayCrossMachines(Communicator& host, const std::string& machine);

// A stream for each device of a model, and a communicator if the devices are connected. Not thread
// safe, except Abort().
class DeviceLinks {
 public:
  // Collective if `connect` is not null: connects devices in the order in which the tensors name
  // them, which is the same on all ranks. A failure to connect is reported on standard error, or
  // returned if CADRE_DEVICE_BACKEND is "nccl"; with "host" nothing is connected. Ranks that
  // encrypt (CADRE_ENCRYPT) do not connect devices of several machines, unless it is "nccl".
  // `why_not` is reported in the same way if `connect` is null, unless it is empty.
  static Result<std::unique_ptr<DeviceLinks>> Connect(Communicator& host,
                                                      const std::vector<torch::Tensor>& tensors,
                                                      const ConnectDevice& connect,
                                                      std::string_view why_not = "");

  DeviceStream& StreamOf(torch::Device device);
  // A separate stream for checking gradients before they are sent, so that checks do not delay
  // earlier gradients.
  DeviceStream& CheckStreamOf(torch::Device device);
  // Whether gradients on that device need not go through the host.
  bool Reduces(torch::Device device) const;
  // Null if there is only one rank, or gradients go through the host.
  Communicator* CommunicatorOf(torch::Device device) const;

  // Makes later work on the calling thread's current streams wait for all work on ours.
  void CurrentWaits() const;
  void Abort();

 private:
  struct Link {
    std::unique_ptr<DeviceStream> stream;
    std::unique_ptr<DeviceStream> checks;
    // Declared after the stream that it runs on, so that it is destroyed first.
    std::unique_ptr<Communicator> communicator;
  };

  const Link* Find(torch::Device device) const;
  const Link& FindOrAdd(torch::Device device);

  // Whether there is only one rank, whose gradients need no reduction.
  bool alone_ = false;
  std::vector<Link> links_;
};

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_DEVICE_LINKS_H_
