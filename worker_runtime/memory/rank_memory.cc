#include "worker_runtime/memory/rank_memory.h"

#include <optional>

#include "base/status_macros.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/memory/agreement.h"
#include "worker_runtime/memory/delivery.h"
#include "worker_runtime/memory/files/rank_files.h"
#include "worker_runtime/memory/neighbours.h"

namespace cadre::memory {
namespace {

// A rank may commit a step while another still copies the one before, and begins the next only when
// that one is whole: of three, one is always common to all.
constexpr int kSlots = 3;

}  // namespace

RankMemory::RankMemory(Worker& worker, const MemoryCheckpointOptions& options)
    : NodeMemory(worker, options,
                 {OwnName(worker.rank()), kSlots, worker.rank(), worker.world_size()}) {}

Status RankMemory::WaitForPartner() {
  if (partner_ == nullptr) return OkStatus();
  partner_->Settle();
  return partner_->TakeProblem();
}

void RankMemory::AwaitRoom() {
  if (partner_ != nullptr) partner_->Settle();
}

void RankMemory::Committed(int count, const SavedStep& saved) {
  if (has_partner()) {
    if (partner_ == nullptr) {
      partner_ = std::make_unique<Partner>(worker(), directory(), options().timeout);
    }
    partner_->Send(saved, slots().Path(saved.slot));
  }
  // By now all ranks have one of this generation, and so have their partners.
  if (count == kSlots && worker().place().local_rank == 0) RemoveOthers();
}

void RankMemory::RemoveOthers() {
  const WorkerPlace& place = worker().place();
  const std::optional<Neighbours> neighbours =
      partner_ == nullptr ? std::nullopt : partner_->neighbours();
  if (has_partner() && !neighbours.has_value()) return;
  memory::RemoveOthers(directory(), [&](int rank, bool is_copy) {
    if (!is_copy) return rank >= place.rank && rank < place.rank + place.local_world_size;
    return neighbours.has_value() && rank >= neighbours->first_kept &&
           rank < neighbours->first_kept + neighbours->kept_count;
  });
}

Result<NodeMemory::Found> RankMemory::Find(Communicator& communicator) {
  ASSIGN_OR_RETURN(const std::optional<Agreement> agreement,
                   AgreeWithAll(communicator, worker().place(), directory(), options().timeout));
  if (!agreement.has_value()) return Found();
  RETURN_IF_ERROR(Deliver(communicator, *agreement, directory(), slots(), options().timeout));
  RETURN_IF_ERROR(WaitOrAbort(communicator, communicator.Barrier(), options().timeout));
  // Newer ones that not all have: another generation would take them for common. Nobody saves
  // again before that is done.
  if (worker().place().local_rank == 0) {
    RETURN_IF_ERROR(GoBack(directory(), agreement->step, agreement->generation));
  }
  RETURN_IF_ERROR(WaitOrAbort(communicator, communicator.Barrier(), options().timeout));
  return Found{agreement->step, PathOf(*agreement, worker().rank(), directory())};
}

}  // namespace cadre::memory
