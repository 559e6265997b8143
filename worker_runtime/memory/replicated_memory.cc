#include "worker_runtime/memory/replicated_memory.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/absl_types.h"
#include "worker_runtime/memory/files/mapped_file.h"
#include "worker_runtime/memory/files/rank_files.h"
#include "worker_runtime/memory/files/slot_file.h"

namespace cadre::memory {
namespace {

// What nodes without a state get at a time.
constexpr size_t kChunkBytes = size_t{4} << 20;

// Of one node, and one more where states are spilled.
using Replicas = std::array<Replica, kReplicatedSlots + 1>;

Replica Newest(const std::vector<Replicas>& of_ranks) {
  Replica newest;
  for (const Replicas& replicas : of_ranks) {
    newest = std::max(newest, *std::max_element(replicas.begin(), replicas.end()));
  }
  return newest;
}

// The first rank that has it; nullopt: all have it.
std::optional<int> OwnerIfSomeLack(const std::vector<Replicas>& of_ranks, const Replica& wanted) {
  const auto has = [&wanted](const Replicas& replicas) {
    return std::find(replicas.begin(), replicas.end(), wanted) != replicas.end();
  };
  if (std::all_of(of_ranks.begin(), of_ranks.end(), has)) return std::nullopt;
  return static_cast<int>(std::find_if(of_ranks.begin(), of_ranks.end(), has) - of_ranks.begin());
}

uint64_t GenerationOf(const Replica& replica) { return static_cast<uint64_t>(replica.generation); }

}  // namespace

ReplicatedMemory::ReplicatedMemory(Worker& worker, const MemoryCheckpointOptions& options)
    : NodeMemory(worker, options,
                 {kReplicatedName, kReplicatedSlots, 0, 1, worker.place().local_rank == 0,
                  worker.rank() == 0}) {}

Result<NodeMemory::Found> ReplicatedMemory::Find(Communicator& communicator) {
  Replicas own;
  size_t next = 0;
  for (const SavedStep& saved : slots().Whole()) {
    own[next++] = {static_cast<int64_t>(saved.generation), saved.step};
  }
  const size_t fields = own.size() * kReplicaFields;
  std::vector<Replicas> all(worker().world_size());
  RETURN_IF_ERROR(
      WaitOrAbort(communicator,
                  communicator.AllGather({own.data(), fields, DataType::kInt64},
                                         {all.data(), all.size() * fields, DataType::kInt64}),
                  options().timeout));
  const Replica newest = Newest(all);
  if (newest.step == kNoStep) return Found();
  if (const std::optional<int> owner = OwnerIfSomeLack(all, newest)) {
    RETURN_IF_ERROR(Share(communicator, newest, *owner));
  }
  const std::optional<SavedStep> saved = slots().Find(newest.step, GenerationOf(newest));
  if (!saved.has_value()) return InternalError(absl::StrCat("step ", newest.step, " is gone"));
  return Found{newest.step, slots().Path(saved->slot)};
}

Status ReplicatedMemory::Share(Communicator& communicator, const Replica& replica, int from) {
  const Status status = Broadcast(communicator, replica, from);
  // The others would wait for this rank.
  if (!status.ok()) communicator.Abort();
  return status;
}

Status ReplicatedMemory::Broadcast(Communicator& communicator, const Replica& replica, int from) {
  const std::optional<SavedStep> saved = slots().Find(replica.step, GenerationOf(replica));
  int64_t bytes = saved.has_value() ? static_cast<int64_t>(saved->bytes) : 0;
  RETURN_IF_ERROR(WaitOrAbort(communicator,
                              communicator.Broadcast({&bytes, 1, DataType::kInt64}, from),
                              options().timeout));
  const bool keeps = kept().writes && !saved.has_value();
  std::optional<MappedFile> given;
  std::vector<char> scratch;
  char* room = nullptr;
  if (worker().rank() == from) {
    // Not written to: it is the root's.
    ASSIGN_OR_RETURN(given, MapState(slots().Path(saved->slot), saved->bytes));
    room = given->data() + kStateOffset;
  } else if (keeps) {
    ASSIGN_OR_RETURN(room, slots().Begin(static_cast<size_t>(bytes)));
  } else {
    scratch.resize(std::min(kChunkBytes, static_cast<size_t>(bytes)));
  }
  for (size_t done = 0; done < static_cast<size_t>(bytes); done += kChunkBytes) {
    const size_t size = std::min(kChunkBytes, static_cast<size_t>(bytes) - done);
    char* const chunk = room == nullptr ? scratch.data() : room + done;
    RETURN_IF_ERROR(WaitOrAbort(communicator,
                                communicator.Broadcast({chunk, size, DataType::kUint8}, from),
                                options().timeout));
  }
  // As the owner's: for the next generation all of them are one state.
  if (keeps) RETURN_IF_ERROR(CommitToSlots(replica.step, GenerationOf(replica)));
  return WaitOrAbort(communicator, communicator.Barrier(), options().timeout);
}

}  // namespace cadre::memory
