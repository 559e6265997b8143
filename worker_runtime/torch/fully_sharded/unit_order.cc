#include "cadre/torch/fully_sharded/unit_order.h"

#include "cadre/parameter.h"
#include "cadre/status_macros.h"
#include "cadre/wait_or_abort.h"

namespace cadre::nn {
namespace {

Status Compare(const RankRoute& route, const char* other, std::chrono::nanoseconds timeout,
               int64_t mine) {
  if (route.alone()) return OkStatus();
  std::vector<int64_t> all(static_cast<size_t>(route.host->size()));
  Communicator& host = *route.host;
  CADRE_RETURN_IF_ERROR(WaitOrAbort(
      host,
      host.AllGather({&mine, 1, DataType::kInt64}, {all.data(), all.size(), DataType::kInt64}),
      timeout));
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == mine) continue;
    return InvalidArgumentError(std::string("its forward pass and that of ") + other + " " +
                                std::to_string(i) +
                                " ran the units in different orders, or not the same ones; all "
                                "ranks must call the same units in the same order");
  }
  return OkStatus();
}

}  // namespace

Status UnitOrder::Check(const ShardRoute& route) {
  if (pass_ == before_) return OkStatus();
  before_ = pass_;
  const Parameter order = {"order",
                           {pass_.data(), pass_.size(), DataType::kInt32},
                           {static_cast<int64_t>(pass_.size())}};
  const auto mine = static_cast<int64_t>(Fingerprint({&order, 1}));
  CADRE_RETURN_IF_ERROR(Compare(route.parts, "rank", route.timeout, mine));
  return Compare(route.replicas, "replica", route.timeout, mine);
}

}  // namespace cadre::nn
