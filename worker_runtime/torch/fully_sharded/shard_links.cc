#include "cadre/torch/fully_sharded/shard_links.h"

#include "cadre/result.h"
#include "cadre/status_macros.h"
#include "cadre/torch/device_stream.h"

namespace cadre::nn {

ShardLinks::ShardLinks(Communicator& parts, Communicator* replicas,
                       std::chrono::nanoseconds timeout) {
  route_.parts.host = &parts;
  route_.replicas.host = replicas;
  route_.timeout = timeout;
  route_.under_way = &under_way_;
}

Status ShardLinks::Connect(const torch::Device& device, const ConnectDevice& connect) {
  const torch::Tensor there = torch::empty({0}, torch::TensorOptions(device));
  const auto connected = [&](RankRoute* ranks, std::unique_ptr<DeviceLinks>* links) -> Status {
    CADRE_ASSIGN_OR_RETURN(*links, DeviceLinks::Connect(*ranks->host, {there}, connect));
    ranks->device = (*links)->CommunicatorOf(device);
    ranks->stream = &(*links)->StreamOf(device);
    return OkStatus();
  };
  CADRE_RETURN_IF_ERROR(connected(&route_.parts, &within_));
  return route_.replicas.host == nullptr ? OkStatus() : connected(&route_.replicas, &across_);
}

Status ShardLinks::FromFirstRank(const std::function<Status(Communicator&, DeviceLinks*)>& copy) {
  // Between the replicas only once.
  if (route_.replicas.host != nullptr && route_.parts.host->rank() == 0) {
    CADRE_RETURN_IF_ERROR(copy(*route_.replicas.host, across_.get()));
  }
  return copy(*route_.parts.host, within_.get());
}

Status ShardLinks::CheckHealth() {
  while (!under_way_.empty() && under_way_.front()->done()) {
    CADRE_RETURN_IF_ERROR(under_way_.front()->Wait(std::chrono::nanoseconds(0)));
    under_way_.pop_front();
  }
  return OkStatus();
}

void ShardLinks::Abort() {
  for (const RankRoute& ranks : {route_.parts, route_.replicas}) {
    if (ranks.host != nullptr) ranks.host->Abort();
    if (ranks.device != nullptr) ranks.device->Abort();
  }
}

void ShardLinks::AbortOnHost() {
  for (const RankRoute& ranks : {route_.parts, route_.replicas}) {
    if (ranks.host != nullptr && ranks.device == nullptr) ranks.host->Abort();
  }
}

void ShardLinks::AwaitDevices() {
  for (const auto& work : under_way_) (void)work->Wait(kLastDeviceWait);
}

}  // namespace cadre::nn
