#include "worker_runtime/shared_memory/collective_context.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace cadre::shared_memory {
namespace {

Status CheckSame(const CollectiveContext& context) {
  const ControlBlock& first = context.barrier->block(0);
  for (int rank = 1; rank < context.size(); ++rank) {
    const ControlBlock& block = context.barrier->block(rank);
    if (block.call == first.call) continue;
    return InvalidArgumentError(absl::StrCat("the ranks made different calls as collective ",
                                             block.operations(), ": rank 0 ", Describe(first.call),
                                             ", rank ", rank, " ", Describe(block.call)));
  }
  return OkStatus();
}

BufferMemory WherePublished(const CollectiveContext& context) {
  const ControlBlock& first = context.barrier->block(0);
  bool all_alike = true, any_shared = false;
  for (int rank = 0; rank < context.size(); ++rank) {
    const ControlBlock& block = context.barrier->block(rank);
    any_shared = any_shared || block.allocation != kNotRegistered;
    all_alike = all_alike && block.allocation == first.allocation && block.offset == first.offset;
  }
  if (!any_shared) return BufferMemory::kPrivate;
  return all_alike ? BufferMemory::kShared : BufferMemory::kMixed;
}

Status AgreeAnew(CollectiveContext& context) {
  Status same = CheckSame(context);
  if (!same.ok()) return same;
  Agreement& agreement = context.agreement;
  ++agreement.number;
  agreement.memory = WherePublished(context);
  agreement.factors.resize(context.size());
  agreement.versions.clear();
  for (const ControlBlock* other : context.barrier->others()) {
    agreement.versions.push_back(other->version);
  }
  agreement.is_current = true;
  agreement.is_scaled = false;
  for (int rank = 0; rank < context.size(); ++rank) {
    const ControlBlock& block = context.barrier->block(rank);
    agreement.factors[rank] = block.factor;
    agreement.is_scaled = agreement.is_scaled || block.factor != 1;
  }
  return OkStatus();
}

}  // namespace

bool Publish(CollectiveContext& context, const CollectiveCall& call, double factor, char* shared,
             size_t bytes) {
  ControlBlock& block = context.barrier->own();
  const bool is_shared = bytes > 0 && context.allocations->Find(shared, bytes, &context.allocation);
  const uint32_t allocation = is_shared ? context.allocation.number : kNotRegistered;
  const uint64_t offset = is_shared ? shared - context.allocation.base : 0;
  context.barrier->BeginOperation();
  if (block.allocation == allocation && block.offset == offset && block.factor == factor &&
      block.call == call) {
    return is_shared;
  }
  context.agreement.is_current = false;
  ++block.version;
  block.allocation = allocation;
  block.offset = offset;
  block.factor = factor;
  block.call = call;
  return is_shared;
}

char* SharedOf(const CollectiveContext& context, int rank, size_t bytes) {
  const SharedSegment& segment = *context.allocation.segments->at(rank);
  const uint64_t offset = context.barrier->own().offset;
  CADRE_CHECK(offset <= segment.size() && bytes <= segment.size() - offset, "rank ", rank,
              " has allocated ", segment.size(), " bytes, not ", offset + bytes);
  return segment.data() + offset;
}

Status Agree(CollectiveContext& context) {
  return StillAgree(context) ? OkStatus() : AgreeAnew(context);
}

}  // namespace cadre::shared_memory
