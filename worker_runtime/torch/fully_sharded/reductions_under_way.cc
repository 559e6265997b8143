#include "cadre/torch/fully_sharded/reductions_under_way.h"

#include <limits>

#include "cadre/status_macros.h"

namespace cadre::nn {
namespace {

// On the host, with the ranks that have parts and again with the replicas: where the network is
// slower than the backward pass, that waits, and memory is bounded. On a device the order of the
// stream bounds it.
constexpr size_t kReductionsInFlight = 2;

}  // namespace

Status ReductionsUnderWay::Start(const std::vector<std::unique_ptr<FlatParameter>>& flats) {
  for (const auto& flat : flats) {
    if (!flat->trained()) continue;
    CADRE_RETURN_IF_ERROR(flat->StartReduce());
    reducing_.push_back(flat.get());
  }
  if (reducing_.empty()) return OkStatus();
  const RankRoute& last = route_.replicas.alone() ? route_.parts : route_.replicas;
  const bool in_order = last.alone() || last.device != nullptr;
  return BringOn(reducing_.front()->waits_before_across() ? kReductionsInFlight : 0,
                 in_order ? std::numeric_limits<size_t>::max() : kReductionsInFlight);
}

Status ReductionsUnderWay::BringOn(size_t reducing, size_t across) {
  while (reducing_.size() > reducing) {
    FlatParameter* const oldest = reducing_.front();
    CADRE_RETURN_IF_ERROR(oldest->ReduceAcross());
    reducing_.pop_front();
    across_.push_back(oldest);
  }
  while (across_.size() > across) {
    CADRE_RETURN_IF_ERROR(across_.front()->FinishReduce());
    across_.pop_front();
  }
  return OkStatus();
}

}  // namespace cadre::nn
