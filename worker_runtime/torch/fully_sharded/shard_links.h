// The ranks of a FullySharded model and the connections between them and their devices; a part of
// FullySharded.
// Implemented in hybrid_sharding.cc.
#ifndef CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_SHARD_LINKS_H_
#define CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_SHARD_LINKS_H_

#include <chrono>
#include <deque>
#include <functional>
#include <memory>

#include "cadre/communicator.h"
#include "cadre/status.h"
#include "cadre/work.h"
#include "torch/types.h"
#include "worker_runtime/torch/device_links.h"
#include "worker_runtime/torch/fully_sharded/flat_parameter.h"

namespace cadre::nn {

// Used by one thread. The communicators must outlive it, and it must outlive the flat parameters
// that use its route.
class ShardLinks {
 public:
  // `replicas` is null if there is only one replica.
  ShardLinks(Communicator& parts, Communicator* replicas, std::chrono::nanoseconds timeout);
  ShardLinks(const ShardLinks&) = delete;
  ShardLinks& operator=(const ShardLinks&) = delete;

  // Collective.
  Status Connect(const torch::Device& device, const ConnectDevice& connect);
  // Only connects hosts before Connect().
  const ShardRoute& route() const { return route_; }

  // Copies the values of rank 0 of the first replica to all ranks, by calling `copy`, which copies
  // within a group of ranks.
  Status FromFirstRank(const std::function<Status(Communicator&, DeviceLinks*)>& copy);
  // The status, as far as known by now, of the devices' collectives.
  Status CheckHealth();

  void Abort();
  // Aborts the communicators of groups whose devices are not connected, whose operations refer to
  // host memory.
  void AbortOnHost();
  // Waits until devices have done their work, at most kLastDeviceWait each time.
  void AwaitDevices();

 private:
  // Null if there is only one replica, or before Connect(). Declared first and so destroyed last,
  // since its streams wait for those of within_.
  std::unique_ptr<DeviceLinks> across_;
  std::unique_ptr<DeviceLinks> within_;
  ShardRoute route_;
  std::deque<std::shared_ptr<Work>> under_way_;
};

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_FULLY_SHARDED_SHARD_LINKS_H_
