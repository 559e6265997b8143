#include "cadre/torch/hybrid_sharding.h"

#include <cstdint>
#include <string>
#include <vector>

#include "cadre/result.h"
#include "cadre/status_macros.h"
#include "cadre/torch/device_stream.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/torch/fully_sharded/shard_links.h"

namespace cadre::nn {
namespace {

// A rank's place in a communicator; size 0 means that it has none.
struct Place {
  int64_t rank = 0;
  int64_t size = 0;

  bool operator!=(const Place& other) const { return rank != other.rank || size != other.size; }
  std::string Text() const {
    return size == 0 ? "none" : std::to_string(rank) + " of " + std::to_string(size);
  }
};

Place PlaceIn(const Communicator* communicator) {
  if (communicator == nullptr) return {};
  return {communicator->rank(), communicator->size()};
}

Result<std::vector<Place>> GatherPlaces(Communicator& communicator, Place mine,
                                        std::chrono::nanoseconds timeout) {
  std::vector<Place> all(static_cast<size_t>(communicator.size()));
  const size_t numbers = sizeof(Place) / sizeof(int64_t);
  CADRE_RETURN_IF_ERROR(
      WaitOrAbort(communicator,
                  communicator.AllGather({&mine, numbers, DataType::kInt64},
                                         {all.data(), numbers * all.size(), DataType::kInt64}),
                  timeout));
  return all;
}

Status DoNotFit(const Place& part, const Place& replica, const std::string& other) {
  return InvalidArgumentError("the communicators of hybrid sharding do not fit together: rank " +
                              part.Text() + " with parts is in replica " + replica.Text() +
                              ", and " + other +
                              "; take both from SplitByNode(), or from splits by node and by "
                              "the rank in it");
}

}  // namespace

Result<HybridGroups> SplitByNode(Communicator& world, int local_size,
                                 std::chrono::nanoseconds timeout) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<Place> all,
                         GatherPlaces(world, {world.rank(), local_size}, timeout));
  for (const Place& other : all) {
    if (other.size == all[0].size) continue;
    return InvalidArgumentError("rank " + std::to_string(other.rank) + " is one of " +
                                std::to_string(other.size) + " on its node, and rank 0 of " +
                                std::to_string(all[0].size) +
                                ": hybrid sharding needs as many on each node");
  }
  if (local_size < 1 || world.size() % local_size != 0) {
    return InvalidArgumentError(
        "each node has " + std::to_string(local_size) + " ranks, and all nodes together have " +
        std::to_string(world.size()) +
        ": hybrid sharding needs a number of ranks on each node that divides the number of all");
  }
  HybridGroups groups;
  CADRE_ASSIGN_OR_RETURN(groups.shards, world.Split(world.rank() / local_size, world.rank()));
  CADRE_ASSIGN_OR_RETURN(groups.replicas, world.Split(world.rank() % local_size, world.rank()));
  return groups;
}

Status CheckGroupsFit(Communicator& shards, Communicator* replicas,
                      std::chrono::nanoseconds timeout) {
  const Place part = PlaceIn(&shards), replica = PlaceIn(replicas);
  // Both are gathered before either is checked: a rank that finds a difference aborts, and the
  // other ranks have to find theirs.
  CADRE_ASSIGN_OR_RETURN(const std::vector<Place> by_part, GatherPlaces(shards, replica, timeout));
  std::vector<Place> by_replica;
  if (replicas != nullptr) {
    CADRE_ASSIGN_OR_RETURN(by_replica, GatherPlaces(*replicas, part, timeout));
  }
  for (size_t rank = 0; rank < by_part.size(); ++rank) {
    if (by_part[rank] != replica) {
      return DoNotFit(part, replica,
                      "rank " + std::to_string(rank) + " with parts in " + by_part[rank].Text());
    }
  }
  for (size_t rank = 0; rank < by_replica.size(); ++rank) {
    if (by_replica[rank] != part) {
      return DoNotFit(part, replica,
                      "replica " + std::to_string(rank) + "'s rank there is " +
                          by_replica[rank].Text() + " with parts");
    }
  }
  return OkStatus();
}

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
  // One copy between the replicas is enough.
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
