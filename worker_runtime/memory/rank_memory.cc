#include "worker_runtime/memory/rank_memory.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/memory/files/memory_slots.h"
#include "worker_runtime/memory/partner.h"

namespace cadre::memory {
namespace {

// A rank may commit a step while another still copies the one before, and begins the next only when
// that one is complete. So with three slots one step is always common to all ranks.
constexpr int kSlots = 3;

}  // namespace

RankMemory::RankMemory(Worker& worker, const MemoryCheckpointOptions& options)
    : NodeMemory(worker, options,
                 {OwnName(worker.rank()), kSlots, worker.rank(), worker.world_size()}) {}

Status RankMemory::WaitForPartner() {
  if (partner_ == nullptr) return OkStatus();
  partner_->AwaitSent();
  return partner_->TakeProblem();
}

void RankMemory::AwaitRoom() {
  if (partner_ != nullptr) partner_->AwaitSent();
}

void RankMemory::Committed(int count, const SavedStep& saved) {
  if (has_partner()) {
    if (partner_ == nullptr) {
      partner_ = std::make_unique<Partner>(worker(), directory(), options().timeout);
    }
    partner_->Send(saved, slots().Path(saved.slot));
  }
  // By now every rank and its partner have a state of this generation.
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
  // Drops newer states that not all ranks have, because a later generation could take them for
  // common ones. No rank saves again before the second barrier.
  if (worker().place().local_rank == 0) {
    RETURN_IF_ERROR(RollBack(directory(), agreement->step, agreement->generation));
  }
  RETURN_IF_ERROR(WaitOrAbort(communicator, communicator.Barrier(), options().timeout));
  return Found{agreement->step, PathOf(*agreement, worker().rank(), directory())};
}

namespace {

// The holdings of one step, by rank.
using Holders = std::map<int64_t, std::vector<const Holding*>>;

// The ranks of a node take turns in sending what the node holds.
int SenderOf(int rank, int64_t node, const std::vector<int>& nodes) {
  const auto first = std::find(nodes.begin(), nodes.end(), static_cast<int>(node));
  const auto ranks = std::count(first, nodes.end(), static_cast<int>(node));
  return static_cast<int>(first - nodes.begin()) + static_cast<int>(rank % ranks);
}

std::vector<Delivery> Deliveries(const Holders& holders, const std::vector<int>& nodes) {
  std::vector<Delivery> deliveries;
  for (const auto& [rank, found] : holders) {
    const int home = nodes[static_cast<size_t>(rank)];
    const bool is_home = std::any_of(found.begin(), found.end(),
                                     [home](const Holding* held) { return held->node == home; });
    if (is_home) continue;
    const int from = SenderOf(static_cast<int>(rank), found.front()->node, nodes);
    deliveries.push_back({static_cast<int>(rank), from, found.front()->bytes});
  }
  return deliveries;
}

}  // namespace

std::optional<Agreement> Agree(const std::vector<Holding>& holdings,
                               const std::vector<int>& nodes) {
  std::map<std::pair<int64_t, int64_t>, Holders> by_state;  // by generation and step
  for (const Holding& held : holdings) {
    if (held.rank < 0 || held.rank >= static_cast<int64_t>(nodes.size())) continue;
    by_state[{held.generation, held.step}][held.rank].push_back(&held);
  }
  for (auto state = by_state.rbegin(); state != by_state.rend(); ++state) {
    if (state->second.size() != nodes.size()) continue;
    return Agreement{state->first.second, static_cast<uint64_t>(state->first.first),
                     Deliveries(state->second, nodes)};
  }
  return std::nullopt;
}

namespace {

constexpr size_t kChunkBytes = size_t{64} << 20;
constexpr int kTag = 1;

std::vector<Holding> HeldHere(const WorkerPlace& place, const std::string& directory) {
  std::vector<Holding> held;
  // One rank reports the files for its node.
  if (place.local_rank != 0) return held;
  for (const RankFile& file : RankFiles(directory)) {
    const SlotLabel& label = file.label;
    if (label.world_size != place.world_size) continue;
    held.push_back({file.rank, place.node_rank, label.step, static_cast<int64_t>(label.generation),
                    static_cast<int64_t>(label.bytes)});
  }
  return held;
}

// Returns buffers for all chunks of the `bytes` at `data`.
std::vector<Buffer> Chunks(char* data, size_t bytes) {
  std::vector<Buffer> chunks;
  for (size_t done = 0; done < bytes; done += kChunkBytes) {
    chunks.push_back({data + done, std::min(kChunkBytes, bytes - done), DataType::kUint8});
  }
  return chunks;
}

Status SendAll(Communicator& communicator, const Agreement& agreement, const std::string& directory,
               std::chrono::nanoseconds timeout) {
  for (const Delivery& delivery : agreement.deliveries) {
    if (delivery.from != communicator.rank()) continue;
    const size_t bytes = static_cast<size_t>(delivery.bytes);
    ASSIGN_OR_RETURN(const MappedFile file,
                     MapState(PathOf(agreement, delivery.rank, directory), bytes));
    for (const Buffer& chunk : Chunks(file.data() + kStateOffset, bytes)) {
      RETURN_IF_ERROR(
          WaitOrAbort(communicator, communicator.Send(chunk, delivery.rank, kTag), timeout));
    }
  }
  return OkStatus();
}

// Waits for all receives, also after an error, because they write to the slot's memory.
Status Exchange(Communicator& communicator, const Agreement& agreement,
                const std::string& directory, MemorySlots& own, std::chrono::nanoseconds timeout) {
  std::vector<std::shared_ptr<Work>> coming;
  for (const Delivery& delivery : agreement.deliveries) {
    if (delivery.rank != communicator.rank()) continue;
    const size_t bytes = static_cast<size_t>(delivery.bytes);
    ASSIGN_OR_RETURN(char* const room, own.Begin(bytes));
    for (const Buffer& chunk : Chunks(room, bytes)) {
      coming.push_back(communicator.Receive(chunk, delivery.from, kTag));
    }
  }
  // Sends after posting the receives, because two nodes may wait for each other's states.
  Status status = SendAll(communicator, agreement, directory, timeout);
  for (const std::shared_ptr<Work>& work : coming) {
    status.Update(WaitOrAbort(communicator, work, timeout));
  }
  return status;
}

}  // namespace

Result<std::optional<Agreement>> AgreeWithAll(Communicator& communicator, const WorkerPlace& place,
                                              const std::string& directory,
                                              std::chrono::nanoseconds timeout) {
  std::vector<Holding> held = HeldHere(place, directory);
  const size_t ranks = static_cast<size_t>(communicator.size());
  std::array<int64_t, 2> own = {place.node_rank, static_cast<int64_t>(held.size())};
  std::vector<int64_t> all(own.size() * ranks);
  RETURN_IF_ERROR(WaitOrAbort(communicator,
                              communicator.AllGather({own.data(), own.size(), DataType::kInt64},
                                                     {all.data(), all.size(), DataType::kInt64}),
                              timeout));
  std::vector<int> nodes;
  std::vector<size_t> counts;
  size_t total = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    nodes.push_back(static_cast<int>(all[2 * rank]));
    total += static_cast<size_t>(all[2 * rank + 1]);
    counts.push_back(static_cast<size_t>(all[2 * rank + 1]) * kHoldingFields);
  }
  if (total == 0) return std::optional<Agreement>();
  std::vector<Holding> holdings(total);
  RETURN_IF_ERROR(WaitOrAbort(
      communicator,
      communicator.AllGatherVarying({held.data(), held.size() * kHoldingFields, DataType::kInt64},
                                    {holdings.data(), total * kHoldingFields, DataType::kInt64},
                                    counts),
      timeout));
  return Agree(holdings, nodes);
}

Status Deliver(Communicator& communicator, const Agreement& agreement, const std::string& directory,
               MemorySlots& own, std::chrono::nanoseconds timeout) {
  Status status = Exchange(communicator, agreement, directory, own, timeout);
  const auto is_own = [&communicator](const Delivery& delivery) {
    return delivery.rank == communicator.rank();
  };
  if (status.ok() &&
      std::any_of(agreement.deliveries.begin(), agreement.deliveries.end(), is_own)) {
    status.Update(own.Commit(agreement.step, agreement.generation, communicator.size()));
  }
  // Otherwise the other ranks would wait for this one.
  if (!status.ok()) communicator.Abort();
  return status;
}

std::string PathOf(const Agreement& agreement, int rank, const std::string& directory) {
  for (const RankFile& file : RankFiles(directory)) {
    if (file.rank == rank && file.label.step == agreement.step &&
        file.label.generation == agreement.generation) {
      return file.path;
    }
  }
  return "";
}

}  // namespace cadre::memory
