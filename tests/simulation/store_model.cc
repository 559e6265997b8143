#include "tests/simulation/store_model.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cadre::simulation {

std::string GenerationKey::Text() const {
  return absl::StrCat("generation ", number, " of ", job, " (server ", server_id % 10000, ")");
}

std::string IdOf(const GenerationKey& generation) {
  return absl::StrCat("id of ", generation.Text());
}

int64_t StoreModel::Asked(const GenerationKey& generation, const v1::StoreRequest& request) {
  Generation& of = generations_[generation];
  if (request.has_add()) {
    Sum& sum = of.sums[request.add().key()];
    ++sum.asked;
    return sum.largest;
  }
  if (request.has_barrier()) of.entered[request.barrier().name()].insert(request.rank());
  return 0;
}

std::string StoreModel::Answered(const GenerationKey& generation, uint32_t world_size,
                                 int64_t asked, const v1::StoreRequest& request,
                                 const v1::StoreReply& reply) {
  Generation& of = generations_[generation];
  if (request.has_add()) {
    Sum& sum = of.sums[request.add().key()];
    const int64_t number = reply.number();
    sum.largest = std::max(sum.largest, number);
    if (number <= asked) return absl::StrCat("the sum went back to ", number, " from ", asked);
    if (number > sum.asked) {
      return absl::StrCat("the sum is ", number, " after ", sum.asked, " additions of 1");
    }
    if (!sum.seen.insert(number).second) return absl::StrCat("the sum ", number, " was seen twice");
  }
  if (request.has_set()) of.written[request.set().key()] = request.set().value();
  if (request.has_get() && reply.value() != of.written[request.get().key()]) {
    return absl::StrCat("key ", request.get().key(), " holds ", reply.value(), ", not ",
                        of.written[request.get().key()]);
  }
  if (request.has_get_id() && reply.value() != IdOf(generation)) {
    return absl::StrCat("a foreign id: ", reply.value());
  }
  if (request.has_barrier() && of.entered[request.barrier().name()].size() < world_size) {
    return absl::StrCat("barrier ", request.barrier().name(), " let rank ", request.rank(),
                        " through with ", of.entered[request.barrier().name()].size(), " of ",
                        world_size, " ranks inside");
  }
  return "";
}

}  // namespace cadre::simulation
