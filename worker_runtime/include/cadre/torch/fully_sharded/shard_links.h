// The ranks of a FullySharded model and how they and their devices are connected: what FullySharded
// is made of.
#ifndef CADRE_TORCH_FULLY_SHARDED_SHARD_LINKS_H_
#define CADRE_TORCH_FULLY_SHARDED_SHARD_LINKS_H_

#include <chrono>
#include <deque>
#include <functional>
#include <memory>

#include "cadre/communicator.h"
#include "cadre/status.h"
#include "cadre/torch/device_links.h"
#include "cadre/torch/fully_sharded/flat_parameter.h"
#include "cadre/work.h"
#include "torch/types.h"

namespace cadre::nn {

// One thread. The communicators must outlive it, and it the flat parameters that use its route.
class ShardLinks {
 public:
  // `replicas` may be null: there is one.
  ShardLinks(Communicator& parts, Communicator* replicas, std::chrono::nanoseconds timeout);
  ShardLinks(const ShardLinks&) = delete;
  ShardLinks& operator=(const ShardLinks&) = delete;

  // Collective.
  Status Connect(const torch::Device& device, const ConnectDevice& connect);
  // Of the host alone before Connect().
  const ShardRoute& route() const { return route_; }

  // Copies rank 0's values, of the first replica, to all ranks by what does it among some.
  Status FromFirstRank(const std::function<Status(Communicator&, DeviceLinks*)>& copy);
  // What is known by now of what the devices were given.
  Status CheckHealth();

  void Abort();
  // What devices do not do themselves, and so refers to memory of the host's.
  void AbortOnHost();
  // Until devices have done what they were given, for kLastDeviceWait each time at most.
  void AwaitDevices();

 private:
  // Null: there is one replica, or there was no Connect(). Goes last, since its streams wait for
  // those of the other.
  std::unique_ptr<DeviceLinks> across_;
  std::unique_ptr<DeviceLinks> within_;
  ShardRoute route_;
  std::deque<std::shared_ptr<Work>> under_way_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_FULLY_SHARDED_SHARD_LINKS_H_
